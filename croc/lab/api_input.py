"""What callers of the Python API may pass: one-line messages instead of deep tracebacks."""

import dataclasses
import difflib
import os
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
import typeguard
from jaxtyping import Float, Int, jaxtyped
from PIL import Image, ImageOps
from torch import Tensor

from croc.config import ClusterConfig
from croc.errors import UserError
from croc.lab.show.look import read_photograph
from croc.weights.open import ConvBackbone, VitBackbone

Config = TypeVar("Config")
SUM_TOLERANCE = 1e-3


def weights_name(weights: object) -> str:
    """As on the command line's --weights."""
    if isinstance(weights, str | os.PathLike):
        return os.fspath(weights)
    if isinstance(weights, VitBackbone | ConvBackbone):
        raise UserError(f"{weights.name} is an open backbone: give its run, file or name")
    kind = type(weights).__name__
    raise UserError(f"weights are a run, a file or a name, not of type {kind}")


def change(config: Config, changes: Mapping[str, Any], prefix: str = "") -> Config:
    """A configuration with some fields replaced, names and types checked; lists become tuples."""
    hints = typing.get_type_hints(type(config))
    check_names(changes, hints, prefix)
    values = {}
    for name, value in changes.items():
        value = tuple(value) if isinstance(value, list) else value
        try:
            values[name] = typeguard.check_type(value, hints[name])
        except typeguard.TypeCheckError as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the option {prefix}{name} cannot be {value!r}: {reason}") from None
    return dataclasses.replace(typing.cast(Any, config), **values)


def check_names(
    names: Iterable[str], known: Iterable[str], prefix: str = "", noun: str = "option"
) -> None:
    """Reject an unknown name, and suggest the nearest known one."""
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            few = ", ".join(known[:12]) + (" …" if len(known) > 12 else "")
            hint = f"perhaps you meant {prefix}{near[0]}" if near else f"there are {few}"
            raise UserError(f"there is no {noun} {prefix}{name}; {hint}")


def read_image(image: object) -> Tensor:
    """A path, a PIL image or a tensor as "3 h w" of bytes, or of floats in 0 … 1, on the CPU."""
    if isinstance(image, str | os.PathLike):
        return torch.from_numpy(read_photograph(os.fspath(image))).permute(2, 0, 1)
    if isinstance(image, Image.Image):
        return torch.from_numpy(_upright(image)).permute(2, 0, 1)
    if not isinstance(image, Tensor):
        kind = type(image).__name__
        raise UserError(f"a photograph is a path, a PIL image or a tensor, not of type {kind}")
    if image.ndim != 3 or image.shape[0] != 3 or not image.numel():
        raise UserError(f"a photograph as a tensor is 3 × height × width, not {tuple(image.shape)}")
    if image.dtype == torch.uint8:
        return image.cpu()
    if not image.is_floating_point():
        raise UserError(f"a tensor of {image.dtype}: give bytes (torch.uint8) or floats in 0 … 1")
    low, high = float(image.min()), float(image.max())
    if not (low >= 0 and high <= 1):  # written so that nan is rejected too
        raise UserError(
            f"a tensor of floats must be in 0 … 1, not in {low:.3g} … {high:.3g}: give the "
            "photograph before it is normalised"
        )
    return image.cpu().float()


def _upright(image: Image.Image) -> np.ndarray:
    """By its EXIF orientation, transparency on white, "h w 3" of bytes."""
    if image.mode.startswith(("I", "F")):
        raise UserError(f"a PIL image of mode {image.mode} has no 8-bit colours: convert it")
    try:
        image = ImageOps.exif_transpose(image)
    except (OSError, SyntaxError, ValueError) as error:  # PIL decodes only now
        raise UserError(f"a PIL image cannot be decoded: {error}") from None
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return np.array(image.convert("RGB"))


def check_cluster_input(tensors: Mapping[str, Any], config: ClusterConfig, views: int) -> None:
    """tokens, positions and saliency, and seeds and keys, which may be None."""
    kinds: dict[str, Any] = {
        "tokens": Float[Tensor, "B H T d"],
        "positions": Float[Tensor, "B T 2"],
        "saliency": Float[Tensor, "B H T"],
        "seeds": Int[Tensor, f"B H {config.k_start}"],
        "keys": Int[Tensor, "B"],
    }
    with jaxtyped("context"):  # one size for each letter
        for name, values in tensors.items():
            if values is None and name in ("seeds", "keys"):
                continue
            if not isinstance(values, kinds[name]):
                numbers = "integers" if name in ("seeds", "keys") else "floats"
                shape = kinds[name].dim_str.replace(" ", " × ")
                got = f"a {type(values).__name__}"
                if isinstance(values, Tensor):
                    got = f"{values.dtype} of {' × '.join(map(str, values.shape))}"
                raise UserError(
                    f"{name} must be {numbers} of {shape} (tokens are B × H × T × d), not {got}"
                )
            if values is not None and not values.isfinite().all():
                raise UserError(f"{name} must be finite, and have a nan or an inf")
    saliency = tensors["saliency"]
    count = saliency.shape[-1]
    if views < 1 or count % views:
        raise UserError(f"{count} tokens cannot come from {views} views of one size")
    if config.variant == "paper":
        sums = saliency.sum(dim=-1, dtype=torch.float32)
        tolerance = max(SUM_TOLERANCE, torch.finfo(saliency.dtype).eps)  # half precision rounds
        if (saliency < 0).any() or ((sums - 1).abs() > tolerance).any():
            raise UserError(
                "saliency must not be negative and must sum to 1 over the tokens of an image and "
                "head: divide it by its sum"
            )
    if tensors["seeds"] is not None:
        seeds = tensors["seeds"].sort(dim=-1).values
        if seeds.min() < 0 or seeds.max() >= count or (seeds.diff(dim=-1) == 0).any():
            raise UserError(f"seeds must be different tokens of an image, from 0 to {count - 1}")
