"""sweep.png: the scores of every setting, a dot a seed, and what became of the clusters."""

import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from croc.lab.charts import COLOURS, save_chart, span_enough, verbatim
from croc.lab.sweep.page import first_scores
from croc.lab.sweep.settings import number_of

LINE, OTHER, UNTRAINED = COLOURS[0], COLOURS[1], COLOURS[-1]
SEED: dict[str, Any] = {"ls": "", "marker": "o", "color": LINE, "ms": 4.5, "alpha": 0.55, "mew": 0}
MEAN: dict[str, Any] = {"ls": "-", "marker": "D", "color": LINE, "lw": 1.4, "ms": 4.5}
APART: dict[str, Any] = {**MEAN, "ls": ""}
"""Between names there is nothing that a line could stand for."""
REFERENCE: dict[str, Any] = {"ls": "--", "color": UNTRAINED, "lw": 1.2}
PANEL_IN, WIDEST_IN, PAGE_IN = 4.0, 8.0, 12.0
SIGN_IN = 0.075
LABEL_SIGNS = 14
"""A name is broken into lines of so many."""


@dataclass(frozen=True)
class Ticks:
    """The settings' names under a panel: upright in lines, or slanted if there are too many."""

    labels: list[str]
    slanted: bool
    panel_in: float


def make_ticks(names: list[str]) -> Ticks:
    lines = [textwrap.wrap(name, LABEL_SIGNS) for name in names]
    longest = max(len(line) for label in lines for line in label)
    needed = 1.2 + len(names) * (SIGN_IN * longest + 0.15)
    if needed <= WIDEST_IN:
        return Ticks(["\n".join(label) for label in lines], False, max(PANEL_IN, needed))
    short = [textwrap.shorten(name, 30, placeholder=" …") for name in names]
    return Ticks(short, True, max(PANEL_IN, min(WIDEST_IN, 1.2 + 0.35 * len(names))))


def draw_page(page: dict[str, Any], path: Path) -> None:
    save_chart(make_figure(page), path)


def make_figure(page: dict[str, Any]) -> Figure:
    scored = [column for column in page["columns"] if _is_scored(page, column["place"])]
    clustered = ["k_mean" in setting["metrics"] for setting in page["settings"]]
    clusters = sum(clustered) >= min(2, len(clustered))  # one of several says nothing
    ticks = make_ticks([setting["name"] for setting in page["settings"]])
    panels = len(scored) + clusters
    columns = min(panels, int(PAGE_IN / ticks.panel_in))
    lines = math.ceil(panels / columns)
    size = (columns * ticks.panel_in, (3.6 if ticks.slanted else 3.0) * lines + 0.8)
    figure = Figure(figsize=size, dpi=120, layout=ConstrainedLayoutEngine(wspace=0.05))
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, column in zip(grid, scored):
        _draw_scores(axes, page, column)
    if clusters:
        _draw_clusters(grid[len(scored)], page)
    for axes in grid[:panels]:
        _name_settings(axes, ticks, page["command"]["sweep"]["vary"] or "")
    for axes in grid[panels:]:
        axes.set_visible(False)
    title = verbatim(_title(page, int(14 * size[0])))
    figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    _add_legend(figure, page)
    return figure


def _is_scored(page: dict[str, Any], place: str) -> bool:
    return any(place in setting["scores"] for setting in page["settings"])


def _title(page: dict[str, Any], signs: int) -> str:
    device = page["hardware"]
    where = device["cpu"] if device["gpu"] == "no GPU" else device["gpu"]
    share = page["configuration"]["hold_out"]
    lost = [
        f"{setting['name']} (seed {run['seed']})"
        for setting in page["settings"]
        for run in setting["runs"]
        if run["failed"]
    ]
    parts = [
        f"{page['configuration']['recipe']}, {where}, croc {page['versions']['croc']}",
        page["date"][:10],
        *([f"scored on {100 * share:g}% of the training parts, held out"] if share else []),
        *([f"failed: {', '.join(lost)}"] if lost else []),
        *(["not finished"] if page["to_come"] else []),
    ]
    return "\n".join(textwrap.wrap("; ".join(parts), signs))


def _draw_scores(axes: Axes, page: dict[str, Any], column: dict[str, str]) -> None:
    place = column["place"]
    for x, setting in enumerate(page["settings"]):
        found = [first_scores(run["scores"]).get(place) for run in setting["runs"]]
        dots = [value for value in found if value is not None]
        axes.plot([x] * len(dots), dots, **SEED, zorder=3)
    axes.plot(*_means(page, "scores", place), **(MEAN if _is_scale(page) else APART))
    if page["untrained"] is None:  # the settings start from different networks
        for x, value in zip(*_means(page, "untrained", place)):
            axes.plot([x - 0.4, x + 0.4], [value, value], **REFERENCE)
    elif place in page["untrained"]:
        axes.axhline(page["untrained"][place]["mean"], **REFERENCE)
    axes.set_title(verbatim(column["title"]), fontsize=9, loc="left")
    axes.set_ylabel(f"{column['metric']}, %", fontsize=8)
    axes.margins(y=0.12)
    span_enough(axes)


def _is_scale(page: dict[str, Any]) -> bool:
    return all(number_of(setting["name"]) is not None for setting in page["settings"])


def _means(page: dict[str, Any], kind: str, name: str) -> tuple[list[int], list[float]]:
    """nan where there is none: the line then has a gap."""
    found = [setting[kind].get(name) for setting in page["settings"]]
    return list(range(len(found))), [math.nan if each is None else each["mean"] for each in found]


def _draw_clusters(axes: Axes, page: dict[str, Any]) -> None:
    """Two scales: mean K on the left, the share of clusters that both views have on the right."""
    other, lines = axes.twinx(), _is_scale(page)
    for side, name, colour, marker, style in (
        (axes, "k_mean", LINE, "o", "-"),
        (other, "valid_share", OTHER, "s", "--"),
    ):
        look: dict[str, Any] = {"marker": marker, "ls": style if lines else "", "color": colour}
        side.plot(*_means(page, "metrics", name), **look, lw=1.4, ms=5)
        side.margins(y=0.15)
        side.tick_params(axis="y", labelsize=8, colors=colour)
    axes.set_ylabel("mean K (dots)", fontsize=8, color=LINE)
    other.set_ylabel("valid share (squares)", fontsize=8, color=OTHER)
    other.spines[["top", "left"]].set_visible(False)
    axes.set_title("clusters at the end of training, mean of the seeds", fontsize=9, loc="left")


def _name_settings(axes: Axes, ticks: Ticks, varied: str) -> None:
    axes.set_xticks(range(len(ticks.labels)), list(map(verbatim, ticks.labels)))
    if ticks.slanted:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.5, len(ticks.labels) - 0.5)
    axes.set_xlabel(varied, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _add_legend(figure: Figure, page: dict[str, Any]) -> None:
    """One for all panels, below them, where it can hide nothing."""
    mean = MEAN if _is_scale(page) else APART
    keys = [Line2D([], [], **SEED, label="a seed"), Line2D([], [], **mean, label="mean")]
    if any(setting["untrained"] for setting in page["settings"]):
        keys.append(Line2D([], [], **REFERENCE, label="untrained"))
    figure.legend(
        handles=keys, loc="outside lower left", ncols=len(keys), fontsize=8, frameon=False
    )
