"""A real training process, killed again and again, many times in the midst of a checkpoint."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import torch

from croc.errors import UserError
from croc.io import read_metrics
from croc.weights.checkpoint import checkpoints, load_checkpoint
from tests.tiny import FLAGS

START_S = 8.0
"""What a process takes to its first step, and some steps more."""
INTERVAL = 2
"""Steps between two checkpoints, in FLAGS."""


@dataclass
class Kills:
    """How often and when, and what was found after each."""

    kills: int = 0
    while_writing: int = 0  # a checkpoint was half-written
    at_any_moment: int = 0  # most of these are before the first step
    most_lost: int = 0  # steps that were logged and had to be done again
    unreadable: list[str] = field(default_factory=list)


def command(folder: Path, *more: str) -> list[str]:
    run = ["pretrain", "demo", *FLAGS, "--run.folder", str(folder), "--run.no-report"]
    return [sys.executable, "-m", "croc", *run, *more]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    arguments = command(folder, *more)
    return subprocess.Popen(arguments, env=environment(), stdout=DEVNULL, stderr=DEVNULL)


def train(folder: Path, more: Sequence[str] = ()) -> None:
    """To the end, undisturbed."""
    done = subprocess.run(command(folder, *more), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def kill(folder: Path, kills: int, seed: int, more: Sequence[str] = ()) -> Kills:
    """Start and kill it so often: in the midst of a checkpoint, after some step, and at any moment
    since its start, in turn."""
    draw, seen = random.Random(seed), Kills()
    while seen.kills < kills:
        process = start(folder, *more)
        moment, launched = seen.kills % 3, time.time()
        if moment == 2:
            time.sleep(draw.uniform(0, START_S))
        else:
            _wait(folder, process, draw, launched if moment == 0 else None)
        if process.poll() is not None:
            raise AssertionError(f"it ended by itself with {process.returncode}: give more steps")
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen.kills += 1
        seen.while_writing += _half_written(folder, launched)
        seen.at_any_moment += moment == 2
        _examine(folder, seen)
    return seen


def _wait(
    folder: Path, process: subprocess.Popen[Any], draw: random.Random, writes_since: float | None
) -> None:
    """For a checkpoint that is being written, or until the run has moved on and some moments."""
    before, deadline = _last_step(folder), time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if writes_since and _half_written(folder, writes_since):
            return
        if not writes_since and _last_step(folder) > before:
            time.sleep(draw.uniform(0, 0.15))
            return
        time.sleep(0.0005)


def _half_written(folder: Path, since: float) -> bool:
    """Whether a checkpoint is; what a kill before `since` left does not count."""
    try:
        times = [path.stat().st_mtime for path in (folder / "checkpoints").glob("*.partial")]
    except FileNotFoundError:  # renamed meanwhile
        return False
    return any(time > since for time in times)


def _last_step(folder: Path) -> int:
    try:
        return int(read_metrics(folder)[-1]["step"])
    except (OSError, ValueError, IndexError):
        return 0


def _examine(folder: Path, seen: Kills) -> None:
    """What is there must be whole, and not far behind."""
    found = checkpoints(folder)
    for path in found:
        try:
            load_checkpoint(path)
        except UserError as error:
            seen.unreadable.append(str(error))
    saved = load_checkpoint(found[-1])["step"] if found else 0
    seen.most_lost = max(seen.most_lost, _last_step(folder) - saved)


def same_weights(one: Path, other: Path) -> bool:
    """Of the last checkpoints: step, every tensor of every module, the optimizer's state."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor):
            return torch.equal(a, b)
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
        if isinstance(a, list | tuple):
            return len(a) == len(b) and all(map(same, a, b))
        return a == b

    return same(*(load_checkpoint(checkpoints(folder)[-1]) for folder in (one, other)))
