"""curve.png: a panel for each protocol on each data set, a line a run."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from croc.eval.curve.command import Point
from croc.lab.charts import COLOURS, save_chart, span_enough, verbatim

PANEL_IN, PANELS_A_LINE = (3.8, 3.0), 4
MARKERS = "osD^vP*X"
MILLION = 1_000_000
SHADE = 0.15
LEGEND_IN, SIGN_IN = 0.6, 0.075
"""What a label of the legend takes: its mark, and each of its letters."""


def draw_curves(folder: Path, points: Sequence[Point]) -> None:
    """From the table beside it."""
    page = json.loads((folder / "table.json").read_text())
    save_chart(make_figure(page, points), folder / "curve.png")
    print(f"and {folder / 'curve.png'}")


def make_figure(page: dict[str, Any], points: Sequence[Point]) -> Figure:
    columns = [(n, each) for n, each in enumerate(page["columns"]) if _is_shown(each)]
    across = min(PANELS_A_LINE, len(columns))
    down = math.ceil(len(columns) / across)
    size = (PANEL_IN[0] * across, PANEL_IN[1] * down + 0.5)
    figure = Figure(figsize=size, dpi=120, layout=ConstrainedLayoutEngine())
    grid = figure.subplots(down, across, squeeze=False).flatten()
    rows = {row["label"]: row["cells"] for row in page["rows"]}
    for axes, (number, column) in zip(grid, columns):
        cells = {label: found[number] for label, found in rows.items()}
        _draw_panel(axes, column, cells, points)
    for axes in grid[len(columns) :]:
        axes.set_visible(False)
    handles, labels = grid[0].get_legend_handles_labels()
    beside = int(size[0] / (LEGEND_IN + SIGN_IN * max(map(len, labels))))
    ncols = max(1, min(len(labels), beside))
    figure.legend(handles, labels, loc="outside lower left", ncols=ncols, fontsize=8, frameon=False)
    return figure


def _is_shown(column: dict[str, Any]) -> bool:
    """Of a video's three figures the first, which is the mean of the others."""
    return column["metric"] in ("mIoU", "J&F")


def _draw_panel(
    axes: Axes, column: dict[str, Any], cells: dict[str, dict[str, Any]], points: Sequence[Point]
) -> None:
    unit = MILLION if max(point.images for point in points) >= MILLION else 1
    for number, line in enumerate(dict.fromkeys(point.line for point in points)):
        own = [(point.images / unit, cells[point.label]) for point in points if point.line == line]
        style: dict[str, Any] = {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
        }
        seen = [images for images, _ in own]
        scores = [_or_gap(cell["value"]) for _, cell in own]
        axes.plot(seen, scores, lw=1.4, ms=4, label=verbatim(line), **style)
        spread = [cell["deviation"] or 0.0 for _, cell in own]
        if any(spread):
            low = [score - by for score, by in zip(scores, spread)]
            high = [score + by for score, by in zip(scores, spread)]
            axes.fill_between(seen, low, high, color=style["color"], alpha=SHADE, lw=0)
    axes.set_title(verbatim(f"{column['group']}, {column['title']}"), fontsize=9, loc="left")
    axes.set_xlabel("images seen" + (", millions" if unit == MILLION else ""), fontsize=8)
    axes.xaxis.set_major_formatter("{x:,g}")
    span_enough(axes)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _or_gap(value: float | None) -> float:
    """A cell that failed leaves a gap in the line."""
    return math.nan if value is None else value
