"""Class scores that follow an image's edges: the guided filter of He, Sun and Tang, 2010."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from croc.eval.features import upsample
from croc.segmentation.segmenter import upsample_in_bands

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
    joint = mean((wide[:, None] * guide[None]).flatten(0, 1)).unflatten(0, (-1, 3))
    joint = joint - level[:, None] * center[None]
    slope = torch.einsum("hwij,kjhw->kihw", torch.linalg.inv(covariance), joint)
    offset = level - (slope * center).sum(dim=1)
    functions = mean(torch.cat([slope.flatten(0, 1), offset]))
    classes = torch.empty((height, width), dtype=torch.uint8, device=scores.device)
    for rows, band in upsample_in_bands(functions, (height, width)):
        slopes, offsets = band.split([3 * len(scores), len(scores)])
        by_color = (slopes.unflatten(0, (-1, 3)) * colors[:, rows]).sum(dim=1)
        classes[rows] = (by_color + offsets).max(dim=0).indices
    return classes.cpu().numpy()
