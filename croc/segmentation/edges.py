"""Class scores that follow an image's edges: the guided filter of He, Sun and Tang, 2010."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from croc.eval.features import upsample
from croc.segmentation.segmenter import MAX_LOGITS, argmax_in_chunks

WORK_PX = 224
"""The longer side at which the filter's coefficients are computed."""
RADIUS, EPSILON = 8, 1e-3


def follow_edges(
    scores: Float[Tensor, "classes rows columns"],
    image: UInt8[np.ndarray, "H W 3"],
    radius: int = RADIUS,
    epsilon: float = EPSILON,
) -> UInt8[np.ndarray, "H W"]:
    """The class of the highest filtered score at each pixel.

    for every window of the reduced image and every class: the affine function of the color
        that fits the class's interpolated score best, with `epsilon` on its squared slope
    for every pixel and class: the mean of the functions of all windows that contain it, evaluated
        at the pixel's color

    The functions are interpolated to the image's own size (He and Sun, 2015).
    """
    height, width = image.shape[:2]
    scale = WORK_PX / max(height, width)
    small = (max(1, round(height * scale)), max(1, round(width * scale)))
    colors = torch.from_numpy(image).to(scores.device).permute(2, 0, 1).float() / 255
    guide = F.interpolate(colors[None], size=small, mode="bilinear", antialias=True)[0]
    sides = [min(radius, (side - 1) // 2) for side in small]
    wide = upsample(scores[None].float(), small)[0]

    def mean(planes: Float[Tensor, "n h w"]) -> Float[Tensor, "n h w"]:
        """Over each window, rows first: cut off at the border."""
        (top, left), pool = sides, partial(F.avg_pool2d, stride=1, count_include_pad=False)
        rows = pool(planes, (2 * top + 1, 1), padding=(top, 0))
        return pool(rows, (1, 2 * left + 1), padding=(0, left))

    center, level = mean(guide), mean(wide)
    products = (guide[:, None] * guide[None]).flatten(0, 1)
    covariance = mean(products).unflatten(0, (3, 3)) - center[:, None] * center[None]
    covariance = covariance.permute(2, 3, 0, 1) + epsilon * torch.eye(3, device=scores.device)
    inverse = torch.linalg.inv(covariance)
    classes_per_chunk = max(1, MAX_LOGITS // (4 * height * width))

    def chunks() -> Iterator[Tensor]:
        for chunk, base in zip(wide.split(classes_per_chunk), level.split(classes_per_chunk)):
            joint = mean((chunk[:, None] * guide[None]).flatten(0, 1)).unflatten(0, (-1, 3))
            joint = joint - base[:, None] * center[None]
            slope = torch.einsum("hwij,kjhw->kihw", inverse, joint)
            offset = base - (slope * center).sum(dim=1)
            slope = mean(slope.flatten(0, 1)).unflatten(0, (-1, 3))
            slope = upsample(slope, (height, width))
            offset = upsample(mean(offset)[:, None], (height, width))[:, 0]
            yield torch.einsum("kihw,ihw->khw", slope, colors) + offset

    return argmax_in_chunks(chunks())
