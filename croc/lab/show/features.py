"""`croc show features`: the tokens of whole photographs."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from croc.lab.show import ShowFeatures
from croc.lab.show.clusters import find_in_views
from croc.lab.show.figures import LABEL_PT, choose_heads, paint, tile_figure, to_array
from croc.lab.show.look import Look, grid_of, keys_of, patch_at, read_photograph, whole_view
from croc.method.photometric import unnormalize
from croc.photographs import own_photographs

COSINE = "cosine to the patch"
LOW, HIGH = 0.02, 0.98  # quantiles: a few outliers must not take all the colors


def draw_features(look: Look, options: ShowFeatures) -> Figure:
    """One row per photograph, of the chosen columns."""
    backbone = look.backbone
    pictures = [read_photograph(name) for name in options.images or own_photographs()]
    side_px = options.image_px or 2 * look.config.views.size_px
    views = [whole_view(picture, side_px, backbone.patch_px) for picture in pictures]
    tokens = [backbone.forward_tokens(view.pixels, "values") for view in views]
    patches = [x.patches[0, 0] for x in tokens]
    colors = project(patches) if options.shared_pca else [project([x])[0] for x in patches]
    rows, marks = [], []
    for picture, view, x, rgb in zip(pictures, views, tokens, colors):
        pixels, grid = unnormalize(view.pixels)[:, 0], grid_of(view, backbone.patch_px)
        height, width, _ = picture.shape
        row, column = patch_at(*(options.patch or (width / 2, height / 2)), (height, width), grid)
        unit = F.normalize(x.patches[0, 0], dim=-1)
        cosine = unit @ unit[row * grid[1] + column]
        scale = Normalize(float(cosine.min()), 1)
        marks.append((row, column, grid, scale))
        tiles = []
        for kind in options.columns:
            if kind == "image":
                tiles.append((kind, to_array(pixels[0])))
            elif kind == "pca":
                tiles.append(("PCA", rgb.reshape(*grid, 3).numpy()))
            elif kind == "similarity":
                values = scale(cosine.reshape(grid).numpy())
                tiles.append((COSINE, matplotlib.colormaps["viridis"](values)))
            elif kind == "attention":
                attention = stretch(x.attention[0, 0].T).T.reshape(-1, *grid).numpy()
                for head in choose_heads(options.heads, len(attention)):
                    tile = matplotlib.colormaps["magma"](attention[head])
                    tiles.append((f"attention, head {head}", tile))
            else:
                clusters = find_in_views(look.croc, backbone, view, keys_of(0, 1))
                for head in choose_heads(options.heads, clusters.valid.shape[1]):
                    shares, valid = clusters.assignments[:, 0, head], clusters.valid[0, head]
                    tiles.append((f"clusters, head {head}", paint(pixels, shares, valid, grid)[0]))
        rows.append([("" if rows else label, tile) for label, tile in tiles])
    below = 0.27 if "similarity" in options.columns else 0.06
    figure, drawn = tile_figure(rows, f"{look.title}: tokens of the last block", below=below)
    if "similarity" not in options.columns:
        return figure
    for (row, column, grid, scale), row_axes in zip(marks, drawn):
        for (label, _), axes in zip(rows[0], row_axes):
            if label in ("image", COSINE):
                frame_patch(axes, row, column, grid)
            if label == COSINE:
                add_color_bar(figure, axes, scale)
    return figure


def frame_patch(axes: Axes, row: int, column: int, grid: tuple[int, int]) -> None:
    rows, columns = grid
    for color, width in (("black", 3.0), ("white", 1.4)):  # which shows on every color
        corner = (column / columns, 1 - (row + 1) / rows)
        box = Rectangle(corner, 1 / columns, 1 / rows, fill=False, ec=color, lw=width)
        axes.add_patch(box).set_transform(axes.transAxes)


def add_color_bar(figure: Figure, axes: Axes, scale: Normalize) -> None:
    """Below a tile, labeled at its ends."""
    place: Any = {"location": "bottom", "pad": 0.03, "aspect": 22, "panchor": False}
    ticks = {"ticks": [scale.vmin, 1], "format": "%.2f"}
    bar = figure.colorbar(ScalarMappable(scale, "viridis"), ax=axes, **ticks, **place)
    bar.ax.tick_params(length=0, pad=2, labelsize=LABEL_PT - 1)
    for text, side in zip(bar.ax.get_xticklabels(), ("left", "right")):
        text.set_horizontalalignment(side)
    bar.outline.set_visible(False)


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
