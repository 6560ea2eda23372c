"""Colors and textures of patches: a baseline without a network."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD

# CIE's XYZ of the linear sRGB primaries, each divided by that of the white point D65.
XYZ = (
    (0.4124 / 0.9505, 0.3576 / 0.9505, 0.1805 / 0.9505),
    (0.2126, 0.7152, 0.0722),
    (0.0193 / 1.0890, 0.1192 / 1.0890, 0.9505 / 1.0890),
)


def color_features(
    images: Float[Tensor, "B 3 h w"], patch_px: int
) -> Float[Tensor, "B 40 rows columns"]:
    """Mean and deviation, in each patch and in the 3 × 3 patches around it, of ten maps: R, G, B,
    L, a, b (CIELAB), and the absolute differences of L along both axes and both diagonals.

    The images are normalized by ImageNet's mean and deviation.
    """
    images = images.float()
    mean, std = (images.new_tensor(x)[:, None, None] for x in (IMAGENET_MEAN, IMAGENET_STD))
    rgb = (images * std + mean).clamp(0, 1)
    lab = cielab(rgb) / 50  # about as large as the others
    padded = F.pad(lab[:, :1], (1, 1, 1, 1), mode="replicate")
    here = padded[:, :, 1:-1, 1:-1]
    beside = (
        padded[:, :, 1:-1, 2:],
        padded[:, :, 2:, 1:-1],
        padded[:, :, 2:, 2:],
        padded[:, :, 2:, :-2],
    )
    maps = torch.cat([rgb, lab, *((other - here).abs() for other in beside)], dim=1)
    first, second = (F.avg_pool2d(x, patch_px, ceil_mode=True) for x in (maps, maps.square()))
    around = [F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) for x in (first, second)]
    pairs = ((first, second), around)
    return torch.cat(
        [x for m, s in pairs for x in (m, (s - m.square()).clamp_min(0).sqrt())], dim=1
    )


def cielab(rgb: Float[Tensor, "B 3 h w"]) -> Float[Tensor, "B 3 h w"]:
    """L in 0 … 100, a and b, from sRGB in 0 … 1."""
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = torch.einsum("xc,bchw->bxhw", rgb.new_tensor(XYZ), linear)
    root = torch.where(
        xyz > (6 / 29) ** 3, xyz.clamp_min(1e-9) ** (1 / 3), xyz * 841 / 108 + 4 / 29
    )
    x, y, z = root.unbind(1)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], dim=1)
