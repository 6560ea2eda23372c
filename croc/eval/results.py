"""Results of evaluations, as lines of results.jsonl and as a table on screen."""

import dataclasses
import hashlib
import json
import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from croc.io import read_lines, versions

FILE = "results.jsonl"


@dataclass(frozen=True)
class Result:
    """One protocol's scores of one backbone on one dataset; scores are percentages."""

    protocol: str
    data: str
    weights: str
    """As passed by the caller."""
    backbone: str
    """Its name, with a run's step."""
    weights_hash: str
    scores: dict[str, Any]
    """The score that papers report comes first."""
    classes: dict[str, float | None]
    """IoU of each class (None if absent from the data), or J&F of each video."""
    config: dict[str, Any]
    """All of the protocol's settings."""
    count: dict[str, int]
    """Number of images or videos, by split."""
    machine: dict[str, str]
    """Device and precision."""
    seconds: float
    picture: str | None
    """Path relative to results.jsonl."""
    data_hash: str = ""
    """Hash of the files' names, sizes and bytes, independent of their location."""
    network_hash: str = ""
    """Hash of the architecture: the same weights may fit two."""
    hold_out: float = 0.0
    """The fraction of the training split that was scored; 0 for the validation split."""

    @property
    def part(self) -> str:
        """A suffix for the dataset's name; empty for the validation split."""
        return f" (held out {100 * self.hold_out:g}%)" if self.hold_out else ""

    @property
    def key(self) -> str:
        """Identifies the evaluation: equal for equal weights, data and settings, on any machine."""
        parts = (self.protocol, self.data, self.weights_hash, self.config)
        parts += (self.hold_out,) * bool(self.hold_out)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]


def append_result(folder: Path, result: Result) -> None:
    """One whole line at the end of results.jsonl, or nothing."""
    line = {
        **dataclasses.asdict(result),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
    }
    text = json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"
    with (folder / FILE).open("a+b") as file:  # one write: processes may share it
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a line truncated by a full disk must not spoil this one
                text = "\n" + text
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The lines of a folder's results.jsonl."""
    return read_lines(folder / FILE)


def percent(share: float) -> float | None:
    """JSON has no nan: an absent class has no score."""
    return None if math.isnan(share) else 100 * share


def print_results(results: list[Result]) -> None:
    """One row per evaluation, then the classes of each."""
    console = Console(markup=False, emoji=False, highlight=False)
    table = Table(title=f"{results[0].weights} ({results[0].weights_hash})", title_justify="left")
    for name in ("protocol", "data", "score", "", "seconds"):
        is_number = name in ("score", "seconds")
        table.add_column(name, justify="right" if is_number else "left", no_wrap=is_number)
    for result in results:
        first, *others = _texts(result.scores)
        data = result.data + result.part
        table.add_row(result.protocol, data, first, ", ".join(others), f"{result.seconds:.0f}")
    console.print(table)
    for result in results:
        parts = [f"{name} {_short(value)}" for name, value in result.classes.items()]
        console.print(f"{result.protocol}, {result.data}: " + ", ".join(parts), soft_wrap=True)


def _texts(scores: dict[str, Any]) -> list[str]:
    """Scores as text, with each deviation next to its mean; scores of single draws are left out."""
    spread = scores.get("deviation")
    if not isinstance(spread, dict):
        return [f"{name} {_short(value)}" for name, value in scores.items()]
    hidden = ("deviation", "by draw", "images")
    ends = {name: f" ± {_short(value)}" for name, value in spread.items()}
    return [f"{k} {_short(x)}{ends.get(k, '')}" for k, x in scores.items() if k not in hidden]


def _short(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_short, value))
    if isinstance(value, dict):
        return " ".join(f"{name}: {_short(each)}" for name, each in value.items())
    return "–" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
