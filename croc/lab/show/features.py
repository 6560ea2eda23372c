"""`croc show features`: what a network makes of whole photographs."""

from collections.abc import Sequence

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
from croc.lab.show import figures
from croc.lab.show.clusters import find_in_views, views_of
from croc.lab.show.command import ShowFeatures
from croc.lab.show.figures import LABEL_PT, TILE_IN, choose_heads, enlarge
from croc.lab.show.look import Look, grid_of, read_photograph, whole_view
from croc.method.photometric import unnormalise
from croc.photographs import own_photographs

COSINE = "cosine to the patch"
LOW, HIGH = 0.02, 0.98  # quantiles: a few outliers must not take all the colours


@torch.no_grad()
def draw_features(look: Look, options: ShowFeatures) -> Figure:
    """One row per photograph, of the chosen columns."""
    names, backbone = options.images or own_photographs(), look.backbone
    side_px = look.side_px(options.image_px)
    pictures = [read_photograph(name) for name in names]
    views = [whole_view(picture, side_px, backbone.patch_px) for picture in pictures]
    described = [backbone.describe(each.pixels, "values") for each in views]
    tokens = [each.patches[0, 0] for each in described]
    colours = project(tokens) if options.together else [project([each])[0] for each in tokens]
    rows, patches = [], []
    for name, picture, view, seen, rgb in zip(names, pictures, views, described, colours):
        pixels, grid = unnormalise(view.pixels)[:, 0], grid_of(view, backbone.patch_px)
        size = enlarge(pixels[0]).shape[-2:]
        row, column = find_patch(name, picture.shape[:2], grid, options.patch)
        unit = F.normalize(seen.patches[0, 0], dim=-1)
        cosine = unit @ unit[row * grid[1] + column]
        lowest, (high, wide) = cosine.min(), (1 / grid[0], 1 / grid[1])
        patches.append(((column * wide, 1 - (row + 1) * high, wide, high), lowest.item()))
        tiles = []
        for kind in options.columns:
            if kind == "photograph":
                tiles.append((kind, enlarge(pixels[0])))
            elif kind == "pca":
                tiles.append(("PCA", spread(rgb, grid, size)))
            elif kind == "cosine":
                scaled = (cosine - lowest) / (1 - lowest).clamp_min(1e-9)
                tiles.append((COSINE, spread(heat(scaled, "viridis"), grid, size)))
            elif kind == "attention":
                attention = stretch(seen.attention[0, 0].T).T
                for head in choose_heads(options.heads, len(attention)):
                    tile = spread(heat(attention[head], "magma"), grid, size)
                    tiles.append((f"attention, head {head}", tile))
            else:
                ((_, key),) = views_of(look, [picture], 0, side_px)
                clusters = find_in_views(look.croc, backbone, view, key)
                for head in choose_heads(options.heads, clusters.valid.shape[1]):
                    shares, valid = clusters.assignments[:, 0, head], clusters.valid[0, head]
                    tile = figures.paint_views(pixels, shares, valid, grid)[0]
                    tiles.append((f"clusters, head {head}", tile))
        rows.append([("" if rows else label, tile) for label, tile in tiles])
    labels = [label for label, _ in rows[0]]
    below = [1.9 * figures.LINE_IN if COSINE in labels else figures.GAP_IN] * len(rows)
    title = f"{look.title}: tokens of the last block"
    figure, drawn = figures.tile_figure(rows, title, below)
    for (box, lowest), axes_in_row in zip(patches, drawn):
        for label, axes in zip(labels, axes_in_row):
            if COSINE in labels and label in ("photograph", COSINE):
                mark(axes, box)
            if label == COSINE:
                draw_scale(figure, axes, lowest)
    return figure


def find_patch(
    name: str, size: tuple[int, ...], grid: tuple[int, int], at: tuple[float, float] | None
) -> tuple[int, int]:
    """Row and column of the patch at a pixel x, y of the photograph; by default its middle."""
    (height, width), (rows, columns) = size, grid
    x, y = at or (width / 2, height / 2)
    if not (0 <= x < width and 0 <= y < height):
        raise UserError(f"--patch {x:g} {y:g} is outside {name}: {width} × {height} pixels")
    return int(y * rows / height), int(x * columns / width)


def project(images: Sequence[Float[Tensor, "_ D"]]) -> list[Float[Tensor, "_ 3"]]:
    """One PCA of all tokens: their first three components as red, green and blue in 0 … 1.

    A component's sign makes its largest weight positive: the same tokens give the same picture.
    """
    tokens = torch.cat(list(images)).double()
    tokens = tokens - tokens.mean(dim=0)
    axes = torch.linalg.eigh(tokens.T @ tokens).eigenvectors.flip(-1)[:, :3]
    largest = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True))
    values = stretch(tokens @ (axes * largest.sign()))
    return list(values.float().split([len(image) for image in images]))


def stretch(values: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    """Each column to 0 … 1, from its 2nd to its 98th percentile."""
    low, high = (values.quantile(share, dim=0) for share in (LOW, HIGH))
    return ((values - low) / (high - low).clamp_min(1e-9)).clamp(0, 1)


def heat(values: Float[Tensor, "N"], colours: str) -> Float[Tensor, "N 3"]:
    table = matplotlib.colormaps[colours](values.clamp(0, 1).numpy())
    return torch.from_numpy(table[:, :3]).float()


def spread(
    colours: Float[Tensor, "N 3"], grid: tuple[int, int], size: Sequence[int]
) -> Float[Tensor, "3 _ _"]:
    """Colours of the patches, upsampled bicubically."""
    planes = colours.T.reshape(1, 3, *grid)
    return F.interpolate(planes, size=list(size), mode="bicubic")[0].clamp(0, 1)


def mark(axes: Axes, box: tuple[float, ...]) -> None:
    """Outline a patch in white within black, which shows on every colour."""
    left, bottom, wide, high = box
    for colour, width in (("black", 3.0), ("white", 1.4)):
        edge = Rectangle((left, bottom), wide, high, fill=False, ec=colour, lw=width)
        axes.add_patch(edge).set_transform(axes.transAxes)


def draw_scale(figure: Figure, tile: Axes, lowest: float) -> None:
    """Below the tile; under a narrow one it is wider, to have room for its two numbers."""
    box, (width, height) = tile.get_position(), figure.get_size_inches()
    wide = max(box.width, TILE_IN / 2 / width)
    left = (box.x0 + box.x1 - wide) / 2
    axes = figure.add_axes((left, box.y0 - 0.13 / height, wide, 0.08 / height))
    axes.imshow(np.linspace(0, 1, 256)[None], cmap="viridis", aspect="auto")
    axes.set_axis_off()
    below = {"transform": axes.transAxes, "fontsize": LABEL_PT - 1, "va": "top"}
    axes.text(0, -0.3, f"{lowest:.2f}".replace("-", "−"), ha="left", **below)
    axes.text(1, -0.3, "1", ha="right", **below)
