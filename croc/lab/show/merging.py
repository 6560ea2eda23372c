"""`croc show merging`: the clusters of an image from K_start to 2, and the cost at each K."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from croc.lab.show import figures
from croc.lab.show.clusters import to_rows, views_of
from croc.lab.show.command import ShowMerging
from croc.lab.show.figures import GAP_IN, LABEL_PT, LINE_IN
from croc.lab.show.look import WHOLE_PX, Look, grid_of, read_photograph
from croc.method.clustering.paper import softness
from croc.method.clustering.trace import Trace, TraceStep, trace_views
from croc.method.croc import saliency
from croc.method.photometric import unnormalise
from croc.method.types import Views

STEPS, HEADS = 7, 3
WIDTH_IN, CURVE_IN = 1.25, 0.62
INK = "#202020"


def draw_merging(look: Look, options: ShowMerging) -> Figure:
    """For each head its views at the last steps, and below them the cost at every K."""
    views, trace = find_merging(look, options)
    pixels, grid = unnormalise(views.pixels)[:, 0], grid_of(views, look.backbone.patch_px)
    heads = figures.choose_heads(options.heads, trace.count.shape[1], HEADS)
    steps, rows = trace.steps[-STEPS:], []
    for head in heads:
        label = f"head {head}: chosen K {trace.count[0, head]}"
        columns = [(label, [figures.enlarge(view) for view in pixels])]
        for step, colours in zip(steps, follow_colours(steps, head)):
            k, share = step.assignments.shape[-1], softness(step.assignments)[1][0, head]
            shares, valid = step.assignments[:, 0, head], step.valid[0, head]
            painted = figures.paint_views(pixels, shares, valid, grid, colours)
            columns.append((f"K {k} · share {share:.2f}", painted))
        rows += to_rows(columns)
    below = ([GAP_IN] * (len(pixels) - 1) + [CURVE_IN + 2.6 * LINE_IN]) * len(heads)
    cluster = look.croc.cluster
    title = f"{look.title}: {cluster.tokens}, merged from K {cluster.k_start} to 2"
    figure, drawn = figures.tile_figure(rows, title, below, WIDTH_IN)
    for number, head in enumerate(heads):
        tiles = drawn[number * len(pixels) : (number + 1) * len(pixels)]
        chosen = len(steps) + 2 - int(trace.count[0, head])
        for row in tiles if chosen > 0 else []:
            frame = Rectangle((0, 0), 1, 1, transform=row[chosen].transAxes, fill=False)
            frame.set(edgecolor=INK, linewidth=4)
            row[chosen].add_patch(frame)
        first, last = tiles[-1][1].get_position(), tiles[-1][-1].get_position()
        bottom = first.y0 - (CURVE_IN + 2 * GAP_IN) / figure.get_figheight()
        height = CURVE_IN / figure.get_figheight()
        axes = figure.add_axes((first.x0, bottom, last.x1 - first.x0, height))
        draw_costs(axes, trace, head, len(steps))
    return figure


@torch.no_grad()
def find_merging(look: Look, options: ShowMerging) -> tuple[Views, Trace]:
    config, side_px = look.croc, look.side_px(options.image_px) if options.whole else None
    longest_px = WHOLE_PX if options.whole else config.data.canvas_px
    picture = read_photograph(options.images[0], longest_px)
    ((views, keys),) = views_of(look, [picture], options.seed, side_px)
    tokens = look.backbone.describe(views.pixels, config.cluster.tokens)
    weights = saliency(tokens, config.cluster)
    trace = trace_views(tokens.heads, views.positions, weights, config.cluster, keys=keys)
    return views, trace


def follow_colours(steps: Sequence[TraceStep], head: int) -> list[Int64[Tensor, "k"]]:
    """For each step the colour number of each cluster.

    In the first step they go by size; a merged cluster keeps the colour of the larger one.
    """
    colours = [figures.by_size(steps[0].assignments[:, 0, head])]
    for before, step in pairwise(steps):
        assert step.into is not None
        rising = figures.sizes(before.assignments[:, 0, head]).argsort(stable=True)
        into, now = step.into[0, head], torch.zeros(step.assignments.shape[-1], dtype=torch.long)
        for cluster in rising.tolist():  # the larger comes later, and overwrites
            now[into[cluster]] = colours[-1][cluster]
        colours.append(now)
    return colours


def draw_costs(axes: Axes, trace: Trace, head: int, shown: int) -> None:
    """The cost at every K, from K_start on the left; steps that are not shown are hollow."""
    costs = trace.costs[0, head].tolist()
    ks = list(range(len(costs) + 1, 1, -1))
    chosen, hidden = int(trace.count[0, head]), len(ks) - shown
    axes.plot(ks, costs, color=INK, lw=1, zorder=1)
    axes.scatter(ks[:hidden], costs[:hidden], s=14, fc="white", ec=INK, lw=0.9, zorder=2)
    axes.scatter(ks[hidden:], costs[hidden:], s=14, fc=INK, ec=INK, lw=0.9, zorder=2)
    axes.scatter([chosen], [costs[ks.index(chosen)]], s=70, fc="none", ec=INK, lw=1.4, zorder=3)
    axes.set_xlim(len(costs) + 1.5, 1.5)
    axes.margins(y=0.25)
    axes.set_xticks(ks)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.tick_params(labelsize=LABEL_PT - 1, length=2, pad=1.5)
    axes.set_xlabel("K", fontsize=LABEL_PT, labelpad=1)
    axes.set_ylabel("cost", fontsize=LABEL_PT, labelpad=2)
    axes.spines[["top", "right"]].set_visible(False)
