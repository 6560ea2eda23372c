"""`croc evaluate curve`: the scores of runs' checkpoints against the images seen."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from croc.config import CONFIG_FILE, read_config
from croc.errors import UserError
from croc.eval.table import TableOptions, make_table, read_options, split_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL_IN, PANELS_PER_LINE = (3.8, 3.0), 4
MILLION = 1_000_000


@dataclass(frozen=True)
class CurveOptions(TableOptions):
    """Plot the scores of every checkpoint of one or more runs, and of the untrained networks,
    against the number of images seen. Finished scores are reused: rerun it during training."""

    weights: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    """LABEL=RUN, or just RUN: run folders; one line each. To keep more than a run's last two
    checkpoints, train with --run.keep-every-steps."""
    average: bool = False
    """Add a panel with the mean over a protocol's datasets, if there are several."""
    to: str = "curves"
    """Output folder for curve.png, table.md, .tex and .json (one row per checkpoint), results.jsonl
    (finished cells are appended) and pictures."""


class Point(NamedTuple):
    """Weights on a run's line; repeated images are counted again."""

    line: str
    images: int
    spec: str

    @property
    def label(self) -> str:
        return f"{self.line}, {self.images:,} images"


def run_command(arguments: list[str]) -> bool:
    """Score, write the table and draw; whether every cell was computed."""
    options, columns = read_options(arguments, CurveOptions, "croc evaluate curve")
    points = [point for text in options.weights for point in points_of(*split_label(text))]
    weights = {point.label: point.spec for point in points}
    if len(weights) < len(points):
        raise UserError("two of the runs have the same name: give them LABEL=RUN")
    complete = make_table(options, weights, columns)
    from croc.plotting import save_chart

    folder = Path(options.to)
    record = json.loads((folder / "table.json").read_text())
    save_chart(make_figure(record, points), folder / "curve.png")
    print(f"and {folder / 'curve.png'}")
    return complete


def points_of(label: str, run: str) -> list[Point]:
    """A run before its first step, with random weights, and at each of its checkpoints."""
    from croc.weights.checkpoint import checkpoints, step_of

    folder = Path(run)
    saved = checkpoints(folder) if (folder / CONFIG_FILE).is_file() else []
    if not saved:
        raise UserError(f"--weights {run}: not the folder of a run with checkpoints")
    config, _ = read_config(folder / CONFIG_FILE)
    line = folder.resolve().name if label == run else label
    # A run from other weights did not start from random ones.
    start = [] if config.model.init else [Point(line, 0, f"random:{run}")]
    images = {path: step_of(path) * config.optim.batch for path in saved}
    return start + [Point(line, seen, str(path)) for path, seen in images.items() if seen]


def make_figure(record: dict[str, Any], points: Sequence[Point]) -> "Figure":
    """A panel for each protocol and dataset, one line per run."""
    import numpy as np
    from matplotlib.figure import Figure

    from croc.plotting import COLORS, MARKERS, span_enough, verbatim

    # Not the J and F of a video, of which J&F is the mean.
    columns = enumerate(record["columns"])
    shown = [(n, each) for n, each in columns if each["metric"] not in ("J", "F")]
    across = min(PANELS_PER_LINE, len(shown))
    down = math.ceil(len(shown) / across)
    size = (PANEL_IN[0] * across, PANEL_IN[1] * down + 0.5)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    rows = {row["label"]: row["cells"] for row in record["rows"]}
    unit = MILLION if max(point.images for point in points) >= MILLION else 1
    for place, (number, column) in enumerate(shown, start=1):
        axes = figure.add_subplot(down, across, place)
        for index, line in enumerate(dict.fromkeys(point.line for point in points)):
            own = [point for point in points if point.line == line]
            cells = [rows[point.label][number] for point in own]
            seen = [point.images / unit for point in own]
            # A cell that failed leaves a gap in the line.
            scores = np.array([math.nan if x["value"] is None else x["value"] for x in cells])
            spread = np.array([cell["deviation"] or 0.0 for cell in cells])
            color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
            style: dict[str, Any] = {"color": color, "marker": marker, "label": verbatim(line)}
            axes.plot(seen, scores, lw=1.4, ms=4, **style)
            axes.fill_between(seen, scores - spread, scores + spread, color=color, alpha=0.15, lw=0)
        axes.set_title(verbatim(f"{column['group']}, {column['title']}"), fontsize=9, loc="left")
        axes.set_xlabel("images seen" + (", millions" if unit == MILLION else ""), fontsize=8)
        axes.xaxis.set_major_formatter("{x:,g}")
        span_enough(axes)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", fontsize=8, frameon=False)
    return figure
