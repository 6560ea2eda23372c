"""A training process that is killed repeatedly, often while it writes a checkpoint."""

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
"""Time that a process needs for its first step and a few more."""
INTERVAL = 2
"""Steps between two checkpoints, in FLAGS."""


@dataclass
class Kills:
    """How often the process was killed, and what it left behind."""

    kills: int = 0
    while_writing: int = 0  # left a half-written checkpoint
    most_lost: int = 0  # logged steps that have to be repeated
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
    """Train to the end without a kill."""
    done = subprocess.run(command(folder, *more), env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def kill(folder: Path, kills: int, seed: int, more: Sequence[str] = ()) -> Kills:
    """Start and kill a run `kills` times: in turn while it writes a checkpoint, after a step and at
    a random moment."""
    rng, record = random.Random(seed), Kills()
    while record.kills < kills:
        process = start(folder, *more)
        moment, launched = record.kills % 3, time.time()
        if moment == 2:
            time.sleep(rng.uniform(0, START_S))
        else:
            _wait(folder, process, rng, launched if moment == 0 else None)
        if process.poll() is not None:
            raise AssertionError(
                f"exited with code {process.returncode} before the kill: use more steps"
            )
        process.send_signal(signal.SIGKILL)
        process.wait()
        record.kills += 1
        record.while_writing += _half_written(folder, launched)
        _check(folder, record)
    return record


def _wait(
    folder: Path, process: subprocess.Popen[Any], rng: random.Random, writes_since: float | None
) -> None:
    """Wait until a checkpoint is being written, or until shortly after the next step."""
    before, deadline = _last_step(folder), time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if writes_since and _half_written(folder, writes_since):
            return
        if not writes_since and _last_step(folder) > before:
            time.sleep(rng.uniform(0, 0.15))
            return
        time.sleep(0.0005)


def _half_written(folder: Path, since: float) -> bool:
    """Whether there is a partial checkpoint newer than `since`."""
    try:
        times = [path.stat().st_mtime for path in (folder / "checkpoints").glob("*.partial")]
    except FileNotFoundError:  # renamed in the meantime
        return False
    return any(time > since for time in times)


def _last_step(folder: Path) -> int:
    try:
        return int(read_metrics(folder)[-1]["step"])
    except (OSError, ValueError, IndexError):
        return 0


def _check(folder: Path, record: Kills) -> None:
    """Record unreadable checkpoints and steps that have to be repeated."""
    paths = checkpoints(folder)
    for path in paths:
        try:
            load_checkpoint(path)
        except UserError as error:
            record.unreadable.append(str(error))
    saved = load_checkpoint(paths[-1])["step"] if paths else 0
    record.most_lost = max(record.most_lost, _last_step(folder) - saved)


def same_weights(one: Path, other: Path) -> bool:
    """Whether the last checkpoints are identical, including the optimizer's state."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor):
            return torch.equal(a, b)
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
        if isinstance(a, list | tuple):
            return len(a) == len(b) and all(map(same, a, b))
        return a == b

    return same(*(load_checkpoint(checkpoints(folder)[-1]) for folder in (one, other)))
