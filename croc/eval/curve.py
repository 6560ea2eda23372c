"""`croc evaluate curve`: the scores of runs' checkpoints against the images seen."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from croc.config import CONFIG_FILE, read_config
from croc.errors import UserError
from croc.eval.protocols import read_options
from croc.eval.table import TableOptions, make_table, split_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS_PER_LINE = 4
MILLION = 1_000_000


@dataclass(frozen=True)
class CurveOptions(TableOptions):
    """Plot the scores of every checkpoint of one or more runs, and of the untrained networks,
    against the number of images seen. Finished scores are reused: rerun it during training."""

    weights: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    """LABEL=RUN, or just RUN: run folders; one line each. To keep more than a run's last two
    checkpoints, train with --run.keep-every-steps."""
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
    from croc.weights.open import expand

    folder = expand(run)
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
    """A panel for each protocol and dataset, one line per run; of videos' scores, only J&F."""
    from croc.eval.pictures import line_figure

    cells = {row["label"]: row["cells"] for row in record["rows"]}
    unit = MILLION if max(point.images for point in points) >= MILLION else 1
    panels: dict[str, dict[str, Any]] = {}
    for number, column in enumerate(record["columns"]):
        if column["data"] is None or column["metric"] in ("J", "F"):
            continue
        lines = panels[f"{column['group']}, {column['title']}"] = {}
        for point in points:
            cell = cells[point.label][number]
            xy = (point.images / unit, cell["value"], cell["deviation"])
            lines.setdefault(point.line, []).append(xy)
    x_label = "images seen" + (", millions" if unit == MILLION else "")
    return line_figure(panels, x_label, min(PANELS_PER_LINE, len(panels)))
