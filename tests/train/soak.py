"""The long tests of `make soak`: a hundred kills, twenty thousand steps watched from outside, and
ten thousand files of every bad kind.

python -m tests.train.soak [--kills 100] [--steps 20000] [--files 10000] [--to FILE.json]
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from croc.io import read_metrics
from tests.data.fuzz import fuzz_loader
from tests.train.kills import (
    INTERVAL,
    command,
    environment,
    kill_and_resume,
    same_weights,
    train,
)

STEPS_AN_EPOCH = 3
WARM_UP = 0.2
"""Share of a run after which its memory should stand still."""


@dataclass(frozen=True)
class Sample:
    """Of the training process, its loader's processes included."""

    step: int
    memory_mb: float
    files: int
    cpu_s: float
    """Of processors' time: unlike the clock's it does not tell of others' work."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--to", type=Path, help="JSON")
    options = parser.parse_args()
    page: dict[str, Any] = {"date": date.today().isoformat()}
    with tempfile.TemporaryDirectory() as scratch:
        if options.kills:
            page["kills"] = soak_kills(Path(scratch), options.kills)
            print(json.dumps(page["kills"]), flush=True)
        if options.steps:
            page["steps"] = soak_steps(Path(scratch) / "long", options.steps)
            print(json.dumps(page["steps"]), flush=True)
            check(page["steps"])
        if options.files:
            page["files"] = fuzz_loader(Path(scratch), options.files, seed=1, timeout_s=1800)
            print(json.dumps(page["files"]), flush=True)
    if options.to:
        options.to.write_text(json.dumps(page, indent=1) + "\n")


def soak_kills(scratch: Path, kills: int) -> dict[str, Any]:
    """Long enough that each kill finds the run at work: it does a few steps between two."""
    more = ("--optim.epochs", str(max(20, 4 * kills)))
    began = time.monotonic()
    train(scratch / "undisturbed", more)
    told = kill_and_resume(scratch / "killed", kills, seed=0, more=more)
    same = same_weights(scratch / "killed", scratch / "undisturbed")
    assert same, "the weights differ from those of an undisturbed run"
    assert not told.unreadable, told.unreadable
    assert told.most_lost <= INTERVAL, told
    return asdict(told) | {"same_weights": same, "seconds": round(time.monotonic() - began)}


def soak_steps(folder: Path, steps: int) -> dict[str, Any]:
    epochs = steps // STEPS_AN_EPOCH
    every = ("--run.checkpoint-every-steps", "50", "--run.log-every-steps", "10")
    more = ("--optim.epochs", str(epochs), "--data.workers", "1", *every)
    process = subprocess.Popen(
        command(folder, *more),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    samples: list[Sample] = []
    while process.poll() is None:
        sample = _sample(process.pid, folder)
        samples += [sample] if sample else []
        time.sleep(1)
    assert process.returncode == 0
    return judge(samples, folder)


def check(figures: dict[str, Any]) -> None:
    """Flat: a leak of a kilobyte a step, or of a file in twenty thousand, would be seen."""
    assert abs(figures["memory_mb_per_1000_steps"]) < 1, figures
    assert abs(figures["files_per_1000_steps"]) < 0.05, figures
    first, last = figures["cpu_ms_a_step_second_fifth"], figures["cpu_ms_a_step_last_fifth"]
    assert abs(last / first - 1) < 0.1, figures


def judge(samples: list[Sample], folder: Path) -> dict[str, Any]:
    """Slopes after the warm-up, a thousand steps; and the cost of a step at both ends."""
    last = samples[-1].step
    steady = [each for each in samples if WARM_UP * last < each.step < last]  # its worker ends then
    steps = np.array([each.step for each in steady]) / 1000
    memory = np.array([each.memory_mb for each in steady])
    files = np.array([each.files for each in steady])
    lines = read_metrics(folder)
    fifths = [[each for each in samples if n <= 5 * each.step / last < n + 1] for n in (1, 4)]
    second, final = (
        1000 * (part[-1].cpu_s - part[0].cpu_s) / (part[-1].step - part[0].step) for part in fifths
    )
    return {
        "steps": int(lines[-1]["step"]),
        "memory_mb": round(float(np.median(memory)), 1),
        "memory_mb_per_1000_steps": round(float(np.polyfit(steps, memory, 1)[0]), 4),
        "files": int(np.median(files)),
        "files_per_1000_steps": round(float(np.polyfit(steps, files, 1)[0]), 4),
        "cpu_ms_a_step_second_fifth": round(second, 2),
        "cpu_ms_a_step_last_fifth": round(final, 2),
        "seconds": float(lines[-1]["seconds"]),
    }


def _sample(pid: int, folder: Path) -> Sample | None:
    """None while it starts or ends."""
    try:
        pids = [pid, *_children(pid)]
        memory = sum(_rss_mb(each) for each in pids)
        files = sum(len(list(Path(f"/proc/{each}/fd").iterdir())) for each in pids)
        cpu_s = sum(_cpu_s(each) for each in pids)
        return Sample(int(read_metrics(folder)[-1]["step"]), memory, files, cpu_s)
    except (OSError, ValueError, IndexError):
        return None


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu_s(pid: int) -> float:
    """In its own code and in the kernel, for it."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    return int(found[0]) / 1024  # one that has just ended has none: an IndexError


if __name__ == "__main__":
    main()
