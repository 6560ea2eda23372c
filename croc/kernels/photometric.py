"""Color augmentation on a GPU, equivalent to method/photometric.py; used by kernels/views.py."""

from typing import no_type_check

import triton
import triton.language as tl

from croc.method.photometric import (
    CONTRAST,
    HUE,
    IMAGENET_MEAN,
    IMAGENET_STD,
    SATURATION,
    SOLARIZE_THRESHOLD,
)

IS_CONTRAST, IS_SATURATION, IS_HUE = (tl.constexpr(x) for x in (CONTRAST, SATURATION, HUE))
MEAN, STD = tl.constexpr(IMAGENET_MEAN), tl.constexpr(IMAGENET_STD)
THRESHOLD = tl.constexpr(SOLARIZE_THRESHOLD)


@triton.jit
@no_type_check
def jitter(red, green, blue, jitters, image, mean, FROM_CONTRAST: tl.constexpr):
    """The operations before the contrast in the image's order, or the contrast and those after."""
    jittered_at, order_at, factors_at, hue_at = jitters
    if tl.load(jittered_at + image):
        reached = 0
        for slot in range(4):
            operation = tl.load(order_at + 4 * image + slot)
            reached += (operation == IS_CONTRAST).to(tl.int32)
            if reached == FROM_CONTRAST:
                if operation == IS_HUE:
                    red, green, blue = _turn(red, green, blue, tl.load(hue_at + image))
                else:
                    factor = tl.load(factors_at + 3 * image + operation)
                    target = tl.where(operation == IS_SATURATION, gray(red, green, blue), 0.0)
                    target = tl.where(operation == IS_CONTRAST, mean, target) * (1 - factor)
                    red = clamp(red * factor + target)
                    green = clamp(green * factor + target)
                    blue = clamp(blue * factor + target)
    return red, green, blue


@triton.jit
@no_type_check
def _turn(red, green, blue, turns):
    """As in `adjust_hue`."""
    largest = tl.maximum(tl.maximum(red, green), blue)
    spread = largest - tl.minimum(tl.minimum(red, green), blue)
    sixths = tl.where(largest == green, blue - red, red - green)
    sixths = tl.where(largest == red, green - blue, sixths) / tl.maximum(spread, 1e-12)
    start = tl.where(largest == red, 0.0, tl.where(largest == green, 2.0, 4.0))
    sixths += start + 6 * turns
    sixths -= 6 * tl.floor(sixths / 6)
    red = largest - spread * clamp(2 - tl.abs(sixths - 3))
    green = largest - spread * clamp(tl.abs(sixths - 2) - 1)
    return red, green, largest - spread * clamp(tl.abs(sixths - 4) - 1)


@triton.jit
@no_type_check
def gray(red, green, blue):
    return 0.2989 * red + 0.587 * green + 0.114 * blue


@triton.jit
@no_type_check
def clamp(values):
    return tl.minimum(tl.maximum(values, 0.0), 1.0)


@triton.jit
@no_type_check
def finish(red, green, blue, solarize):
    """Solarize where requested, and normalize."""
    red = (_solarize(red, solarize) - MEAN[0]) / STD[0]
    green = (_solarize(green, solarize) - MEAN[1]) / STD[1]
    blue = (_solarize(blue, solarize) - MEAN[2]) / STD[2]
    return red, green, blue


@triton.jit
@no_type_check
def _solarize(values, apply):
    return tl.where(apply & (values >= THRESHOLD), 1 - values, values)
