"""Results of evaluations, as lines of results.jsonl and as text."""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from croc.io import read_lines, versions

FILE = "results.jsonl"
RENAMED = {"standardise": "standardize", "neighbours": "neighbors", "reading": "on"}
RENAMED |= {"best": "top_k", "rates": "lrs", "framing": "resize"}
RENAMED |= {"squash": "square", "keep": "keep-ratio"}
RENAMED |= {"weight_decay": "weight_decay_scale"}
"""Settings, and values of one, in older lines of results.jsonl."""


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

    protocol_version: int = 1
    """Of `VERSIONS`; 1 in lines without it."""

    @property
    def part(self) -> str:
        """A suffix for the dataset's name; empty for the validation split."""
        return f" (held out {100 * self.hold_out:g}%)" if self.hold_out else ""

    @property
    def key(self) -> str:
        """A hash of what identifies the evaluation."""
        return hashlib.sha256(key_of(dataclasses.asdict(self)).encode()).hexdigest()[:8]


def key_of(line: dict[str, Any]) -> str:
    """What determines a score, from a line of results.jsonl, which may be older than some of its
    fields: not the paths of data and weights, nor the device."""
    config = {
        RENAMED.get(name, name): RENAMED.get(value, value) if isinstance(value, str) else value
        for name, value in line.get("config", {}).items()
    }
    hashes = [line.get(name) for name in ("weights_hash", "network_hash")]
    data = line.get("data_hash") or line.get("data")
    parts = (config, hashes, line.get("machine", {}).get("precision"), line.get("hold_out", 0.0))
    parts += (data, line.get("protocol_version", 1))
    return json.dumps([line.get("protocol"), *parts], sort_keys=True)


def append_result(folder: Path, result: Result) -> None:
    """A line at the end of results.jsonl."""
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


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The lines of a folder's results.jsonl; none before the first result."""
    return read_lines(folder / FILE) if (folder / FILE).exists() else []


def deviation_of(scores: dict[str, Any], name: str) -> float | None:
    """A score's deviation over seeds or draws, if it has one."""
    deviation = scores.get("deviation")
    return deviation.get(name) if isinstance(deviation, dict) else deviation


def describe(result: Result) -> str:
    """The means of the scores with their deviations, and the classes."""
    texts = []
    for name, value in result.scores.items():
        if isinstance(value, float) and name != "deviation":
            deviation = deviation_of(result.scores, name)
            spread = "" if deviation is None else f" ± {deviation:.1f}"
            texts.append(f"{name} {value:.1f}{spread}")
    classes = [f"{name} {'–' if x is None else f'{x:.1f}'}" for name, x in result.classes.items()]
    first = f"{result.protocol} on {result.data}{result.part}, {result.backbone}"
    return f"{first}: {', '.join(texts)}\n  {', '.join(classes)}"
