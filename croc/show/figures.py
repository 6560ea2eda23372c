"""Pictures of clusters over photographs."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from torch import Tensor

from croc.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.types import Clusters, Views

# Okabe and Ito's colours, which colour-blind readers can tell apart, then four in between.
PALETTE = (
    torch.tensor(
        [
            (230, 159, 0),
            (86, 180, 233),
            (0, 158, 115),
            (240, 228, 66),
            (0, 114, 178),
            (213, 94, 0),
            (204, 121, 167),
            (250, 250, 250),
            (120, 94, 240),
            (140, 86, 75),
            (148, 190, 60),
            (40, 40, 40),
        ]
    )
    / 255.0
)


def cluster_figure(views: Views, clusters: Clusters, path: Path, title: str) -> None:
    """Rows: the views of each image as the network saw them; columns: the heads.

    A cluster has one colour in all views of an image; one that a view lacks is hatched.
    """
    pixels = unnormalise(views.pixels)
    count, images = pixels.shape[:2]
    heads = clusters.valid.shape[1]
    figure = Figure(figsize=(1.6 * (heads + 1), 1.66 * images * count + 0.7), dpi=110)
    axes = figure.subplots(images * count, heads + 1, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for image in range(images):
        for view in range(count):
            row = axes[image * count + view]
            row[0].imshow(to_array(pixels[view, image]))
            for head in range(heads):
                assignments = clusters.assignments[view, image, head]
                painted = paint(pixels[view, image], assignments, clusters.valid[image, head])
                row[head + 1].imshow(to_array(painted))
                if view == 0:
                    kept = int(clusters.valid[image, head].sum())
                    chosen = int(clusters.count[image, head])
                    row[head + 1].set_title(f"K {chosen}, {kept} shared", fontsize=7, pad=2)
    for head, axis in enumerate(axes[0, 1:]):
        axis.text(0.5, 1.2, f"head {head + 1}", transform=axis.transAxes, ha="center", fontsize=8)
    figure.suptitle(title, fontsize=9)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=1 - 0.6 / figure.get_figheight())
    figure.subplots_adjust(wspace=0.04, hspace=0.14)
    figure.savefig(path)


def paint(
    pixels: Float[Tensor, "3 h w"], assignments: Float[Tensor, "N K"], valid: Bool[Tensor, "K"]
) -> Float[Tensor, "3 h w"]:
    """The view in gray under its clusters' colours, assignments upsampled bicubically."""
    side = round(assignments.shape[0] ** 0.5)
    grid = assignments.T.reshape(1, -1, side, side)
    shape = pixels.shape[-2:]
    soft = F.interpolate(grid, size=shape, mode="bicubic", align_corners=False)[0].clamp(0)
    colours = PALETTE[torch.arange(len(valid)) % len(PALETTE)]
    tint = torch.einsum("khw,kc->chw", soft / soft.sum(dim=0).clamp_min(1e-6), colours)
    pruned = ~valid[soft.argmax(dim=0)]
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")
    stripes = pruned & ((rows + columns) * 12 // max(shape) % 2 == 0)
    painted = 0.45 * pixels.mean(dim=0) + 0.55 * tint
    return torch.where(stripes, painted * 0.35, painted).clamp(0, 1)


def unnormalise(pixels: Float[Tensor, "M B 3 h w"]) -> Float[Tensor, "M B 3 h w"]:
    mean, std = (torch.tensor(v)[:, None, None] for v in (IMAGENET_MEAN, IMAGENET_STD))
    return (pixels.cpu() * std + mean).clamp(0, 1)


def to_array(pixels: Float[Tensor, "3 h w"]) -> np.ndarray:
    return pixels.permute(1, 2, 0).numpy()
