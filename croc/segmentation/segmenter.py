"""A segmenter: a frozen backbone with a head that gives each patch a score for every class.

On disk it is one folder, which needs nothing else:

head.json                 classes, colors, sizes, the backbone's hash, how the head was made
head.safetensors          the linear layer, or the labeled patches of an in-context head
backbone.safetensors      the backbone; `--weights HEAD/backbone.safetensors` opens it too
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import typeguard
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from croc import __version__
from croc.errors import UserError
from croc.eval.features import resize_image, upsample
from croc.eval.incontext import Memory
from croc.eval.linear import Layer
from croc.eval.metrics import IGNORED
from croc.eval.pictures import class_colors
from croc.weights.backbones import FrozenBackbone, architecture, check_fit, fingerprint
from croc.weights.checksum import save_sealed
from croc.weights.files import first_line, opening, read_named_tensors
from croc.weights.open import open_backbone, save_backbone

FORMAT = 1
HEAD, TENSORS, BACKBONE = "head.json", "head.safetensors", "backbone.safetensors"
MAX_BAND, MAX_WIDE = 2**20, 2**24
"""Upsampled values that are computed at once: of both axes (on a CPU), and of one."""
Color = tuple[int, int, int]
HEAD_SCHEMA: dict[str, Any] = {
    "kind": Literal["linear", "incontext"],
    "classes": list[str],
    "colors": list[str],
    "image_px": int,
    "blocks": int,
    "resize": Literal["square", "keep-ratio"],
    "backbone": dict[str, str],
}


@dataclass(frozen=True)
class Segmenter:
    """Maps images to class scores and class maps; a class map has indices into `classes`."""

    backbone: FrozenBackbone
    head: nn.Module
    """Features "B C h w" to scores: a 1×1 convolution, or a memory of labeled patches."""
    classes: tuple[str, ...]
    colors: tuple[Color, ...]
    """RGB in 0 … 255, one per class."""
    image_px: int
    blocks: int
    resize: Literal["square", "keep-ratio"] = "square"
    """square: images become squares of image_px. keep-ratio: their shorter side becomes that."""

    @property
    def kind(self) -> Literal["linear", "incontext"]:
        return "incontext" if isinstance(self.head, Memory) else "linear"

    @property
    def device(self) -> torch.device:
        return next(self.backbone.parameters()).device

    def to(self, device: torch.device | str, precision: torch.dtype | None = None) -> "Segmenter":
        """On the device, with the backbone in that precision; the head stays in float32."""
        backbone, head = self.backbone.to(device, precision), self.head.to(device)
        return replace(self, backbone=backbone, head=head)

    @torch.no_grad()
    def scores(self, images: Float[Tensor, "B 3 h w"]) -> Float[Tensor, "B classes rows columns"]:
        """Class scores per patch of normalized images: logits, or probabilities (in-context)."""
        return self.head(self.backbone.features(images.to(self.device), self.blocks).float())

    @property
    def unit_px(self) -> int | None:
        """The patch size if the aspect ratio is kept, else None, for `resize_image`."""
        return self.backbone.stride_px if self.resize == "keep-ratio" else None

    def class_map(self, image: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "H W"]:
        """The class of each pixel of an RGB image, at the image's own size."""
        pixels = resize_image(image, self.image_px, self.unit_px)
        inputs = self.backbone.normalize(pixels[None] / 255)
        return argmax_upsampled(self.scores(inputs)[0], image.shape[:2])


def argmax_upsampled(
    scores: Float[Tensor, "classes rows columns"], size: tuple[int, ...]
) -> UInt8[np.ndarray, "H W"]:
    """The class of the highest upsampled score at each pixel, the first of equal ones."""
    classes = torch.empty(size, dtype=torch.uint8, device=scores.device)
    for rows, band in upsample_in_bands(scores.float(), size):
        classes[rows] = band.max(dim=0).indices  # on CPUs faster than argmax
    return classes.cpu().numpy()


def upsample_in_bands(
    planes: Float[Tensor, "n h w"], size: tuple[int, ...]
) -> Iterator[tuple[slice, Float[Tensor, "n _ W"]]]:
    """Bilinear, as `upsample`: some rows of the result at a time, few enough for a CPU's cache.

    Columns come first, for as many of the planes' rows as MAX_WIDE allows. Nothing here waits for
    a GPU.
    """
    (count, source, _), (height, width) = planes.shape, size
    y = ((torch.arange(height) + 0.5) * source / height - 0.5).clamp(0, source - 1)
    above, below = y.long(), (y.long() + 1).clamp_max(source - 1)
    weight = (y - above)[:, None].to(planes.device)
    indices = torch.stack([above, below]).to(planes.device)
    step = max(1, (MAX_BAND if planes.device.type == "cpu" else MAX_WIDE) // (count * width))
    first, last, wide = 0, -1, planes
    for start in range(0, height, step):
        rows = slice(start, start + step)
        if (needed := int(below[rows][-1])) > last:
            first = int(above[start])
            last = max(needed, min(source, first + MAX_WIDE // (count * width)) - 1)
            part = planes[None, :, first : last + 1]
            wide = upsample(part, (last + 1 - first, width))[0]
        upper, lower = (wide.index_select(1, each) for each in indices[:, rows] - first)
        yield rows, upper.lerp_(lower, weight[rows])


def fold_standardization(layer: Layer) -> nn.Conv2d:
    """One convolution of the features themselves, with the standardization in its weights."""
    classes, width = layer.linear.weight.shape[:2]
    folded = nn.Conv2d(width, classes, kernel_size=1).requires_grad_(False)
    for parameter, value in zip((folded.weight, folded.bias), layer.folded()):
        parameter.copy_(value)  # pyright: ignore[reportOptionalMemberAccess]
    return folded.eval()


def default_colors(count: int) -> tuple[Color, ...]:
    return tuple(tuple(row) for row in np.rint(class_colors(count) * 255).astype(int).tolist())


def check_new(output: str | Path) -> Path:
    """The absolute path; refused if something is there, or if it cannot be created."""
    path = Path(output).absolute()
    is_empty = path.is_dir() and not any(path.iterdir())
    if os.path.lexists(path) and not is_empty:
        raise UserError(f"{output} already exists and will not be overwritten: choose another --to")
    parent = next(folder for folder in path.parents if os.path.lexists(folder))
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{parent} is not a folder that can be written to: choose another --to")
    return path


def head_hash(segmenter: Segmenter) -> str:
    """Hash of the weights of backbone and head, and of the in-context settings."""
    head = segmenter.head
    text = f"{fingerprint(segmenter.backbone)} {fingerprint(head)}"
    if isinstance(head, Memory):
        text += f" {head.neighbors} {head.temperature}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def save_segmenter(
    segmenter: Segmenter,
    folder: str | Path,
    metadata: dict[str, Any],
    write_more: Callable[[Path], None] = lambda partial: None,
) -> None:
    """Write a new folder, complete or not at all. `metadata` is stored in head.json: how the head
    was made, on what, and its score. `write_more` adds files."""
    target, head = check_new(folder), segmenter.head
    content: dict[str, Any] = {
        "format": FORMAT,
        "croc": __version__,
        "kind": segmenter.kind,
        "classes": list(segmenter.classes),
        "colors": ["#{:02x}{:02x}{:02x}".format(*color) for color in segmenter.colors],
        "image_px": segmenter.image_px,
        "blocks": segmenter.blocks,
        "resize": segmenter.resize,
        "backbone": {
            "name": segmenter.backbone.name,
            "architecture": architecture(segmenter.backbone),
            "hash": fingerprint(segmenter.backbone),
        },
    }
    if isinstance(head, Memory):
        content |= {"neighbors": head.neighbors, "temperature": head.temperature}
    tensors = {name: x.cpu().contiguous() for name, x in head.state_dict().items()}
    partial = target.with_name(f".{target.name}-{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        save_sealed(tensors, partial / TENSORS, {"format": "pt"})
        save_backbone(segmenter.backbone, partial / BACKBONE)
        text = json.dumps(content | {"facts": metadata}, indent=2, ensure_ascii=False)
        (partial / HEAD).write_text(text + "\n", encoding="utf-8")
        write_more(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load_segmenter(folder: str | Path) -> Segmenter:
    """Load a folder written by `croc segment fit` or `croc segment discover`, on the CPU."""
    folder = Path(folder)
    content = read_head(folder)
    for name in (BACKBONE, TENSORS):
        if not (folder / name).is_file():
            raise UserError(f"{folder} is incomplete: {name} is missing")
    backbone = open_backbone(str(folder / BACKBONE)).float()
    if (actual := fingerprint(backbone)) != content["backbone"]["hash"]:
        raise UserError(
            f"{folder / BACKBONE} ({actual}) is not the backbone that this head was made with: "
            f"{content['backbone']['name']} ({content['backbone']['hash']})"
        )
    backbone.name = backbone.origin = content["backbone"]["name"]
    path, classes = folder / TENSORS, content["classes"]
    tensors = read_named_tensors(path)
    with opening(path):
        if content["kind"] == "incontext":
            features, histograms = tensors["features"].float(), tensors["histograms"].float()
            head = Memory(features, histograms, content["neighbors"], content["temperature"])
            count = histograms.shape[1]
        else:
            count, width = tensors["weight"].shape[:2]
            head = nn.Conv2d(width, count, kernel_size=1)
            head.load_state_dict(tensors)
            head.eval().requires_grad_(False)
    if not len(classes) == len(content["colors"]) == count:
        sizes = f"{len(classes)} classes and {len(content['colors'])} colors"
        raise UserError(f"{folder / HEAD} has {sizes}, but the head has {count} classes")
    check_fit(backbone, content["image_px"], content["blocks"], "head.json: images")
    colors: Any = tuple(
        tuple(bytes.fromhex(color.removeprefix("#"))) for color in content["colors"]
    )
    sizes = {name: content[name] for name in ("image_px", "blocks", "resize")}
    return Segmenter(backbone, head, tuple(classes), colors, **sizes)


def read_head(folder: Path) -> dict[str, Any]:
    """head.json, checked; it may have been edited to rename classes or to change colors."""
    path = folder / HEAD
    if not path.is_file():
        raise UserError(
            f"{folder} has no head: pass a folder written by croc segment fit or discover"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if "framing" in content:  # of an earlier version
            content["resize"] = {"squash": "square", "keep": "keep-ratio"}[content["framing"]]
        if content["format"] != FORMAT:
            raise ValueError(
                f"it has format {content['format']}, but this version reads format {FORMAT}"
            )
        for name, kind in HEAD_SCHEMA.items():
            typeguard.check_type(content[name], kind)
        for name, kind in (("neighbors", int), ("temperature", float)):
            if content["kind"] == "incontext":
                typeguard.check_type(content[name], kind)
        if not all(re.fullmatch("#?[0-9a-fA-F]{6}", color) for color in content["colors"]):
            raise ValueError("colors must have the form #rrggbb")
        if not 0 < len(content["classes"]) <= IGNORED or content["image_px"] < 1:
            raise ValueError(f"it must have 1 to {IGNORED} classes and a positive image_px")
    except (ValueError, TypeError, KeyError, RecursionError, typeguard.TypeCheckError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else first_line(error)
        raise UserError(f"{path} cannot be read: {reason}") from None
    return content
