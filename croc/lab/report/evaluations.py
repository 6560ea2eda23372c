"""Evaluations of the runs: the lines of results.jsonl, each given to the run that it is of."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from croc.errors import UserError
from croc.lab.report.reading import Run, number_in, read_lines

FILE = "results.jsonl"
FOLDERS = ("evaluations", "evaluation")
"""Where a run's own may lie; the second is the demo's."""


@dataclass(frozen=True)
class Score:
    """One line, of the right form."""

    run: int | None
    """Its place among the runs; None for weights that are of none of them."""
    protocol: str
    data: str
    label: str
    weights: str
    scores: dict[str, Any]
    classes: dict[str, float | None]
    picture: Path | None
    known_by: str
    """The same for the same weights, data and settings."""

    @property
    def main(self) -> tuple[str, float | None]:
        """The figure that papers report."""
        name = next(iter(self.scores))
        return name, number_in(self.scores[name])

    @property
    def untrained(self) -> bool:
        return self.weights.startswith("random:")


def find_scores(runs: Sequence[Run], given: Sequence[Path]) -> tuple[list[Score], list[str]]:
    """Of the runs' folders and of the files given; a repeated one counts once, as it was last."""
    scores: dict[str, Score] = {}
    notes: list[str] = []
    owned = [(run.folder / name / FILE, at) for at, run in enumerate(runs) for name in FOLDERS]
    for path, owner in [*owned, *((path, None) for path in given)]:
        if owner is not None and not path.is_file():
            continue
        for score in _read(path, owner, runs, notes):
            scores[score.known_by] = score
    return list(scores.values()), notes


def _read(path: Path, owner: int | None, runs: Sequence[Run], notes: list[str]) -> list[Score]:
    found, bad = [], 0
    try:
        for _, line in read_lines(path):
            score = None if line is None else _score(line, path, owner, runs)
            bad += score is None
            found += [score] * (score is not None)
    except OSError as error:
        if owner is None:
            raise UserError(f"--scores {path} cannot be read: {error.strerror}") from None
        notes.append(f"{path} cannot be read: {error.strerror}")
    if not found and owner is None:
        raise UserError(f"--scores {path} holds no line of croc evaluate")
    if bad:
        notes.append(f"{bad} lines of {path} are none of croc evaluate, and left out")
    return found


def _score(
    line: dict[str, Any], path: Path, owner: int | None, runs: Sequence[Run]
) -> Score | None:
    scores, classes = line.get("scores"), line.get("classes")
    if not isinstance(scores, dict) or not scores or not isinstance(line.get("protocol"), str):
        return None
    weights = str(line.get("weights", ""))
    held = number_in(line.get("hold_out")) or 0.0
    data = str(line.get("data", "")) + (f" (held out {100 * held:g}%)" if held else "")
    named = classes if isinstance(classes, dict) else {}
    identity = [line.get(name) for name in ("protocol", "data", "weights_hash", "config")]
    return Score(
        run=_owner(weights, str(line.get("backbone", "")), runs, owner),
        protocol=line["protocol"],
        data=data,
        label=str(line.get("backbone") or weights),
        weights=weights,
        scores={str(name): value for name, value in scores.items()},
        classes={str(name): number_in(value) for name, value in named.items()},
        picture=_picture(path.parent, line.get("picture")),
        known_by=json.dumps([*identity, held, weights], sort_keys=True),
    )


def _owner(weights: str, backbone: str, runs: Sequence[Run], owner: int | None) -> int | None:
    """By the folder that was scored; else by where the line lies, or by the run's name."""
    asked = weights.removeprefix("random:").partition("=")[2] or weights.removeprefix("random:")
    for number, run in enumerate(runs):
        if _is_path(asked) and _within(asked, run.folder):
            return number
    if owner is not None:
        return owner
    called = [at for at, run in enumerate(runs) if run.name == backbone.rpartition("@")[0]]
    return called[0] if len(called) == 1 else None


def _is_path(asked: str) -> bool:
    """Not a name, such as timm:NAME: that would lie below whatever folder one stands in."""
    if not asked:
        return False
    try:
        return Path(asked).is_absolute() or (
            ":" not in asked and ("/" in asked or Path(asked).exists())
        )
    except (OSError, ValueError):
        return False


def _within(path: str, folder: Path) -> bool:
    try:
        return Path(path).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # no path at all
        return False


def _picture(folder: Path, name: Any) -> Path | None:
    """A file beside results.jsonl, and nowhere else."""
    if not isinstance(name, str) or not name:
        return None
    path = folder / name
    return path if _within(str(path), folder) else None
