"""`croc show features`: what a network makes of whole photographs, without clusters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from croc.errors import UserError
from croc.lab.show.figures import (
    GAP_IN,
    LABEL_PT,
    LINE_IN,
    TILE_IN,
    choose_heads,
    enlarge,
    label,
    new_figure,
    place,
    save_figure,
    tile,
    tile_size,
)
from croc.lab.show.look import Look, grid_of, read_photograph, whole_view
from croc.method.photometric import unnormalise
from croc.photographs import own_photographs

# Outliers beyond these shares do not stretch the colours of all others.
LOW, HIGH = 0.02, 0.98
BAR_IN = 0.08
COSINE = 2  # the column that has a scale, and the patch marked as the photograph has


@dataclass(frozen=True)
class Features:
    """An image as the network saw it, and what it made of it."""

    pixels: Float[Tensor, "3 h w"]
    """In 0 … 1."""
    grid: tuple[int, int]
    patches: Float[Tensor, "N D"]
    attention: Float[Tensor, "H N"]
    """Of the CLS token."""
    patch: tuple[int, int]
    """Row and column of the one that others are compared with."""


def draw_features(
    look: Look,
    images: tuple[str, ...],
    to: str | None,
    side_px: int,
    heads: Iterable[int] | None = None,
    patch: tuple[float, float] | None = None,
    together: bool = False,
) -> Path:
    """Write the picture and return where it lies; `patch` is x, y in a photograph's pixels."""
    path = look.picture("features", to)
    found = [describe(look, name, side_px, patch) for name in images or own_photographs()]
    chosen = choose_heads(heads, len(found[0].attention))
    tokens = [image.patches for image in found]
    colours = project(tokens) if together else [project([each])[0] for each in tokens]
    features_figure(found, colours, chosen, path, f"{look.title}: tokens of the last block")
    return path


@torch.no_grad()
def describe(look: Look, name: str, side_px: int, patch: tuple[float, float] | None) -> Features:
    picture = read_photograph(name)
    views = whole_view(picture, side_px, look.backbone.patch_px)
    grid = grid_of(views, look.backbone.patch_px)
    where = find_patch(name, picture.shape[:2], grid, patch)
    tokens = look.backbone.describe(views.pixels, "values")
    pixels = unnormalise(views.pixels)[0, 0]
    return Features(pixels, grid, tokens.patches[0, 0], tokens.attention[0, 0], where)


def find_patch(
    name: str,
    size: tuple[int, ...],
    grid: tuple[int, int],
    asked: tuple[float, float] | None,
) -> tuple[int, int]:
    """Row and column of the patch that holds a pixel; by default the photograph's middle."""
    (height, width), (rows, columns) = size, grid
    x, y = asked or (width / 2, height / 2)
    if not (0 <= x < width and 0 <= y < height):
        raise UserError(f"--patch {x:g} {y:g} lies outside {name}: {width} × {height} pixels")
    return int(y * rows / height), int(x * columns / width)


def project(images: Sequence[Float[Tensor, "_ D"]]) -> list[Float[Tensor, "_ 3"]]:
    """One PCA of all tokens: their first three components as red, green and blue in 0 … 1.

    A component's sign is that which makes its largest weight positive, so that the same tokens
    always give the same picture.
    """
    tokens = torch.cat(list(images)).double()
    tokens = tokens - tokens.mean(dim=0)
    axes = torch.linalg.eigh(tokens.T @ tokens).eigenvectors.flip(-1)[:, :3]
    largest = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))
    values = stretch(tokens @ (axes * largest.sign()))
    return list(values.float().split([len(image) for image in images]))


def stretch(values: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Each column to 0 … 1, from its lowest to its highest few hundredths."""
    low, high = (values.quantile(share, dim=0) for share in (LOW, HIGH))
    return ((values - low) / (high - low).clamp_min(1e-9)).clamp(0, 1)


def similarity(features: Features) -> Float[Tensor, "N"]:
    """Cosine of every patch's token with that of the chosen one."""
    row, column = features.patch
    unit = F.normalize(features.patches, dim=-1)
    return unit @ unit[row * features.grid[1] + column]


def features_figure(
    found: Sequence[Features],
    colours: Sequence[Float[Tensor, "_ 3"]],
    heads: Sequence[int],
    path: Path,
    title: str,
) -> None:
    """A row an image: photograph, PCA, similarity to the patch, attention head by head."""
    names = [
        "photograph",
        "PCA",
        "cosine to the patch",
        *(f"attention, head {head}" for head in heads),
    ]
    heights = [tile_size(image.pixels)[1] + 1.9 * LINE_IN for image in found]
    width = GAP_IN + len(names) * (TILE_IN + GAP_IN)
    figure, top = new_figure(width, LINE_IN + sum(heights), title)
    for column, name in enumerate(names):
        label(figure, GAP_IN + column * (TILE_IN + GAP_IN), top, name)
    top += LINE_IN
    for image, rgb, height in zip(found, colours, heights):
        _draw_row(figure, top, image, rgb, heads)
        top += height
    save_figure(figure, path)


def _draw_row(
    figure: Figure,
    top: float,
    image: Features,
    rgb: Float[Tensor, "N 3"],
    heads: Sequence[int],
) -> None:
    cosine = similarity(image)
    lowest = float(cosine.min())
    scaled = (cosine - lowest) / max(1 - lowest, 1e-9)
    attention = [stretch(image.attention[head, :, None])[:, 0] for head in heads]
    pictures = [
        enlarge(image.pixels),
        spread(rgb, image),
        spread(heat(scaled, "viridis"), image),
        *(spread(heat(values, "magma"), image) for values in attention),
    ]
    rows, columns = map(float, image.grid)
    for number, pixels in enumerate(pictures):
        left = GAP_IN + number * (TILE_IN + GAP_IN)
        axes = tile(figure, left, top, pixels, extent=(0.0, columns, rows, 0.0))
        if number in (0, COSINE):
            mark(axes, image.patch)
    wide, high = tile_size(image.pixels)
    wide = max(wide, TILE_IN / 2)  # room for its two numbers
    left = GAP_IN + COSINE * (TILE_IN + GAP_IN) + (TILE_IN - wide) / 2
    draw_scale(figure, left, top + high + 0.05, wide, lowest)


def heat(values: Float[Tensor, "N"], colours: str) -> Float[Tensor, "N 3"]:
    table = matplotlib.colormaps[colours](values.clamp(0, 1).numpy())
    return torch.from_numpy(table[:, :3]).float()


def spread(colours: Float[Tensor, "N 3"], image: Features) -> Float[Tensor, "3 _ _"]:
    """Colours of the patches, bicubically to a picture."""
    planes = colours.T.reshape(1, 3, *image.grid)
    size = enlarge(image.pixels).shape[-2:]
    return F.interpolate(planes, size=size, mode="bicubic")[0].clamp(0, 1)


def mark(axes: Axes, patch: tuple[int, int]) -> None:
    """The patch, in white within black: seen over every colour."""
    row, column = patch
    for colour, width in (("black", 3.0), ("white", 1.4)):
        axes.add_patch(Rectangle((column, row), 1, 1, fill=False, ec=colour, lw=width))


def draw_scale(figure: Figure, left: float, top: float, width: float, lowest: float) -> None:
    axes = place(figure, left, top, width, BAR_IN)
    axes.imshow(np.linspace(0, 1, 256)[None], cmap="viridis", aspect="auto")
    axes.set_axis_off()
    below = {"transform": axes.transAxes, "fontsize": LABEL_PT - 1, "va": "top"}
    axes.text(0, -0.3, f"{lowest:.2f}".replace("-", "−"), ha="left", **below)
    axes.text(1, -0.3, "1", ha="right", **below)
