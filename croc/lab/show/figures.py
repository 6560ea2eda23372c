"""The style of all pictures: clusters painted over a photograph, and tiles placed in inches."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from croc.errors import UserError
from croc.plotting import PALETTE

DPI = 160
TILE_IN, GAP_IN, LINE_IN, TITLE_IN = 1.6, 0.06, 0.21, 0.34
LABEL_PT, TITLE_PT = 8.0, 10.0
TALLEST = 1.5  # largest ratio of a tile's height to its width
LEAST_PX = 320  # of a tile's longer side, so that edges and hatching are fine
OPACITY, HATCHING = 0.62, 0.08
Tile = tuple[str, Tensor]
"""A label of some lines, and a picture "3 h w"."""


def by_size(assignments: Float[Tensor, "M N K"]) -> Int64[Tensor, "K"]:
    """Rank of each cluster by its number of tokens; 0 is the largest."""
    return sizes(assignments).argsort(descending=True, stable=True).argsort()


def sizes(assignments: Float[Tensor, "M N K"]) -> Int64[Tensor, "K"]:
    """How many tokens of all views belong most to each cluster."""
    strongest = assignments.flatten(0, 1).argmax(dim=-1)
    return strongest.bincount(minlength=assignments.shape[-1])


def paint(
    pixels: Float[Tensor, "3 h w"],
    assignments: Float[Tensor, "N K"],
    valid: Bool[Tensor, "K"],
    grid: tuple[int, int],
    colours: Float[Tensor, "K 3"],
) -> Float[Tensor, "3 _ _"]:
    """The view in gray under the colours of its clusters, assignments upsampled bicubically.

    A pixel is hatched if the cluster that it belongs to most is not valid.
    """
    pixels = enlarge(pixels)
    return blend(pixels, upsample(assignments, grid, pixels), valid, colours)


def paint_views(
    pixels: Float[Tensor, "M 3 h w"],
    assignments: Float[Tensor, "M N K"],
    valid: Bool[Tensor, "K"],
    grid: tuple[int, int],
    colours: Int64[Tensor, "K"] | None = None,
) -> list[Float[Tensor, "3 _ _"]]:
    """One head's clusters over each view; by default the largest has the first colour."""
    numbers = by_size(assignments) if colours is None else colours
    table = PALETTE[numbers % len(PALETTE)]
    return [paint(view, shares, valid, grid, table) for view, shares in zip(pixels, assignments)]


def blend(
    pixels: Float[Tensor, "3 h w"],
    shares: Float[Tensor, "K h w"],
    valid: Bool[Tensor, "K"],
    colours: Float[Tensor, "K 3"],
) -> Float[Tensor, "3 h w"]:
    """Colours mixed in proportion to the shares, over the gray picture at its own size."""
    tint = torch.einsum("khw,kc->chw", shares, colours)
    painted = (1 - OPACITY) * pixels.mean(dim=0) + OPACITY * tint
    pruned = shares.amax(dim=0) > (shares * valid[:, None, None]).amax(dim=0)
    rows, columns = (torch.arange(size) for size in pixels.shape[-2:])
    stripes = (rows[:, None] + columns) * 80 // max(pixels.shape[-2:]) % 5 == 0
    return torch.where(stripes & pruned, torch.tensor(HATCHING), painted).clamp(0, 1)


def upsample(
    values: Float[Tensor, "N K"], grid: tuple[int, int], like: Float[Tensor, "3 h w"]
) -> Float[Tensor, "K h w"]:
    """Each token's shares of the clusters, at the size of a picture; they still sum to 1."""
    shares = values / values.sum(dim=-1, keepdim=True).clamp_min(1e-12)
    planes = shares.T.reshape(1, -1, *grid)
    soft = F.interpolate(planes, size=like.shape[-2:], mode="bicubic")[0].clamp(0)
    return soft / soft.sum(dim=0).clamp_min(1e-12)


def enlarge(pixels: Float[Tensor, "3 h w"]) -> Float[Tensor, "3 _ _"]:
    """Small pictures upsampled bicubically."""
    scale = max(1.0, LEAST_PX / max(pixels.shape[-2:]))
    shape = [round(scale * size) for size in pixels.shape[-2:]]
    return F.interpolate(pixels[None], size=shape, mode="bicubic")[0].clamp(0, 1)


def to_array(pixels: Float[Tensor, "3 h w"]) -> np.ndarray:
    return pixels.permute(1, 2, 0).numpy()


def tile_figure(
    rows: Sequence[Sequence[Tile | None]],
    title: str,
    below: Sequence[float],
    width: float = TILE_IN,
) -> tuple[Figure, list[list[Axes]]]:
    """Rows of pictures without axes, each under its label, in a figure of the size they need.

    None is a narrow gap. `below` is the space under each row; lengths are in inches.
    """
    tiles = [[tile for tile in row if tile is not None] for row in rows]
    lines = [max(len(text.splitlines()) for text, _ in row) * LINE_IN for row in tiles]
    tallest = [max(width * min(TALLEST, _ratio(pixels)) for _, pixels in row) for row in tiles]
    wide = GAP_IN + max(sum(width + GAP_IN if tile else LINE_IN for tile in row) for row in rows)
    high = TITLE_IN + sum(lines) + sum(tallest) + sum(below)
    figure = Figure(figsize=(wide, high), dpi=DPI)
    figure.text(GAP_IN / wide, 1 - 0.17 / high, title, fontsize=TITLE_PT, va="center")
    drawn: list[list[Axes]] = []
    top = TITLE_IN
    for number, row in enumerate(rows):
        left = GAP_IN
        drawn.append([])
        for tile in row:
            if tile is None:
                left += LINE_IN
                continue
            text, pixels = tile
            for line, words in enumerate(text.splitlines()):
                y = 1 - (top + (line + 0.5) * LINE_IN) / high
                figure.text(left / wide, y, words, fontsize=LABEL_PT, va="center")
            wide_in = width * min(1.0, TALLEST / _ratio(pixels))
            high_in = wide_in * _ratio(pixels)
            x, bottom = left + (width - wide_in) / 2, top + lines[number] + high_in
            box = (x / wide, 1 - bottom / high, wide_in / wide, high_in / high)
            axes = figure.add_axes(box)
            axes.imshow(to_array(pixels), aspect="auto", interpolation="antialiased")
            axes.set_axis_off()
            drawn[-1].append(axes)
            left += width + GAP_IN
        top += lines[number] + tallest[number] + below[number]
    return figure, drawn


def _ratio(pixels: Tensor) -> float:
    return pixels.shape[-2] / pixels.shape[-1]


def choose_heads(heads: Sequence[int] | None, count: int, most: int | None = None) -> list[int]:
    """The given heads, once each; by default all, or the first `most`."""
    chosen = list(dict.fromkeys(heads or range(min(count, most or count))))
    missing = [head for head in chosen if not 0 <= head < count]
    if missing:
        there = "only head 0" if count == 1 else f"heads 0 to {count - 1}"
        raise UserError(f"--heads {missing[0]}: the network has {there}")
    return chosen
