"""Flags to the checkpoints of runs, a row of a table each; then the curves through them."""

from dataclasses import dataclass
from pathlib import Path

from croc.errors import UserError
from croc.eval.table.command import TableOptions, read_flags, split_label
from croc.train.run_folder import PAGE, read_config

PROGRAM = "croc evaluate curve"


@dataclass(frozen=True)
class CurveOptions(TableOptions):
    """Every checkpoint of some runs, and their networks before the first step: scores against the
    images seen. What is finished is not computed again, so it may be asked while a run goes on."""

    weights: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    """LABEL=RUN, or just RUN: folders of croc pretrain; a line each. --run.keep-every-steps keeps
    more of a run than its last two checkpoints."""
    average: bool = False
    """A panel with the mean of a protocol's data sets, if there are several."""
    to: str = "curves"
    """Folder of curve.png, of table.md, .tex, .html and .json with a row a checkpoint, of
    results.jsonl, which grows and holds what is finished, and of the pictures."""


@dataclass(frozen=True)
class Point:
    """Weights on a run's line."""

    line: str
    images: int
    """Seen so far, repeated ones counted again."""
    spec: str

    @property
    def label(self) -> str:
        return f"{self.line}, {self.images:,} images"


def run_command(arguments: list[str]) -> bool:
    """Score, write the table and draw; whether every cell was filled."""
    options, wanted = read_flags(arguments, CurveOptions, PROGRAM)
    points = [point for text in options.weights for point in points_of(*split_label(text))]
    by_label = {point.label: point for point in points}
    if len(by_label) < len(points):
        raise UserError("two of the runs are called the same: give them LABEL=RUN")
    from croc.eval.curve.picture import draw_curves
    from croc.eval.table.make import make_table

    filled = make_table(options, {point.label: point.spec for point in points}, wanted)
    draw_curves(Path(options.to), points)
    return filled


def points_of(label: str, run: str) -> list[Point]:
    """The run before its first step (of random weights), and at each of its checkpoints."""
    from croc.train.checkpoint import checkpoints, step_of

    folder = Path(run)
    found = checkpoints(folder) if (folder / PAGE).is_file() else []
    if not found:
        raise UserError(f"--weights {run}: a curve is of runs, and this is no folder of one")
    config, _ = read_config(folder / PAGE)
    line = folder.resolve().name if label == run else label
    # A run from other weights did not start from random ones.
    start = [] if config.model.init else [Point(line, 0, f"random:{run}")]
    seen = (step_of(path) * config.optim.batch for path in found)
    return start + [Point(line, images, str(path)) for images, path in zip(seen, found) if images]
