"""The slow tests of `make soak`: 100 kills, 20,000 steps with memory monitored, and 10,000 corrupt
or unusual files.

python -m tests.train.soak [--kills 100] [--steps 20000] [--files 10000] [--to FILE.json]
"""

import argparse
import json
import os
import re
import tempfile
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from croc.io import read_metrics
from tests.data.fuzz import fuzz_loader
from tests.train.kills import INTERVAL, kill, same_weights, start, train

STEPS_AN_EPOCH = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--to", type=Path, help="JSON")
    options = parser.parse_args()
    record: dict[str, Any] = {"date": date.today().isoformat()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, number, soak in (
            ("kills", options.kills, lambda: soak_kills(folder, options.kills)),
            ("steps", options.steps, lambda: check(soak_steps(folder / "long", options.steps))),
            ("files", options.files, lambda: fuzz_loader(folder, options.files, 1, 1800)),
        ):
            if number:
                record[name] = soak()
                print(json.dumps(record[name]), flush=True)
    if options.to:
        options.to.write_text(json.dumps(record, indent=1) + "\n")


def soak_kills(scratch: Path, kills: int) -> dict[str, Any]:
    """Kill a run many times, resume it and compare its weights with an uninterrupted run's."""
    more = ("--optim.epochs", str(max(20, 4 * kills)))  # not finished before the last kill
    start_s = time.monotonic()
    train(scratch / "uninterrupted", more)
    outcome = kill(scratch / "killed", kills, seed=0, more=more)
    train(scratch / "killed", more)
    same = same_weights(scratch / "killed", scratch / "uninterrupted")
    assert same, "the weights differ from those of an uninterrupted run"
    assert not outcome.unreadable, outcome.unreadable
    assert outcome.most_lost <= INTERVAL, outcome
    return asdict(outcome) | {"same_weights": same, "seconds": round(time.monotonic() - start_s)}


def soak_steps(folder: Path, steps: int) -> dict[str, Any]:
    """Slopes of memory and open files per thousand steps after a warm-up, and the CPU time per step
    (unlike wall time, independent of other processes) early and late in the run."""
    every = ("--run.checkpoint-every-steps", "50", "--run.log-every-steps", "10")
    epochs = str(steps // STEPS_AN_EPOCH)
    process = start(folder, "--optim.epochs", epochs, "--data.workers", "1", *every)
    samples: list[tuple[float, ...]] = []
    while process.poll() is None:
        samples += _sample(process.pid, folder)
        time.sleep(1)
    assert process.returncode == 0
    step, memory, files, cpu_s = np.array(samples).T
    share = step / step[-1]
    steady = (share > 0.2) & (share < 1)  # the loader's worker exits with the run

    def slope(values: np.ndarray, where: np.ndarray) -> float:
        return round(float(np.polyfit(step[where] / 1000, values[where], 1)[0]), 4)

    return {
        "steps": int(read_metrics(folder)[-1]["step"]),
        "memory_mb": round(float(np.median(memory[steady])), 1),
        "memory_mb_per_1000_steps": slope(memory, steady),
        "files": int(np.median(files[steady])),
        "files_per_1000_steps": slope(files, steady),
        "cpu_ms_per_step_second_fifth": slope(cpu_s, (share >= 0.2) & (share < 0.4)),
        "cpu_ms_per_step_last_fifth": slope(cpu_s, (share >= 0.8) & (share < 1)),
        "seconds": float(read_metrics(folder)[-1]["seconds"]),
    }


def check(figures: dict[str, Any]) -> dict[str, Any]:
    """Fails on a leak of one kilobyte per step or one file per 20,000 steps."""
    assert abs(figures["memory_mb_per_1000_steps"]) < 1, figures
    assert abs(figures["files_per_1000_steps"]) < 0.05, figures
    first, last = figures["cpu_ms_per_step_second_fifth"], figures["cpu_ms_per_step_last_fifth"]
    assert abs(last / first - 1) < 0.1, figures
    return figures


def _sample(pid: int, folder: Path) -> list[tuple[float, ...]]:
    """Step, memory in MB, open files and CPU time of the training process and its loader's workers;
    empty while they start or exit."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        memory = files = cpu_s = 0.0
        for process in (Path("/proc") / each for each in (str(pid), *children)):
            memory += int(re.findall(r"VmRSS:\s+(\d+)", (process / "status").read_text())[0]) / 1024
            files += len(list((process / "fd").iterdir()))
            numbers = (process / "stat").read_text().rpartition(")")[2].split()
            cpu_s += (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")
        return [(read_metrics(folder)[-1]["step"], memory, files, cpu_s)]
    except (OSError, ValueError, IndexError):
        return []


if __name__ == "__main__":
    main()
