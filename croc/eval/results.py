"""What an evaluation found, as a line of results.jsonl and as a table on screen."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from croc import __version__
from croc.errors import UserError

FILE = "results.jsonl"
LIBRARIES = ("torch", "torchvision", "timm", "numpy", "scipy", "pillow", "faiss-cpu")


@dataclass(frozen=True)
class Result:
    """One protocol's scores of one backbone on one data set; scores are percentages."""

    protocol: str
    data: str
    weights: str
    """As they were asked for."""
    backbone: str
    """Its name, with a run's step."""
    weights_hash: str
    scores: dict[str, Any]
    """The figure that papers report comes first."""
    classes: dict[str, float | None]
    """IoU of each class, None for one absent from the data; J&F of each video."""
    config: dict[str, Any]
    """All of the protocol's settings."""
    count: dict[str, int]
    """Images or videos, by part."""
    machine: dict[str, str]
    """Device, precision, Python."""
    seconds: float
    picture: str | None
    """Beside results.jsonl."""
    data_hash: str = ""
    """Of the files' names, sizes and bytes, wherever they lie."""
    network_hash: str = ""
    """Of the architecture: the same weights may fit two."""
    hold_out: float = 0.0
    """The share of the training part that was scored; 0 for the validation part."""

    @property
    def part(self) -> str:
        """To stand after the data's name; nothing for the validation part."""
        return f" (held out {100 * self.hold_out:g}%)" if self.hold_out else ""

    @property
    def key(self) -> str:
        """The same for the same weights, data and settings, whenever and wherever it was run."""
        parts = (self.protocol, self.data, self.weights_hash, self.config)
        parts += (self.hold_out,) * bool(self.hold_out)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]


def append_result(folder: Path, result: Result) -> Path:
    """One whole line at the end of results.jsonl, or nothing."""
    line = {
        **dataclasses.asdict(result),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
    }
    text = json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"
    path = folder / FILE
    with path.open("a+b") as file:
        with contextlib.suppress(OSError):  # a disk without locks is one process's alone
            fcntl.lockf(file, fcntl.LOCK_EX)
        if _lacks_newline(file):
            text = "\n" + text  # a line cut off by a full disk must not spoil the next
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    return path


def _lacks_newline(file: Any) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def read_results(folder: Path, pass_over_bad: bool = False) -> list[dict[str, Any]]:
    """The lines of a folder's results.jsonl."""
    return read_lines(folder / FILE, pass_over_bad)


def read_lines(path: Path, pass_over_bad: bool = False) -> list[dict[str, Any]]:
    """The lines of a file; one that a kill cut off is an error or passed over."""
    found = []
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            if pass_over_bad:
                continue
            raise UserError(f"{path}, line {number}, is cut off: remove it") from None
    return found


def versions() -> dict[str, str | None]:
    return {"croc": __version__, "python": platform.python_version()} | {
        name: _version(name) for name in LIBRARIES
    }


def _version(name: str) -> str | None:
    """None for a library that pip knows nothing of: conda's faiss has another name."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def percent(share: float) -> float | None:
    """JSON has no nan: a class that is not there has no score."""
    return None if math.isnan(share) else 100 * share


def print_results(results: list[Result], console: Console | None = None) -> None:
    """A row an evaluation, then the classes of each."""
    console = console or Console(markup=False, emoji=False, highlight=False)
    table = Table(title=f"{results[0].weights} ({results[0].weights_hash})", title_justify="left")
    for name in ("protocol", "data", "score", "", "seconds"):
        table.add_column(name, justify="right" if name in ("score", "seconds") else "left")
    for result in results:
        name, *others = result.scores
        details = ", ".join(f"{other} {_short(result.scores[other])}" for other in others)
        score = f"{name} {_short(result.scores[name])}"
        data = result.data + result.part
        table.add_row(result.protocol, data, score, details, f"{result.seconds:.0f}")
    console.print(table)
    for result in results:
        parts = [f"{name} {_short(value)}" for name, value in result.classes.items()]
        console.print(f"{result.protocol}, {result.data}: " + ", ".join(parts), soft_wrap=True)


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_short, value))
    if isinstance(value, dict):
        return " ".join(f"{name}: {_short(each)}" for name, each in value.items())
    return "–" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
