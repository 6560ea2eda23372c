"""`croc show clusters`: the clusters that a network finds in photographs."""

from itertools import islice, zip_longest

import numpy as np
import torch
from jaxtyping import Int64
from matplotlib.figure import Figure
from torch import Tensor

from croc.config import CrocConfig
from croc.data import open_source
from croc.errors import UserError
from croc.lab.show import figures
from croc.lab.show import look as looks
from croc.lab.show.command import ShowClusters
from croc.lab.show.look import Look, grid_of
from croc.method.backbone import Backbone
from croc.method.clustering.paper import softness
from croc.method.croc import locate
from croc.method.photometric import unnormalise
from croc.method.types import Canvases, Clusters, Views
from croc.method.views import make_views
from croc.photographs import own_photographs

SHOWN = 4  # images of the run's own data


def draw_clusters(look: Look, options: ShowClusters) -> Figure:
    """Two augmented views of each image, or the whole image, and their clusters by head.

    A cluster has one colour in all views; one that a view lacks is hatched.
    """
    config, names = look.croc, options.images
    if not names and look.folder is None:  # weights have no data of their own
        names = own_photographs()
    longest_px = looks.WHOLE_PX if options.whole else config.data.canvas_px
    pictures = [looks.read_photograph(name, longest_px) for name in names]
    if not names:
        source = open_source(config.data, config.run.seed)
        pictures = list(islice(looks.readable(source), SHOWN))
        if not pictures:
            raise UserError("no image in the run's data can be decoded: name some photographs")
    blocks = []
    side_px = look.side_px(options.image_px) if options.whole else None
    for views, keys in views_of(look, pictures, options.seed, side_px):
        clusters = find_in_views(config, look.backbone, views, keys)
        pixels, grid = unnormalise(views.pixels)[:, 0], grid_of(views, look.backbone.patch_px)
        label = "photograph" if options.whole else "augmented views"
        columns = [(label, [figures.enlarge(view) for view in pixels])]
        share = softness(clusters.assignments)[1][0]
        for head in figures.choose_heads(options.heads, clusters.valid.shape[1]):
            valid = clusters.valid[0, head]
            shared = "" if options.whole else f", {valid.sum()} shared"
            label = f"head {head}: K {clusters.count[0, head]}{shared}"
            painted = figures.paint_views(pixels, clusters.assignments[:, 0, head], valid, grid)
            columns.append((f"{label}\nlargest share {share[head]:.2f}", painted))
        blocks.append(to_rows(columns))
    if len(blocks) > 1 and len(blocks[0][0]) <= 4:  # two narrow images side by side
        pairs = zip_longest(blocks[::2], blocks[1::2], fillvalue=[])
        blocks = [
            [[*row, None, *beside] for row, beside in zip_longest(*pair, fillvalue=[])]
            for pair in pairs
        ]
    below = [
        space
        for block in blocks
        for space in [figures.GAP_IN] * (len(block) - 1) + [figures.LINE_IN / 2]
    ]
    title = f"{look.title}: {config.cluster.tokens}, K from {config.cluster.k_start}"
    return figures.tile_figure([row for block in blocks for row in block], title, below)[0]


def to_rows(columns: list[tuple[str, list[Tensor]]]) -> list[list]:
    """One row per view; the first has the labels."""
    count = len(columns[0][1])
    return [
        [("" if view else label, tiles[view]) for label, tiles in columns] for view in range(count)
    ]


def views_of(
    look: Look, pictures: list[np.ndarray], seed: int, side_px: int | None
) -> list[tuple[Views, Int64[Tensor, "1"]]]:
    """For each image its views, and the key that the starting centroids are drawn by."""
    config, patch_px, keys = look.croc, look.backbone.patch_px, looks.keys_of(seed, len(pictures))
    if side_px is None:
        canvases = looks.to_canvases(pictures, config.data.canvas_px, seed)
        views = make_views(canvases, config.views, patch_px)
        parts = zip(views.pixels.split(1, dim=1), views.positions.split(1, dim=1))
        return [(Views(*part), key) for part, key in zip(parts, keys.split(1))]
    wholes = [looks.whole_view(picture, side_px, patch_px) for picture in pictures]
    patches, k = min(each.positions.shape[2] for each in wholes), config.cluster.k_start
    if patches < k:
        raise UserError(f"--image-px {side_px} gives {patches} patches for {k} clusters")
    return list(zip(wholes, keys.split(1)))


def find_clusters(
    config: CrocConfig, backbone: Backbone, canvases: Canvases
) -> tuple[Views, Clusters]:
    """Two augmented views and their joint clusters, as in a training step."""
    views = make_views(canvases, config.views, backbone.patch_px)
    return views, find_in_views(config, backbone, views, canvases.keys)


@torch.no_grad()
def find_in_views(
    config: CrocConfig, backbone: Backbone, views: Views, keys: Int64[Tensor, "B"]
) -> Clusters:
    tokens = backbone.describe(views.pixels, config.cluster.tokens)
    return locate(tokens, views, keys, config.cluster)
