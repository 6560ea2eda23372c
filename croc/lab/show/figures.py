"""What the pictures share: colours, clusters painted over a photograph, and places in inches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from croc.errors import UserError
from croc.method.clustering.softness import softness
from croc.method.types import Clusters

# Twelve that stay apart for readers without red or green cones, too, and over a photograph
# (test_figures.py): they differ in lightness and from blue to yellow, which all readers see.
# Found by a search from Okabe and Ito's, the first eight farther apart than the rest; the darkest
# come last, as they hide what they are painted over.
PALETTE = (
    torch.tensor(
        [
            (217, 136, 1),
            (12, 151, 255),
            (239, 240, 0),
            (197, 72, 143),
            (83, 255, 122),
            (7, 51, 215),
            (169, 117, 91),
            (0, 230, 255),
            (187, 38, 1),
            (179, 245, 204),
            (7, 56, 38),
            (45, 16, 77),
        ]
    )
    / 255.0
)
PICTURES = (".png", ".jpg", ".pdf", ".svg")
DPI = 160
TILE_IN, GAP_IN, LINE_IN = 1.6, 0.06, 0.21
LABEL_PT, TITLE_PT = 8.0, 10.0
TALLEST = 1.5  # of a tile's height to its width
LEAST_PX = 320  # of a tile's sides, so that edges and hatching are fine
OPACITY, HATCHING = 0.62, 0.08


@dataclass(frozen=True)
class Found:
    """The clusters of one image, and the views that they were found in."""

    pixels: Float[Tensor, "M 3 h w"]
    """In 0 … 1."""
    grid: tuple[int, int]
    """Rows and columns of patches."""
    clusters: Clusters


def cluster_figure(found: Sequence[Found], heads: Sequence[int], path: Path, title: str) -> None:
    """For each image, rows: its views as the network saw them; columns: the heads.

    A cluster has one colour in all views of an image; one that a view lacks is hatched.
    """
    across = 2 if len(heads) <= 3 and len(found) > 1 else 1  # narrow blocks stand side by side
    rows = [found[start : start + across] for start in range(0, len(found), across)]
    heights = [max(map(_block_height, row)) for row in rows]
    width = (len(heads) + 1) * (TILE_IN + GAP_IN)
    wide = across * width + (across - 1) * LINE_IN + GAP_IN
    figure, top = new_figure(wide, sum(heights) + GAP_IN, title)
    for row, height in zip(rows, heights):
        for place, image in enumerate(row):
            _draw_block(figure, GAP_IN + place * (width + LINE_IN), top, image, heads)
        top += height
    save_figure(figure, path)


def _block_height(found: Found) -> float:
    return LINE_IN * 2.5 + len(found.pixels) * (tile_size(found.pixels)[1] + GAP_IN)


def _draw_block(
    figure: Figure, left: float, top: float, found: Found, heads: Sequence[int]
) -> None:
    views, step = len(found.pixels), TILE_IN + GAP_IN
    largest = softness(found.clusters.assignments)[1][0]
    label(figure, left, top, "photograph" if views == 1 else "augmented views")
    for column, head in enumerate(heads, start=1):
        x = left + column * step
        label(figure, x, top, say_head(found, head))
        label(figure, x, top + LINE_IN, f"largest share {largest[head]:.2f}")
    for view, pixels in enumerate(found.pixels):
        y = top + 2 * LINE_IN + view * (tile_size(pixels)[1] + GAP_IN)
        tile(figure, left, y, enlarge(pixels))
        for column, head in enumerate(heads, start=1):
            assignments = found.clusters.assignments[:, 0, head]
            colours = PALETTE[by_size(assignments) % len(PALETTE)]
            valid = found.clusters.valid[0, head]
            painted = paint(pixels, assignments[view], valid, found.grid, colours)
            tile(figure, left + column * step, y, painted)


def say_head(found: Found, head: int) -> str:
    count, kept = found.clusters.count[0, head], found.clusters.valid[0, head].sum()
    shared = "" if len(found.pixels) == 1 else f", {kept} shared"
    return f"head {head}: K {count}{shared}"


def by_size(assignments: Float[Tensor, "M N K"]) -> Int64[Tensor, "K"]:
    """The place of each cluster, from the one that most tokens belong to: 0, 1, 2 …"""
    return sizes(assignments).argsort(descending=True, stable=True).argsort()


def sizes(assignments: Float[Tensor, "M N K"]) -> Int64[Tensor, "K"]:
    """How many tokens of all views belong most to each cluster."""
    strongest = assignments.flatten(0, 1).argmax(dim=-1)
    return strongest.bincount(minlength=assignments.shape[-1])


def paint(
    pixels: Float[Tensor, "3 h w"],
    assignments: Float[Tensor, "N K"],
    valid: Bool[Tensor, "K"],
    grid: tuple[int, int] | None = None,
    colours: Float[Tensor, "K 3"] | None = None,
) -> Float[Tensor, "3 _ _"]:
    """The view in gray under its clusters' colours, assignments upsampled bicubically.

    A pixel is hatched if the cluster that it belongs to most is not valid. The grid is square
    and colours go by column, if not said otherwise.
    """
    if colours is None:
        colours = PALETTE[torch.arange(len(valid)) % len(PALETTE)]
    pixels = enlarge(pixels)
    return blend(pixels, upsample(assignments, grid, pixels), valid, colours)


def blend(
    pixels: Float[Tensor, "3 h w"],
    share: Float[Tensor, "K h w"],
    valid: Bool[Tensor, "K"],
    colours: Float[Tensor, "K 3"],
) -> Float[Tensor, "3 h w"]:
    """Colours mixed by the clusters' shares, over the gray picture at its own size."""
    tint = torch.einsum("khw,kc->chw", share, colours)
    painted = (1 - OPACITY) * pixels.mean(dim=0) + OPACITY * tint
    pruned = share.amax(dim=0) > (share * valid[:, None, None]).amax(dim=0)
    return torch.where(stripes(pixels) & pruned, torch.tensor(HATCHING), painted).clamp(0, 1)


def upsample(
    values: Float[Tensor, "N K"], grid: tuple[int, int] | None, like: Float[Tensor, "3 h w"]
) -> Float[Tensor, "K h w"]:
    """Shares of the tokens, to the size of a picture; they stay shares."""
    side = round(len(values) ** 0.5)
    shares = values / values.sum(dim=-1, keepdim=True).clamp_min(1e-12)
    planes = shares.T.reshape(1, -1, *(grid or (side, side)))
    soft = F.interpolate(planes, size=like.shape[-2:], mode="bicubic")[0].clamp(0)
    return soft / soft.sum(dim=0).clamp_min(1e-12)


def enlarge(pixels: Float[Tensor, "3 h w"]) -> Float[Tensor, "3 _ _"]:
    """Bicubically, where the sides are few pixels."""
    scale = max(1.0, LEAST_PX / max(pixels.shape[-2:]))
    shape = [round(scale * size) for size in pixels.shape[-2:]]
    return F.interpolate(pixels[None], size=shape, mode="bicubic")[0].clamp(0, 1)


def stripes(pixels: Float[Tensor, "3 h w"]) -> Bool[Tensor, "h w"]:
    rows, columns = (torch.arange(size) for size in pixels.shape[-2:])
    return (rows[:, None] + columns) * 80 // max(pixels.shape[-2:]) % 5 == 0


def new_figure(width: float, height: float, title: str) -> tuple[Figure, float]:
    """A figure of this size below its title, and how many inches below its top that is."""
    top = LINE_IN * 1.6
    figure = Figure(figsize=(width, height + top), dpi=DPI)
    label(figure, GAP_IN, 0.06, title, TITLE_PT)
    return figure, top


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes by inches from the figure's top left corner."""
    wide, high = figure.get_size_inches()
    box = (left / wide, 1 - (top + height) / high, width / wide, height / high)
    return figure.add_axes(box)


def label(figure: Figure, left: float, top: float, text: str, size: float = LABEL_PT) -> None:
    wide, high = figure.get_size_inches()
    figure.text(left / wide, 1 - (top + LINE_IN / 2) / high, text, fontsize=size, va="center")


def tile_size(pixels: Float[Tensor, "*_ 3 h w"], width: float = TILE_IN) -> tuple[float, float]:
    """Width and height in inches: as wide as a tile, but not too tall."""
    ratio = pixels.shape[-2] / pixels.shape[-1]
    shrink = min(1.0, TALLEST / ratio)
    return width * shrink, width * ratio * shrink


def tile(
    figure: Figure,
    left: float,
    top: float,
    pixels: Float[Tensor, "3 h w"],
    width: float = TILE_IN,
    extent: tuple[float, float, float, float] | None = None,
) -> Axes:
    """A picture without axes, in the middle of its column."""
    wide, high = tile_size(pixels, width)
    axes = place(figure, left + (width - wide) / 2, top, wide, high)
    axes.imshow(to_array(pixels), aspect="auto", extent=extent, interpolation="antialiased")
    axes.set_axis_off()
    return axes


def to_array(pixels: Float[Tensor, "3 h w"]) -> np.ndarray:
    return pixels.permute(1, 2, 0).numpy()


def save_figure(figure: Figure, path: Path) -> None:
    figure.savefig(path)


def picture_path(default: Path, to: str | None) -> Path:
    path = Path(to) if to else default
    if path.suffix.lower() not in PICTURES:
        raise UserError(f"--to {path}: give it an ending out of {', '.join(PICTURES)}")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} to write the picture in: make it first")
    if path.is_dir():
        raise UserError(f"--to {path} is a folder: name a picture in it")
    return path


def choose_heads(asked: Iterable[int] | None, count: int, most: int | None = None) -> list[int]:
    """Those that are asked for, once each; else all, or the first `most`."""
    heads = list(dict.fromkeys(asked or range(min(count, most or count))))
    missing = [head for head in heads if not 0 <= head < count]
    if missing:
        there = "only head 0" if count == 1 else f"heads 0 to {count - 1}"
        raise UserError(f"--heads {missing[0]}: the network has {there}")
    return heads
