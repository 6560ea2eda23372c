"""The pixels of the views on a GPU: `crop` and `apply_photometric` in three kernels.

`_crop` resamples, and jitters each image up to its contrast, which needs a mean of the whole.
`_color` does the rest of the jitter and the grayscale, and finishes the images without a blur.
`_blur` blurs and finishes the others. Between them the images are in float16, whose steps are at
most an eighth of those of the canvas.
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from croc.kernels.photometric import clamp, finish, gray, jitter
from croc.kernels.resampling import resample
from croc.method.photometric import PARAMETERS, Photometric

# A program computes ROWS × COLUMNS pixels, from DEEP_ROWS × DEEP_COLUMNS of the source at a time.
# With this number of registers, three programs share a multiprocessor. `arch` keeps Triton from
# using Hopper's wgmma, which does not suit products this small.
CROPPING = {"ROWS": 32, "COLUMNS": 64, "DEEP_ROWS": 16, "DEEP_COLUMNS": 64, "num_warps": 4}
BLURRING = {"ROWS": 32, "COLUMNS": 32, "DEEP_ROWS": 16, "DEEP_COLUMNS": 64, "num_warps": 4}
CROPPING, BLURRING = (sizes | {"maxnreg": 168, "arch": "sm80"} for sizes in (CROPPING, BLURRING))
COLORING = {"PIXELS": 1024, "num_warps": 4}


def augment(
    canvases: UInt8[Tensor, "B 3 S S"],
    boxes: Float[Tensor, "M B 4"],
    flips: Bool[Tensor, "M B"],
    colors: Photometric,
    view_px: int,
    radius_px: int,
    dtype: torch.dtype,
) -> Float[Tensor, "M B 3 {view_px} {view_px}"]:
    """The boxes of the canvases, augmented and normalized; `colors` as `interleave` gives them."""
    parameters = [getattr(colors, name) for name in PARAMETERS]
    return _augment(canvases, boxes, flips, parameters, view_px, radius_px, dtype)


def launch(
    canvases, boxes, flips, colors, view_px, radius_px, dtype,
    cropping=CROPPING, coloring=COLORING, blurring=BLURRING,
) -> Tensor:  # fmt: skip
    """Launch the three kernels, with the sizes and options above by default."""
    canvases, boxes, flips = canvases.contiguous(), boxes.contiguous(), flips.contiguous()
    *jitters, grayed, blurred, sigma, solarized = (x.contiguous() for x in colors)
    views, batch = flips.shape
    images, side, plane = views * batch, canvases.shape[-1], view_px * view_px
    tiles = _tiles(view_px, cropping)
    halfway = canvases.new_empty(images, 3, plane, dtype=torch.float16)
    sums = canvases.new_empty(images, tiles, dtype=torch.float32)
    finished = _empty(canvases, boxes, flips, colors, view_px, radius_px, dtype)
    sizes = batch, views, view_px
    with torch.cuda.device_of(canvases):
        programs: Any = _crop[(images * tiles,)]
        programs(canvases, boxes, flips, *jitters, halfway, sums, side, *sizes, **cropping)
        programs = _color[(images * triton.cdiv(plane, coloring["PIXELS"]),)]
        parameters = halfway, sums, *jitters, grayed, blurred, solarized, finished, tiles
        programs(*parameters, *sizes, triton.next_power_of_2(tiles), **coloring)
        programs = _blur[(images * _tiles(view_px, blurring),)]
        radius = min(radius_px, view_px - 1)
        programs(halfway, blurred, sigma, solarized, finished, radius, *sizes, **blurring)
    return finished


def _tiles(view_px: int, options: dict[str, Any]) -> int:
    return triton.cdiv(view_px, options["ROWS"]) * triton.cdiv(view_px, options["COLUMNS"])


def _empty(canvases, boxes, flips, colors, view_px, radius_px, dtype) -> Tensor:
    """Uninitialized outputs."""
    return canvases.new_empty(*flips.shape, 3, view_px, view_px, dtype=dtype)


# One operator to torch.compile, which need not look inside.
_augment = torch.library.custom_op(
    "croc::augment",
    launch,
    mutates_args=(),
    schema="(Tensor canvases, Tensor boxes, Tensor flips, Tensor[] colors, int view_px, "
    "int radius_px, ScalarType dtype) -> Tensor",
)
_augment.register_fake(_empty)


@triton.jit
@no_type_check
def _crop(
    canvases_at, boxes_at, flips_at, jittered_at, order_at, factors_at, hue_at, halfway_at, sums_at,
    side, batch, views, view_px,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEEP_ROWS: tl.constexpr, DEEP_COLUMNS: tl.constexpr,
):  # fmt: skip
    image, top, left = _tile(view_px, ROWS, COLUMNS)
    b, view = image // views, image % views * batch + image // views
    x, y = tl.load(boxes_at + 4 * view), tl.load(boxes_at + 4 * view + 1)
    width, height = tl.load(boxes_at + 4 * view + 2), tl.load(boxes_at + 4 * view + 3)
    rows, columns = (y, height, False), (x, width, tl.load(flips_at + view))
    source = canvases_at + 3 * b * side * side
    red, green, blue = resample(
        source, side, view_px, rows, columns, top, left,
        ROWS, COLUMNS, DEEP_ROWS, DEEP_COLUMNS, False,
    )  # fmt: skip
    red, green, blue = clamp(red / 255), clamp(green / 255), clamp(blue / 255)
    jitters = jittered_at, order_at, factors_at, hue_at
    red, green, blue = jitter(red, green, blue, jitters, image, 0.0, False)
    at, real = _pixels(halfway_at, image, top, left, view_px, ROWS, COLUMNS)
    _store(at, view_px, real, red, green, blue)
    light = tl.where(real, gray(red, green, blue), 0.0)
    tl.store(sums_at + tl.program_id(0), tl.sum(tl.sum(light, axis=1), axis=0))


@triton.jit
@no_type_check
def _color(
    halfway_at, sums_at, jittered_at, order_at, factors_at, hue_at,
    grayed_at, blurred_at, solarized_at, finished_at, tiles, batch, views, view_px,
    TILES: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    plane = view_px * view_px
    parts = tl.cdiv(plane, PIXELS)
    image = (tl.program_id(0) // parts).to(tl.int64)
    pixel = tl.program_id(0) % parts * PIXELS + tl.arange(0, PIXELS)
    real = pixel < plane
    at = halfway_at + 3 * image * plane + pixel
    red = tl.load(at, mask=real, other=0.0).to(tl.float32)
    green = tl.load(at + plane, mask=real, other=0.0).to(tl.float32)
    blue = tl.load(at + 2 * plane, mask=real, other=0.0).to(tl.float32)
    tile = tl.arange(0, TILES)
    mean = tl.sum(tl.load(sums_at + image * tiles + tile, mask=tile < tiles, other=0.0), axis=0)
    jitters = jittered_at, order_at, factors_at, hue_at
    red, green, blue = jitter(red, green, blue, jitters, image, mean / plane, True)
    if tl.load(grayed_at + image):
        red = gray(red, green, blue)
        green, blue = red, red
    if tl.load(blurred_at + image):
        _store(at, view_px, real, red, green, blue)
    else:
        out = finished_at + 3 * (image % views * batch + image // views) * plane + pixel
        red, green, blue = finish(red, green, blue, tl.load(solarized_at + image))
        _store(out, view_px, real, red, green, blue)


@triton.jit
@no_type_check
def _blur(
    halfway_at, blurred_at, sigma_at, solarized_at, finished_at, radius, batch, views, view_px,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEEP_ROWS: tl.constexpr, DEEP_COLUMNS: tl.constexpr,
):  # fmt: skip
    image, top, left = _tile(view_px, ROWS, COLUMNS)
    if tl.load(blurred_at + image):
        line = tl.load(sigma_at + image), radius, False
        source = halfway_at + 3 * image * view_px * view_px
        red, green, blue = resample(
            source, view_px, view_px, line, line, top, left,
            ROWS, COLUMNS, DEEP_ROWS, DEEP_COLUMNS, True,
        )  # fmt: skip
        view = image % views * batch + image // views
        at, real = _pixels(finished_at, view, top, left, view_px, ROWS, COLUMNS)
        red, green, blue = finish(red, green, blue, tl.load(solarized_at + image))
        _store(at, view_px, real, red, green, blue)


@triton.jit
@no_type_check
def _tile(view_px, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Image, first row and first column of a program; an image's programs follow each other."""
    across = tl.cdiv(view_px, COLUMNS)
    tiles = tl.cdiv(view_px, ROWS) * across
    tile = tl.program_id(0) % tiles
    return (tl.program_id(0) // tiles).to(tl.int64), tile // across * ROWS, tile % across * COLUMNS


@triton.jit
@no_type_check
def _pixels(images_at, image, top, left, view_px, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Addresses of the tile's pixels in the first channel, and which of them are in the view."""
    row, column = top + tl.arange(0, ROWS)[:, None], left + tl.arange(0, COLUMNS)
    at = images_at + 3 * image * view_px * view_px + row * view_px + column
    return at, (row < view_px) & (column < view_px)


@triton.jit
@no_type_check
def _store(at, view_px, real, red, green, blue):
    plane = view_px * view_px
    tl.store(at, red, mask=real)
    tl.store(at + plane, green, mask=real)
    tl.store(at + 2 * plane, blue, mask=real)
