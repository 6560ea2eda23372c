"""`croc show features`: what a network makes of whole photographs."""

from collections.abc import Sequence

import matplotlib
import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from croc.lab.show import ShowFeatures
from croc.lab.show.figures import choose_heads, tile_figure, to_array
from croc.lab.show.look import Look, grid_of, patch_at, read_photograph, whole_view
from croc.method.photometric import unnormalize
from croc.photographs import own_photographs

LOW, HIGH = 0.02, 0.98  # quantiles: a few outliers must not take all the colors


def draw_features(look: Look, options: ShowFeatures) -> Figure:
    """One row per photograph: itself, PCA, cosines to a patch, and the CLS attention."""
    backbone = look.backbone
    pictures = [read_photograph(name) for name in options.images or own_photographs()]
    side_px = options.image_px or 2 * look.config.views.size_px
    views = [whole_view(picture, side_px, backbone.patch_px) for picture in pictures]
    described = [backbone.forward_tokens(each.pixels, "values") for each in views]
    tokens = [each.patches[0, 0] for each in described]
    colors = project(tokens) if options.together else [project([each])[0] for each in tokens]
    rows, marks = [], []
    for picture, view, seen, rgb in zip(pictures, views, described, colors):
        pixels, grid = unnormalize(view.pixels)[:, 0], grid_of(view, backbone.patch_px)
        height, width, _ = picture.shape
        row, column = patch_at(*(options.patch or (width / 2, height / 2)), (height, width), grid)
        marks.append((column / grid[1], 1 - (row + 1) / grid[0], 1 / grid[1], 1 / grid[0]))
        unit = F.normalize(seen.patches[0, 0], dim=-1)
        cosine = unit @ unit[row * grid[1] + column]
        least = float(cosine.min())
        similar = ((cosine - least) / max(1 - least, 1e-9)).reshape(grid).numpy()
        attention = stretch(seen.attention[0, 0].T).T.reshape(-1, *grid).numpy()
        heads = choose_heads(options.heads, len(attention))
        tiles = [
            ("photograph", to_array(pixels[0])),
            ("PCA", rgb.reshape(*grid, 3).numpy()),
            (f"cosine, {least:.2f} to 1", matplotlib.colormaps["viridis"](similar)),
            *((f"head {head}", matplotlib.colormaps["magma"](attention[head])) for head in heads),
        ]
        rows.append(tiles)
    figure, drawn = tile_figure(rows, f"{look.title}: tokens of the last block, attention by head")
    for (x, y, width, height), in_row in zip(marks, drawn):
        for axes in (in_row[0], in_row[2]):  # the photograph and the cosines
            for color, line in (("black", 3.0), ("white", 1.4)):  # which shows on every color
                box = Rectangle((x, y), width, height, fill=False, ec=color, lw=line)
                axes.add_patch(box).set_transform(axes.transAxes)
    return figure


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
