"""Reducing pictures of 8 bits: an antialiased bicubic filter, several times as fast as Pillow's."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from PIL import Image

# Large pictures are first made coarser by whole factors, as long as this many times the final
# size remains, so that the bicubic filter, not their blocks, makes the final pixels.
GAP = 2

# Pixels of a large picture that are worked on at once.
_BAND_PIXELS = 1 << 22

Size = tuple[int, int]
"""Width and height."""
Extent = tuple[float | int, float | int]
"""The same, where an earlier reduction has left a part of a pixel."""


def fitting_size(size: Size, canvas_px: int) -> Size:
    """The size at which the longer side fits the canvas; what fits already stays."""
    longer = max(size)
    if longer <= canvas_px:
        return size
    width, height = (max(1, round(side * canvas_px / longer)) for side in size)
    return width, height


def reduce_image(
    image: UInt8[np.ndarray, "h w 3"], canvas_px: int
) -> UInt8[np.ndarray, "rows columns 3"]:
    """The same picture if it fits the canvas, else reduced as `decode_image` would."""
    height, width, _ = image.shape
    if max(height, width) <= canvas_px:
        return image
    size = fitting_size((width, height), canvas_px)
    if max(_coarse_factors((width, height), size)) > 1:
        return reduce_picture(Image.fromarray(np.ascontiguousarray(image)), size, (width, height))
    return resample(np.require(image, requirements="W"), size, (width, height))


def reduce_picture(
    picture: Image.Image,
    size: Size,
    extent: Extent,
    to_rgb: Callable[[Image.Image], Image.Image] | None = None,
) -> UInt8[np.ndarray, "rows columns 3"]:
    """A picture as an RGB array of its own, reduced to `size`; `extent` as in `resample`.

    A large one is made RGB and coarser in bands, so that it is whole in memory only once.
    """
    to_rgb = to_rgb or Image.Image.copy
    if picture.size == size:
        return np.array(to_rgb(picture))
    across, down = _coarse_factors(extent, size)
    if max(across, down) == 1:
        return resample(np.array(to_rgb(picture)), size, extent)
    coarse = [np.array(to_rgb(band).reduce((across, down))) for band in bands(picture, down)]
    return resample(np.concatenate(coarse), size, (extent[0] / across, extent[1] / down))


def bands(picture: Image.Image, rows: int = 1) -> Iterator[Image.Image]:
    """The picture from top to bottom in parts of some million pixels, a multiple of `rows` high."""
    width, height = picture.size
    step = max(1, _BAND_PIXELS // (width * rows)) * rows
    for top in range(0, height, step):
        yield picture.crop((0, top, width, min(top + step, height)))


def resample(
    pixels: UInt8[np.ndarray, "h w 3"], size: Size, extent: Extent
) -> UInt8[np.ndarray, "rows columns 3"]:
    """The part (0, 0, *extent) of the picture, which is all of it but for a part of a pixel, at
    `size`."""
    # torch rounds height × scale down, and a product just below a whole number must not fall.
    scales = tuple(side / part * (1 + 1e-9) for side, part in zip(size, extent))
    planes = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    reduced = F.interpolate(planes, scale_factor=scales[::-1], mode="bicubic", antialias=True)
    return np.ascontiguousarray(reduced[0].permute(1, 2, 0).numpy())


def _coarse_factors(extent: Extent, size: Size) -> tuple[int, int]:
    across, down = (max(1, int(part / side / GAP)) for part, side in zip(extent, size))
    return across, down
