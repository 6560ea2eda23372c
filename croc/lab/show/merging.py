"""`croc show merging`: the clusters of an image on their way from K_start to 2, and their cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from croc.lab.show.figures import (
    GAP_IN,
    LABEL_PT,
    LINE_IN,
    PALETTE,
    by_size,
    choose_heads,
    enlarge,
    label,
    new_figure,
    paint,
    place,
    save_figure,
    sizes,
    tile,
    tile_size,
)
from croc.lab.show.look import (
    Look,
    grid_of,
    keys_of,
    read_photograph,
    to_canvases,
    whole_to_cluster,
)
from croc.method.clustering.softness import softness
from croc.method.clustering.trace import Trace, TraceStep, trace_views
from croc.method.croc import saliency
from croc.method.photometric import unnormalise
from croc.method.types import Views
from croc.method.views import make_views

STEPS, HEADS = 7, 3
WIDTH_IN, CURVE_IN = 1.25, 0.62
INK = "#202020"


@dataclass(frozen=True)
class Merging:
    """An image's views, and every step of its merging."""

    pixels: Float[Tensor, "M 3 h w"]
    """In 0 … 1."""
    grid: tuple[int, int]
    trace: Trace


def draw_merging(
    look: Look,
    image: str,
    to: str | None,
    seed: int,
    heads: Iterable[int] | None = None,
    side_px: int | None = None,
) -> Path:
    """Of two augmented views joined; with a side, instead of the whole image at that size."""
    path = look.picture("merging", to)
    merging = find_merging(look, image, seed, side_px)
    chosen = choose_heads(heads, merging.trace.count.shape[1], HEADS)
    tokens, k = look.croc.cluster.tokens, look.croc.cluster.k_start
    merging_figure(merging, chosen, path, f"{look.title}: {tokens}, merged from K {k} to 2")
    return path


@torch.no_grad()
def find_merging(look: Look, image: str, seed: int, side_px: int | None) -> Merging:
    config = look.croc
    views, keys = _see(look, image, seed, side_px)
    tokens = look.backbone.describe(views.pixels, config.cluster.tokens)
    weights = saliency(tokens, config.cluster)
    trace = trace_views(tokens.heads, views.positions, weights, config.cluster, keys=keys)
    pixels = unnormalise(views.pixels)[:, 0]
    return Merging(pixels, grid_of(views, look.backbone.patch_px), trace)


def _see(
    look: Look, image: str, seed: int, side_px: int | None
) -> tuple[Views, Int64[Tensor, "1"]]:
    """The views, and the key that their clusters start from."""
    config, patch_px = look.croc, look.backbone.patch_px
    if side_px is not None:
        return whole_to_cluster(look, read_photograph(image), side_px), keys_of(seed, 1)
    picture = read_photograph(image, config.data.canvas_px)
    canvases = to_canvases([picture], config.data.canvas_px, seed)
    return make_views(canvases, config.views, patch_px), canvases.keys


def merging_figure(merging: Merging, heads: Sequence[int], path: Path, title: str) -> None:
    """For each head its views at the last steps, and below them the cost at every K."""
    shown = merging.trace.steps[-STEPS:]
    views, high = len(merging.pixels), tile_size(merging.pixels, WIDTH_IN)[1]
    block = LINE_IN + views * (high + GAP_IN) + CURVE_IN + 2.3 * LINE_IN
    width = GAP_IN + (len(shown) + 1) * (WIDTH_IN + GAP_IN)
    figure, top = new_figure(width, len(heads) * block, title)
    for head in heads:
        _draw_steps(figure, top, merging, shown, head)
        below = top + LINE_IN + views * (high + GAP_IN) + 0.06
        left = GAP_IN + WIDTH_IN + GAP_IN
        axes = place(figure, left, below, width - left - GAP_IN, CURVE_IN)
        draw_costs(axes, merging.trace, head, len(shown))
        top += block
    save_figure(figure, path)


def _draw_steps(
    figure: Figure, top: float, merging: Merging, shown: Sequence[TraceStep], head: int
) -> None:
    """The photographs, then a column a step."""
    chosen = int(merging.trace.count[0, head])
    label(figure, GAP_IN, top, f"head {head}: chosen K {chosen}")
    _draw_column(figure, GAP_IN, top, [enlarge(pixels) for pixels in merging.pixels])
    for column, (step, colours) in enumerate(zip(shown, follow_colours(shown, head)), start=1):
        left, k = GAP_IN + column * (WIDTH_IN + GAP_IN), step.assignments.shape[-1]
        largest = softness(step.assignments)[1][0, head]
        label(figure, left, top, f"K {k} · share {largest:.2f}")
        painted = [
            paint(
                pixels,
                step.assignments[view, 0, head],
                step.valid[0, head],
                merging.grid,
                PALETTE[colours % len(PALETTE)],
            )
            for view, pixels in enumerate(merging.pixels)
        ]
        _draw_column(figure, left, top, painted, framed=k == chosen)


def _draw_column(
    figure: Figure, left: float, top: float, views: Sequence[Tensor], framed: bool = False
) -> None:
    for view, pixels in enumerate(views):
        y = top + LINE_IN + view * (tile_size(pixels, WIDTH_IN)[1] + GAP_IN)
        axes = tile(figure, left, y, pixels, WIDTH_IN)
        if framed:
            edge = Rectangle((0, 0), 1, 1, transform=axes.transAxes, fill=False, ec=INK, lw=4)
            axes.add_patch(edge)


def follow_colours(steps: Sequence[TraceStep], head: int) -> list[Int64[Tensor, "k"]]:
    """For each step, the number of each cluster's colour: what merges keeps the larger one's.

    At the first step they are all different, and go by size.
    """
    colours = [by_size(steps[0].assignments[:, 0, head])]
    for before, step in pairwise(steps):
        assert step.into is not None
        rising = sizes(before.assignments[:, 0, head]).argsort(stable=True)
        into, now = step.into[0, head], torch.zeros(step.assignments.shape[-1], dtype=torch.long)
        for column in rising.tolist():  # the larger comes later, and overwrites
            now[into[column]] = colours[-1][column]
        colours.append(now)
    return colours


def draw_costs(axes: Axes, trace: Trace, head: int, shown: int) -> None:
    """The cost at every K, from K_start on the left; the steps that are not shown are hollow."""
    costs = trace.costs[0, head].tolist()
    ks = list(range(len(costs) + 1, 1, -1))
    chosen = int(trace.count[0, head])
    axes.plot(ks, costs, color=INK, lw=1, zorder=1)
    hidden = len(ks) - shown
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
