"""Resampling and blur on a GPU, as `_resampling` and `_blur_matrix` define them.

Computes weights · source · weights, but only in the blocks around the diagonal. The weights are not
stored in global memory. They are rounded to float16, for tensor cores, then normalized to sum 1.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def resample(
    source_at, side, size, rows, columns, top, left,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    DEEP_ROWS: tl.constexpr, DEEP_COLUMNS: tl.constexpr, BLUR: tl.constexpr,
):  # fmt: skip
    """A tile of each channel. `rows` and `columns` describe the weights along each axis: start,
    length and whether reversed for a crop; σ, radius and an unused value for a blur."""
    # Beyond the view, its last pixel is computed again, so that no weights sum to 0.
    row = tl.minimum(top + tl.arange(0, ROWS), size - 1)
    column = tl.minimum(left + tl.arange(0, COLUMNS), size - 1)
    first_row, end_row = _reach(rows, top, tl.minimum(top + ROWS, size) - 1, size, BLUR)
    first, end = _reach(columns, left, tl.minimum(left + COLUMNS, size) - 1, size, BLUR)
    red = tl.zeros((ROWS, COLUMNS), tl.float32)
    green, blue, sums = red, red, tl.zeros((COLUMNS,), tl.float32)
    for x in range(first // 16 * 16, end, DEEP_COLUMNS):  # in steps that are loaded at once
        from_column = tl.multiple_of(x, 16) + tl.arange(0, DEEP_COLUMNS)
        across = _weights(columns, column, from_column[:, None], size, BLUR)
        sums += tl.sum(across.to(tl.float32), axis=0)
        red_rows = tl.zeros((ROWS, DEEP_COLUMNS), tl.float32)
        green_rows, blue_rows = red_rows, red_rows
        total = tl.zeros((ROWS, DEEP_ROWS), tl.float32)
        for y in range(first_row, end_row, DEEP_ROWS):
            from_row = y + tl.arange(0, DEEP_ROWS)
            down = _weights(rows, row[:, None], from_row, size, BLUR)
            total += down
            at = source_at + from_row[:, None] * side + from_column
            real = (from_row < side)[:, None] & (from_column < side)
            plane = side * side
            red_rows = tl.dot(down, _load(at, real), red_rows)
            green_rows = tl.dot(down, _load(at + plane, real), green_rows)
            blue_rows = tl.dot(down, _load(at + 2 * plane, real), blue_rows)
        norm = 1 / tl.sum(total, axis=1)[:, None]
        red = tl.dot((red_rows * norm).to(tl.float16), across, red)
        green = tl.dot((green_rows * norm).to(tl.float16), across, green)
        blue = tl.dot((blue_rows * norm).to(tl.float16), across, blue)
    norm = 1 / sums
    return red * norm, green * norm, blue * norm


@triton.jit
@no_type_check
def _load(at, real):
    return tl.load(at, mask=real, other=0).to(tl.float16)


@triton.jit
@no_type_check
def _reach(line, first, last, size, BLUR: tl.constexpr):
    """The range of the source in which the pixels from first to last have weights."""
    if BLUR:
        _sigma, radius, _reverse = line
        return tl.maximum(first - radius, 0), tl.minimum(last + radius + 1, size)
    start, length, _reverse = line
    one, two = _center(line, first, size), _center(line, last, size)
    support = 2 * tl.maximum(length / size, 1.0)
    low = tl.maximum(tl.minimum(one, two) - support - 1, start)
    high = tl.minimum(tl.maximum(one, two) + support + 1, start + length)
    return low.to(tl.int32), high.to(tl.int32)


@triton.jit
@no_type_check
def _center(line, pixel, size):
    """The position of a view's pixel on the canvas."""
    start, length, reverse = line
    view = pixel + 0.5
    return start + length / size * tl.where(reverse, size - view, view)


@triton.jit
@no_type_check
def _weights(line, to, source, size, BLUR: tl.constexpr):
    """As in `_blur_matrix` and `_resampling`."""
    if BLUR:
        sigma, radius, _reverse = line
        last = size - 1
        weights = _bell(tl.abs(to - source), sigma, radius)
        weights += tl.where(source > 0, _bell(to + source, sigma, radius), 0.0)
        weights += tl.where(source < last, _bell(2 * last - to - source, sigma, radius), 0.0)
        weights = tl.where(source < size, weights, 0.0)
    else:
        start, length, _reverse = line
        pixel = source + 0.5
        sharpness = 1 / tl.maximum(length / size, 1.0)
        x = tl.abs(pixel * sharpness - _center(line, to, size) * sharpness)
        outer, inner = tl.maximum(2 - x, 0.0), tl.maximum(1 - x, 0.0)
        weights = inner * inner * (2 * x - 1) - 0.5 * outer * outer * (x - 1)
        weights = tl.where((pixel > start) & (pixel < start + length), weights, 0.0)
    return weights.to(tl.float16)


@triton.jit
@no_type_check
def _bell(distance, sigma, radius):
    sharpness = -0.5 / (sigma * sigma)
    return tl.where(distance <= radius, tl.exp(distance * distance * sharpness), 0.0)
