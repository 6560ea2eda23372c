"""`croc show clusters` and `croc show merging`: what the clustering finds in photographs."""

from itertools import islice, zip_longest
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from croc.config import CrocConfig
from croc.data.decode import WHOLE_PX
from croc.data.sources import open_source, read_images
from croc.errors import UserError
from croc.lab.show import ShowClusters, ShowMerging
from croc.lab.show.figures import LABEL_PT, by_size, choose_heads, paint, tile_figure, to_array
from croc.lab.show.look import (
    Look,
    grid_of,
    keys_of,
    read_photograph,
    to_canvases,
    whole_view,
)
from croc.method.backbone import Backbone
from croc.method.clustering.join_split import softness
from croc.method.clustering.trace import Trace, trace_views
from croc.method.croc import cluster_tokens, saliency
from croc.method.photometric import unnormalize
from croc.method.types import Clusters, Views
from croc.method.views import make_views
from croc.photographs import own_photographs

IMAGES = 4  # of the run's own data
STEPS, HEADS = 7, 3  # of the merging
INK = "#202020"


def draw_clusters(look: Look, options: ShowClusters) -> Figure:
    """Two augmented views of each image, or the whole image, and their clusters by head.

    A cluster has one color in all views; one that a view lacks is hatched.
    """
    config, blocks = look.croc, []
    for views, keys in views_of(look, options):
        clusters = find_in_views(config, look.backbone, views, keys)
        pixels, grid = unnormalize(views.pixels)[:, 0], grid_of(views, look.backbone.patch_px)
        label = "photograph" if options.whole else "augmented views"
        columns = [(label, [to_array(view) for view in pixels])]
        share = softness(clusters.assignments)[1][0]
        for head in choose_heads(options.heads, clusters.valid.shape[1]):
            valid = clusters.valid[0, head]
            shared = "" if options.whole else f", {valid.sum()} shared"
            label = f"head {head}: K {clusters.count[0, head]}{shared}"
            painted = paint(pixels, clusters.assignments[:, 0, head], valid, grid)
            columns.append((f"{label}\nlargest assignment {share[head]:.2f}", painted))
        blocks.append(to_rows(columns))
    if len(blocks) > 1 and len(blocks[0][0]) <= 4:  # two narrow images side by side
        pairs = zip_longest(blocks[::2], blocks[1::2], fillvalue=[])
        blocks = [[[*a, None, *b] for a, b in zip_longest(*pair, fillvalue=())] for pair in pairs]
    title = f"{look.title}: {config.cluster.tokens}, K from {config.cluster.k_start}"
    return tile_figure([row for block in blocks for row in block], title)[0]


def draw_merging(look: Look, options: ShowMerging) -> Figure:
    """For each head, its views at the last steps, and below them the cost at every K."""
    config, backbone = look.croc.cluster, look.backbone
    ((views, keys),) = views_of(look, options)
    tokens = backbone.forward_tokens(views.pixels, config.tokens)
    weights = saliency(tokens, config)
    trace = trace_views(tokens.heads, views.positions, weights, config, keys=keys)
    pixels, grid = unnormalize(views.pixels)[:, 0], grid_of(views, backbone.patch_px)
    heads = choose_heads(options.heads, trace.count.shape[1], HEADS)
    steps, rows = trace.steps[-STEPS:], []
    for head in heads:
        chosen, colors = int(trace.count[0, head]), follow_colors(trace, head)
        columns = [(f"head {head}: chosen K {chosen}", [to_array(view) for view in pixels])]
        # At the chosen K, colors go by size, as in `croc show clusters`.
        ranks = by_size(trace.at(chosen).assignments[:, 0, head])
        ranks = torch.cat([ranks, torch.arange(chosen, config.k_start)])
        for step in steps:
            k, share = step.assignments.shape[-1], softness(step.assignments)[1][0, head]
            shares, valid = step.assignments[:, 0, head], step.valid[0, head]
            painted = paint(pixels, shares, valid, grid, ranks[colors[k]])
            for tile in painted if k == chosen else []:  # in a frame
                tile[:8] = tile[-8:] = tile[:, :8] = tile[:, -8:] = 0.12
            columns.append((f"K {k} · share {share:.2f}", painted))
        rows += [*to_rows(columns), [None] * len(columns)]
    title = f"{look.title}: {config.tokens}, merged from K {config.k_start} to 2"
    figure, drawn = tile_figure(rows, title, width=1.25)
    ks = np.arange(config.k_start, 1, -1)
    for number, head in enumerate(heads, start=1):
        last = (len(pixels) + 1) * number - 1  # the row of the curve, below those of the views
        chosen, costs = int(trace.count[0, head]), trace.costs[0, head].numpy()
        places: Any = drawn[last][0].get_gridspec()
        axes = figure.add_subplot(places[last, :])
        axes.plot(ks, costs, color=INK, lw=1, marker="o", ms=3.5)
        axes.plot([chosen], costs[ks == chosen], color=INK, marker="o", ms=8, mfc="none")
        axes.set(xlim=(config.k_start + 1.5, 1.5), xticks=ks, ymargin=0.25)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.tick_params(labelsize=LABEL_PT - 1, length=2, pad=1.5)
        axes.set_xlabel("K", fontsize=LABEL_PT, labelpad=1)
        axes.set_ylabel("cost", fontsize=LABEL_PT, labelpad=2)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def to_rows(columns: list[tuple[str, list[np.ndarray]]]) -> list[list[Any]]:
    """One row per view; the first has the labels."""
    return [
        [("" if view else label, tiles[view]) for label, tiles in columns]
        for view in range(len(columns[0][1]))
    ]


def views_of(look: Look, options: ShowClusters) -> list[tuple[Views, Int64[Tensor, "1"]]]:
    """For each image its views, and the key from which the initial centroids are drawn."""
    config, patch_px, names = look.croc, look.backbone.patch_px, options.images
    if not names and look.folder is None:  # weights have no data of their own
        names = own_photographs()
    longest_px = WHOLE_PX if options.whole else config.data.max_side_px
    pictures = [read_photograph(name, longest_px) for name in names]
    if not names:
        source = open_source(config.data, config.run.seed)
        readable = read_images(source, range(len(source)))
        pictures = [image for _, image in islice(readable, IMAGES)]
    if not pictures:
        raise UserError(
            "no image in the run's data can be decoded: pass images on the command line"
        )
    if options.whole:
        side_px = options.image_px or 2 * config.views.size_px
        views = [whole_view(picture, side_px, patch_px) for picture in pictures]
    else:
        canvases = to_canvases(pictures, config.data.max_side_px, options.seed)
        batch = make_views(canvases, config.views, patch_px)
        images = zip(batch.pixels.split(1, dim=1), batch.positions.split(1, dim=1))
        views = [Views(pixels, positions) for pixels, positions in images]
    return list(zip(views, keys_of(options.seed, len(views)).split(1)))


def find_in_views(
    config: CrocConfig, backbone: Backbone, views: Views, keys: Int64[Tensor, "B"]
) -> Clusters:
    """The joint clusters of the views of each image, as in a training step."""
    tokens = backbone.forward_tokens(views.pixels, config.cluster.tokens)
    return cluster_tokens(tokens, views, keys, config.cluster)


def follow_colors(trace: Trace, head: int) -> dict[int, list[int]]:
    """For each k, the colors of its columns, such that a cluster keeps its color as others merge.

    At the chosen K, they are 0, 1, 2 … A merged cluster has the color of the first of the two;
    going up in k, the second one gets a new color.
    """
    steps = {step.valid.shape[-1]: step for step in trace.steps}
    into = {k + 1: s.into[0, head].tolist() for k, s in steps.items() if s.into is not None}
    chosen = int(trace.count[0, head])
    colors = {chosen: list(range(chosen))}
    for k in range(chosen + 1, max(steps) + 1):
        targets, below = into[k], colors[k - 1]
        is_new = [target in targets[:column] for column, target in enumerate(targets)]
        colors[k] = [k - 1 if new else below[target] for new, target in zip(is_new, targets)]
    for k in range(chosen, 2, -1):
        colors[k - 1] = [colors[k][into[k].index(column)] for column in range(k - 1)]
    return colors
