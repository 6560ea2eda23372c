"""The style of all pictures: clusters painted over a photograph, and rows of labeled tiles."""

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from croc.errors import UserError
from croc.plotting import PALETTE, verbatim

DPI = 160
TILE_IN, GAP_IN, LINE_IN = 1.6, 0.06, 0.14
LABEL_PT, TITLE_PT = 8.0, 10.0
TALLEST = 1.5  # largest ratio of a tile's height to its width
LEAST_PX = 320  # of a tile's longer side, so that edges and hatching are fine
OPACITY, HATCHING = 0.62, 0.08


def by_size(assignments: Float[Tensor, "M N K"]) -> Int64[Tensor, "K"]:
    """Rank of each cluster by the number of tokens that belong most to it; 0 is the largest."""
    sizes = assignments.flatten(0, 1).argmax(dim=-1).bincount(minlength=assignments.shape[-1])
    return sizes.argsort(descending=True, stable=True).argsort()


def paint(
    pixels: Float[Tensor, "M 3 h w"],
    assignments: Float[Tensor, "M N K"],
    valid: Bool[Tensor, "K"],
    grid: tuple[int, int],
    numbers: Int64[Tensor, "K"] | None = None,
    least_px: int = LEAST_PX,
) -> list[np.ndarray]:
    """Each view in gray, tinted with its clusters' colors; by default, the largest has the first.

    Assignments are upsampled bicubically. A pixel is hatched if the cluster that it belongs to
    most is not valid.
    """
    colors = PALETTE[(by_size(assignments) if numbers is None else numbers) % len(PALETTE)]
    scale = max(1.0, least_px / max(pixels.shape[-2:]))
    views = F.interpolate(pixels, scale_factor=scale, mode="bicubic").clamp(0, 1)
    return [
        to_array(blend(view, upsample(shares, grid, view), valid, colors))
        for view, shares in zip(views, assignments)
    ]


def blend(
    pixels: Float[Tensor, "3 h w"],
    shares: Float[Tensor, "K h w"],
    valid: Bool[Tensor, "K"],
    colors: Float[Tensor, "K 3"],
) -> Float[Tensor, "3 h w"]:
    """Colors mixed in proportion to the shares, over the gray picture at its own size."""
    tint = torch.einsum("khw,kc->chw", shares, colors)
    painted = (1 - OPACITY) * pixels.mean(dim=0) + OPACITY * tint
    pruned = shares.amax(dim=0) > (shares * valid[:, None, None]).amax(dim=0)
    rows, columns = (torch.arange(size) for size in pixels.shape[-2:])
    stripes = (rows[:, None] + columns) * 80 // max(pixels.shape[-2:]) % 5 == 0
    return torch.where(stripes & pruned, torch.tensor(HATCHING), painted).clamp(0, 1)


def upsample(
    values: Float[Tensor, "N K"], grid: tuple[int, int], like: Float[Tensor, "3 h w"]
) -> Float[Tensor, "K h w"]:
    """Each token's shares of the clusters, upsampled to a picture's size; they still sum to 1."""
    shares = values / values.sum(dim=-1, keepdim=True).clamp_min(1e-12)
    planes = shares.T.reshape(1, -1, *grid)
    soft = F.interpolate(planes, size=like.shape[-2:], mode="bicubic")[0].clamp(0)
    return soft / soft.sum(dim=0).clamp_min(1e-12)


def to_array(pixels: Float[Tensor, "3 h w"]) -> np.ndarray:
    return pixels.permute(1, 2, 0).numpy()


def tile_figure(
    rows: Sequence[Sequence[tuple[str, np.ndarray] | None]],
    title: str,
    width: float = TILE_IN,
    below: float = GAP_IN,
) -> tuple[Figure, list[list[Axes]]]:
    """Rows of pictures, each under its label, with some space below; a column of None is a gap, a
    row of None leaves room for a chart. Lengths are in inches."""
    wide = [1 if any(column) else 0.13 for column in zip_longest(*rows)]
    high, lines = [], 1.2
    for row in rows:
        tiles = [tile for tile in row if tile]
        high.append(max((min(TALLEST, len(t) / len(t[0])) for _, t in tiles), default=0.5))
        lines += max((len(label.splitlines()) for label, _ in tiles), default=2)
    size = (width * sum(wide), width * sum(high) + LINE_IN * lines + below * len(rows))
    figure = Figure(figsize=size, dpi=DPI)
    figure.set_layout_engine("constrained", w_pad=GAP_IN / 2, h_pad=GAP_IN / 2, wspace=0, hspace=0)
    figure.suptitle(
        verbatim(title) + "\n", x=GAP_IN / size[0], ha="left", fontsize=TITLE_PT, linespacing=0.5
    )
    ratios = {"width_ratios": wide, "height_ratios": high}
    drawn = figure.subplots(len(rows), len(wide), squeeze=False, **ratios)
    for row, all_axes in zip(rows, drawn):
        for tile, axes in zip_longest(row, all_axes):
            axes.set_axis_off()
            axes.set_anchor("NW")
            if tile:
                axes.set_title(tile[0], loc="left", fontsize=LABEL_PT, pad=3)
                is_small = len(tile[1]) < width * DPI
                axes.imshow(tile[1], interpolation="bicubic" if is_small else "auto")
    return figure, drawn.tolist()


def choose_heads(heads: Sequence[int] | None, count: int, most: int | None = None) -> list[int]:
    """The requested heads, without duplicates; by default all, or the first `most`."""
    chosen = list(dict.fromkeys(heads or range(min(count, most or count))))
    for head in chosen:
        if not 0 <= head < count:
            raise UserError(f"--heads {head}: the network has heads 0 to {count - 1}")
    return chosen
