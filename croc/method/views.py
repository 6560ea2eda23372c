"""From canvases to views: crop boxes, resampling, patch centers.

The boxes have the distribution of torchvision's RandomResizedCrop; the resampling equals its
antialiased bicubic `resized_crop`. Both are batched and never wait for the device.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from croc import kernels
from croc.config import ViewsConfig
from croc.method.photometric import (
    Photometric,
    apply_photometric,
    blur_radius_px,
    draw_photometric,
    interleave,
    normalize,
)
from croc.method.randomness import uniform
from croc.method.types import Canvases, Views

VIEWS = 2
ATTEMPTS = 10


@dataclass(frozen=True)
class Crops:
    """The crop box of each view on its canvas."""

    boxes: Float[Tensor, "M B 4"]
    """x0, y0, width, height: whole pixels of the canvas."""
    flips: Bool[Tensor, "M B"]
    """Whether the view is mirrored, left to right."""


def make_views(
    canvases: Canvases,
    config: ViewsConfig,
    patch_px: int,
    dtype: torch.dtype = torch.float32,
    views: int = VIEWS,
) -> Views:
    """Augmented crops of each image, normalized, with the positions of their patches."""
    sizes, keys = canvases.sizes, canvases.sample_keys
    with torch.autocast(canvases.pixels.device.type, enabled=False):
        crops = draw_crops(sizes, keys, config, views)
        colors = interleave([draw_photometric(keys, view, config) for view in range(views)])
        return Views(
            pixels=_make_pixels(canvases.pixels, crops, colors, config, dtype),
            positions=patch_centers(crops.boxes, crops.flips, sizes, config.size_px, patch_px),
        )


def _make_pixels(
    canvases: UInt8[Tensor, "B 3 S S"],
    crops: Crops,
    colors: Photometric,
    config: ViewsConfig,
    dtype: torch.dtype,
) -> Float[Tensor, "M B 3 h w"]:
    radius_px, kernel = blur_radius_px(config), kernels.find("views", canvases)
    if kernel is not None:
        return kernel.augment(
            canvases, crops.boxes, crops.flips, colors, config.size_px, radius_px, dtype
        )
    # In the order of `crop`, image by image, so nothing is copied.
    images = crop(canvases, crops, config.size_px).transpose(0, 1)
    changed = apply_photometric(images.flatten(0, 1), colors, radius_px)
    return normalize(changed.unflatten(0, images.shape[:2]).transpose(0, 1)).to(dtype)


def draw_crops(
    sizes: Int64[Tensor, "B 2"], keys: Int64[Tensor, "B"], config: ViewsConfig, views: int = VIEWS
) -> Crops:
    """The first of ten random boxes that fits into the image, or else the largest central one.

    Computed in float64, as torchvision does on the host, so that roundings agree.
    """
    size = sizes.flip(-1).double()
    numbers = uniform(keys, "crop", views, 2 * ATTEMPTS + 3).double().transpose(0, 1)
    shapes, places, flips = numbers.split([2 * ATTEMPTS, 2, 1], dim=-1)
    extents = _attempts(shapes.unflatten(-1, (ATTEMPTS, 2)), size, config)
    fits = ((extents > 0) & (extents <= size[:, None])).all(dim=-1)
    first = fits.int().argmax(dim=-1)[..., None, None].expand(-1, -1, 1, 2)
    has_fit = fits.any(dim=-1, keepdim=True)
    extent = torch.where(has_fit, extents.gather(2, first).squeeze(2), _fallback(size, config))
    room = size - extent
    corner = torch.where(has_fit, torch.minimum(places * (room + 1), room), room / 2).floor()
    boxes = torch.cat([corner, extent], dim=-1).float()
    return Crops(boxes=boxes, flips=flips.squeeze(-1) < config.flip)


def _attempts(
    numbers: Float[Tensor, "M B A 2"], size: Float[Tensor, "B 2"], config: ViewsConfig
) -> Float[Tensor, "M B A 2"]:
    """Widths and heights with a uniform share of the area and a log-uniform ratio."""
    least, most = config.scale
    narrow, wide = (math.log(ratio) for ratio in config.ratio)
    area = size.prod(dim=-1)[:, None] * (least + (most - least) * numbers[..., 0])
    ratio = torch.exp(narrow + (wide - narrow) * numbers[..., 1])
    return torch.stack([area * ratio, area / ratio], dim=-1).sqrt().round()


def _fallback(size: Float[Tensor, "B 2"], config: ViewsConfig) -> Float[Tensor, "B 2"]:
    """The whole image, or as much of it as the limits of the aspect ratio allow."""
    narrowest, widest = config.ratio
    width, height = size.unbind(dim=-1)
    ratio = width / height
    return torch.stack(
        [
            torch.where(ratio > widest, (height * widest).round(), width),
            torch.where(ratio < narrowest, (width / narrowest).round(), height),
        ],
        dim=-1,
    ).clamp_min(1)


def crop(
    pixels: UInt8[Tensor, "B 3 S S"], crops: Crops, view_px: int
) -> Float[Tensor, "M B 3 {view_px} {view_px}"]:
    """Antialiased bicubic resampling of each image's boxes, flipped where needed, in 0 … 1.

    Two batched matrix products: the rows of both views from the canvas, then the columns.
    """
    batch, channels, _, side = pixels.shape
    x, y, width, height = crops.boxes.transpose(0, 1).unbind(dim=-1)
    unflipped = torch.zeros_like(crops.flips).mT
    to_rows = _resampling(y, height, unflipped, view_px, side).flatten(1, 2)
    to_columns = _resampling(x, width, crops.flips.mT, view_px, side).flatten(0, 1)
    # Rows outermost, so that each product takes all channels at once. The canvas stays in
    # 0 … 255, which TF32 holds exactly, until the end.
    canvas = pixels.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    rows = torch.bmm(to_rows, canvas.view(batch, side, channels * side))
    views = torch.bmm(rows.view(-1, view_px * channels, side), to_columns.mT)
    views = views.mul_(1 / 255).clamp_(0, 1).view(batch, -1, view_px, channels, view_px)
    return views.permute(1, 0, 3, 2, 4)


def _resampling(
    start: Float[Tensor, "B M"],
    length: Float[Tensor, "B M"],
    reverse: Bool[Tensor, "B M"],
    view_px: int,
    side: int,
) -> Float[Tensor, "B M {view_px} {side}"]:
    """Weights of the pixels in a line of the canvas for those of a view that covers a part of it.

    The cubic kernel is widened by the scale when downscaling, cut off at the ends of the part, and
    normalized to a sum of 1.
    """
    start, length = start[..., None], length[..., None]
    view = torch.arange(view_px, device=start.device) + 0.5
    view = torch.where(reverse[..., None], view_px - view, view)
    pixel = torch.arange(side, device=start.device) + 0.5
    scale = length / view_px
    inside = (pixel > start) & (pixel < start + length)
    center = start + scale * view
    offset = (pixel - center[..., None]).div_(scale.clamp_min(1)[..., None])
    weights = _cubic(offset.abs_()).mul_(inside[..., None, :])
    return weights.div_(weights.sum(dim=-1, keepdim=True))


def _cubic(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Keys' kernel with a = -1/2 at a distance x: 1.5 x³ - 2.5 x² + 1 up to 1, from there
    -0.5 x³ + 2.5 x² - 4 x + 2 up to 2, written as the outer piece and what the inner adds."""
    outer = (2 - x).clamp_(min=0).square_().mul_(x - 1)
    inner = (1 - x).clamp_(min=0).square_().mul_(2 * x - 1)
    return inner.sub_(outer, alpha=0.5)


def patch_centers(
    boxes: Float[Tensor, "M B 4"],
    flips: Bool[Tensor, "M B"],
    sizes: Int64[Tensor, "B 2"],
    view_px: int,
    patch_px: int,
) -> Float[Tensor, "M B N 2"]:
    """(x, y) of each patch's center, row by row, in image coordinates: the longer side is 1."""
    grid = view_px // patch_px
    share = (torch.arange(grid, device=boxes.device) + 0.5) * (patch_px / view_px)
    across = torch.where(flips[..., None], 1 - share, share)
    longer = sizes.amax(dim=-1)[:, None]
    x = (boxes[..., 0:1] + boxes[..., 2:3] * across) / longer
    y = (boxes[..., 1:2] + boxes[..., 3:4] * share) / longer
    shape = (*boxes.shape[:2], grid, grid)
    centers = [x[:, :, None, :].expand(shape), y[:, :, :, None].expand(shape)]
    return torch.stack(centers, dim=-1).flatten(2, 3)
