"""Pictures of clusters over photographs."""

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from torch import Tensor

from croc.photometric import unnormalise
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
    """For each image, rows: its views as the network saw them; columns: the heads.

    A cluster has one colour in all views of an image; one that a view lacks is hatched.
    """
    pixels = unnormalise(views.pixels.cpu())
    count, images = pixels.shape[:2]
    heads = clusters.valid.shape[1]
    columns = 2 if heads <= 3 and images > 1 else 1  # narrow blocks stand side by side
    rows = math.ceil(images / columns)
    width, height = 1.7 * (heads + 1), 1.7 * count + 0.45
    figure = Figure(figsize=(columns * width, rows * height + 0.3), dpi=110)
    blocks = figure.subfigures(rows, columns, squeeze=False).flat
    for image, block in zip(range(images), blocks):
        axes = block.subplots(count, heads + 1, squeeze=False)
        for view, row in enumerate(axes):
            row[0].imshow(to_array(pixels[view, image]))
            for head, axis in enumerate(row[1:]):
                assignments = clusters.assignments[view, image, head]
                painted = paint(pixels[view, image], assignments, clusters.valid[image, head])
                axis.imshow(to_array(painted))
        for head, axis in enumerate(axes[0, 1:]):
            chosen, kept = clusters.count[image, head], clusters.valid[image, head].sum()
            axis.set_title(f"head {head + 1}: K {chosen}, {kept} shared", fontsize=7, pad=3)
        for axis in axes.flat:
            axis.set_axis_off()
        block.subplots_adjust(
            left=0.01, right=0.99, bottom=0.01, top=0.92, wspace=0.04, hspace=0.04
        )
    figure.text(0.006, 1 - 0.18 / figure.get_figheight(), title, fontsize=9)
    figure.savefig(path)


def paint(
    pixels: Float[Tensor, "3 h w"], assignments: Float[Tensor, "N K"], valid: Bool[Tensor, "K"]
) -> Float[Tensor, "3 _ _"]:
    """The view in gray under its clusters' colours, assignments upsampled bicubically.

    Bicubic interpolation of the pixels too where they are few, so that the hatching is fine.
    """
    side = round(assignments.shape[0] ** 0.5)
    shape = [max(256, size) for size in pixels.shape[-2:]]
    pixels = F.interpolate(pixels[None], size=shape, mode="bicubic")[0].clamp(0, 1)
    grid = assignments.T.reshape(1, -1, side, side)
    soft = F.interpolate(grid, size=shape, mode="bicubic")[0].clamp(0)
    colours = PALETTE[torch.arange(len(valid)) % len(PALETTE)]
    tint = torch.einsum("khw,kc->chw", soft / soft.sum(dim=0).clamp_min(1e-6), colours)
    painted = 0.4 * pixels.mean(dim=0) + 0.6 * tint
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")
    stripes = (rows + columns) * 64 // max(shape) % 4 == 0
    pruned = ~valid[soft.argmax(dim=0)]
    return torch.where(stripes & pruned, torch.tensor(0.1), painted).clamp(0, 1)


def to_array(pixels: Float[Tensor, "3 h w"]) -> np.ndarray:
    return pixels.permute(1, 2, 0).numpy()
