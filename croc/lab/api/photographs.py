"""`croc.features`: photographs in, a grid of patch features of each out."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from croc.errors import UserError
from croc.eval.features import ConvBackbone, VitBackbone, check_fit
from croc.lab.api.backbones import load_backbone, name_of
from croc.lab.show.look import read_photograph
from croc.method.photometric import normalise

MOST_DEFAULT_PX = 448
Photograph = str | os.PathLike[str] | Image.Image | Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """What a backbone says of one photograph; on the CPU, in float32."""

    patches: Float[Tensor, "rows columns D"]
    """The last block's patch tokens, after the final norm."""
    cls: Float[Tensor, "D"] | None
    """The CLS token; None for a network without one, such as a ConvNet."""
    size_px: tuple[int, int]
    """Height and width of the photograph itself, upright."""

    def centres_px(self) -> Float[Tensor, "rows columns 2"]:
        """(x, y) of each patch's centre, in the photograph's own pixels."""
        (rows, columns), (height, width) = self.patches.shape[:2], self.size_px
        y = (torch.arange(rows) + 0.5) * height / rows
        x = (torch.arange(columns) + 0.5) * width / columns
        return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)

    def patch_at(self, x: float | int, y: float | int) -> tuple[int, int]:
        """Row and column of the patch that holds a pixel of the photograph."""
        (rows, columns), (height, width) = self.patches.shape[:2], self.size_px
        if not (0 <= x < width and 0 <= y < height):
            raise UserError(f"{x:g}, {y:g} lies outside the photograph of {width} × {height} px")
        return int(y * rows / height), int(x * columns / width)

    def __repr__(self) -> str:
        rows, columns, width = self.patches.shape
        cls = "no cls" if self.cls is None else "cls"
        height_px, width_px = self.size_px
        return f"Features({rows} × {columns} × {width}, {cls}, of {width_px} × {height_px} px)"


@torch.no_grad()
def features(
    images: Photograph | Iterable[Photograph],
    weights: str | os.PathLike[str] | VitBackbone | ConvBackbone,
    *,
    size_px: int | Sequence[int] | None = None,
    batch: int = 8,
    device: str | int | torch.device | None = None,
) -> list[Features]:
    """Dense features of photographs: for each a grid of patch tokens, and its CLS token.

    Photographs are turned upright, resized bicubically and normalised. By default the ratio of
    their sides is kept, so that grids differ from photograph to photograph.

    Args:
        images: One photograph or several: paths, PIL images, or tensors "3 h w" or "B 3 h w" in
            RGB, of bytes or of floats in 0 … 1 (not normalised). Of an iterator `batch` are taken
            at a time.
        weights: What `croc.load_backbone` takes, or what it gave.
        size_px: A number is the longer side of what the network sees: the ratio is kept, both
            sides are rounded to whole patches. A pair (height, width) is that size for all, the
            ratio is not kept, and patches must divide it. By default the longer side is 448, or
            twice the network's own where that is less.
        batch: Photographs that are read at a time, and pass the network together where their
            sizes are the same.
        device: Where to compute; a number is that GPU. By default on a GPU if there is one, and
            a backbone that is given where it lies; with a device it is moved there.

    Returns:
        A list of `Features`, one a photograph, in their order. They stay in memory, 4 bytes a
            number: 28 × 28 patches of ViT-S (D = 384) take 1.2 MB, ten thousand such photographs
            12 GB. For more than fit, call it for a part at a time.

    Raises:
        UserError: In one line, for a path that cannot be read, a broken file, a tensor of another
            shape or range, and for weights, a size or a device that there cannot be.

    Examples:
        >>> import croc
        >>> from PIL import Image
        >>> photograph = Image.new("RGB", (300, 200), "olive")
        >>> (found,) = croc.features(photograph, "random:vit_tiny_patch16_224", size_px=96)
        >>> found
        Features(4 × 6 × 192, cls, of 300 × 200 px)
        >>> found.patches[found.patch_at(x=299, y=0)].shape
        torch.Size([192])
    """
    if batch < 1:
        raise UserError(f"batch must be at least 1: {batch}")
    backbone = _opened(weights)
    if device is not None or backbone is not weights:
        backbone.to(_find_device(device))
    sides = _default_px(backbone) if size_px is None else _sides(size_px)
    wanted, found = iter(_several(images)), []
    while some := list(islice(wanted, batch)):  # an iterator may open a file for each
        found += _describe(backbone, some, sides)
    return found


def _opened(weights: object) -> VitBackbone | ConvBackbone:
    if isinstance(weights, VitBackbone | ConvBackbone):
        return weights
    if isinstance(weights, torch.nn.Module):
        kind = type(weights).__name__
        raise UserError(f"weights are a run, a file, a name or what load_backbone gave: no {kind}")
    return load_backbone(name_of(weights))


def _several(images: object) -> Iterable[Any]:
    if isinstance(images, Tensor) and images.ndim == 4:
        return images
    one = isinstance(images, str | os.PathLike | Image.Image | Tensor)
    return images if isinstance(images, Iterable) and not one else [images]


def _find_device(asked: object) -> torch.device:
    if asked is None:
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(f"cuda:{asked}" if isinstance(asked, int) else cast(Any, asked))
    except (RuntimeError, TypeError):
        raise UserError(f"torch knows no device {str(asked)!r}: pass cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("torch sees no GPU here: pass device='cpu'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"torch sees no {device} here: GPUs count from 0 to {count - 1}")
    return device


def _sides(asked: object) -> int | tuple[int, int]:
    """The longer side, or height and width."""
    if isinstance(asked, Integral):
        return int(asked)
    if isinstance(asked, Sequence) and [isinstance(side, Integral) for side in asked] == [True] * 2:
        return int(asked[0]), int(asked[1])
    raise UserError(f"size_px is a whole number or a pair of them, height and width, not {asked!r}")


def _default_px(backbone: VitBackbone | ConvBackbone) -> int:
    if isinstance(backbone, ConvBackbone):
        return MOST_DEFAULT_PX
    own = backbone.vit.patch_embed.img_size
    return min(MOST_DEFAULT_PX, 2 * max(own)) if own else MOST_DEFAULT_PX


def _describe(
    backbone: VitBackbone | ConvBackbone, images: list[Any], size_px: int | tuple[int, int]
) -> list[Features]:
    """Those of one size pass the network together."""
    seen, sizes = [], []
    for image in images:  # one whole photograph in memory at a time
        pixels = _read(image)
        sizes.append((pixels.shape[1], pixels.shape[2]))
        seen.append(_resized(pixels, _fitting(sizes[-1], size_px, backbone)))
    found: dict[int, Features] = {}
    for shape in {pixels.shape for pixels in seen}:
        alike = [number for number, pixels in enumerate(seen) if pixels.shape == shape]
        patches, cls = _tokens(backbone, torch.stack([seen[number] for number in alike]))
        for place, number in enumerate(alike):
            own = None if cls is None else cls[place].clone()
            found[number] = Features(patches[place].clone(), own, sizes[number])
    return [found[number] for number in range(len(images))]


def _read(image: object) -> Tensor:
    """Its "3 h w" in bytes, or in floats of 0 … 1."""
    if isinstance(image, Tensor):
        return _checked(image)
    if isinstance(image, Image.Image):
        return torch.from_numpy(_upright(image)).permute(2, 0, 1)
    if isinstance(image, str | os.PathLike):
        return torch.from_numpy(read_photograph(os.fspath(image))).permute(2, 0, 1)
    kind = type(image).__name__
    raise UserError(f"a photograph is a path, a PIL image or a tensor, not of type {kind}")


def _checked(pixels: Tensor) -> Tensor:
    if pixels.ndim != 3 or pixels.shape[0] != 3 or not pixels.numel():
        shape = " × ".join(map(str, pixels.shape))
        raise UserError(f"a photograph as a tensor is 3 × height × width, not {shape}")
    if pixels.dtype == torch.uint8:
        return pixels.cpu()
    if not pixels.is_floating_point():
        raise UserError(f"a tensor of {pixels.dtype}: give bytes (torch.uint8) or floats in 0 … 1")
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= 1):  # so that nan is refused, too
        raise UserError(
            f"a tensor of floats must be in 0 … 1, not in {low:.3g} … {high:.3g}: give the "
            "photograph before it is normalised"
        )
    return pixels.cpu().float()


def _upright(image: Image.Image) -> UInt8[np.ndarray, "h w 3"]:
    """As a viewer shows it on a white page."""
    if image.mode.startswith(("I", "F")):
        raise UserError(f"a PIL image of mode {image.mode} has no colours of 8 bits: convert it")
    try:
        image = ImageOps.exif_transpose(image)
    except (OSError, SyntaxError, ValueError) as error:  # PIL decodes only now
        raise UserError(f"a PIL image cannot be decoded: {error}") from None
    if image.has_transparency_data:
        page = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(page, image.convert("RGBA"))
    return np.array(image.convert("RGB"))


def _fitting(
    size: tuple[int, int], asked: int | tuple[int, int], backbone: VitBackbone | ConvBackbone
) -> tuple[int, int]:
    """Height and width of what the network sees."""
    stride = backbone.stride_px
    if isinstance(asked, tuple):
        if min(asked) < 1:
            raise UserError(f"size_px must be positive: {asked}")
        for side in asked:
            check_fit(backbone, side, flag="size_px: images")
        return asked
    if asked < stride:
        raise UserError(f"size_px must be at least {stride}, one patch of {backbone.name}: {asked}")
    height, width = (max(1, round(side * asked / (max(size) * stride))) * stride for side in size)
    return height, width


def _resized(pixels: Tensor, size: tuple[int, int]) -> Float[Tensor, "3 _ _"]:
    pixels = pixels / 255 if pixels.dtype == torch.uint8 else pixels
    return F.interpolate(pixels[None], size=size, mode="bicubic", antialias=True)[0].clamp(0, 1)


def _tokens(
    backbone: VitBackbone | ConvBackbone, pixels: Float[Tensor, "B 3 h w"]
) -> tuple[Float[Tensor, "B rows columns D"], Float[Tensor, "B D"] | None]:
    images = normalise(pixels.to(next(backbone.parameters()).device))
    if isinstance(backbone, ConvBackbone):
        return backbone.features(images).permute(0, 2, 3, 1).float().cpu(), None
    vit, stride = backbone.vit, backbone.stride_px
    tokens = vit.forward_features(images.to(vit.patch_embed.proj.weight.dtype)).float().cpu()
    grid = (pixels.shape[2] // stride, pixels.shape[3] // stride)
    patches = tokens[:, vit.num_prefix_tokens :].unflatten(1, grid)
    return patches, None if vit.cls_token is None else tokens[:, 0]
