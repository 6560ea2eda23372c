"""A run's folder, read with care: it may be half written, old, or not ours at all."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from croc.errors import UserError
from croc.train.run_folder import PAGE

METRICS, GAUGES = "metrics.jsonl", "gauges.jsonl"
PLACES = {"step", "epoch"}
"""Where a line belongs, not what it says."""

LARGEST = 1e100
"""Far beyond, differences are no longer finite."""
LARGEST_BYTES = 1 << 28
"""Of a file of lines: half a million of our own. A larger one is something else."""


@dataclass
class Series:
    """One metric of one run."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """By step: a file put together by hand may hold lines in any order."""
        steps, values = np.array(self.steps, np.int64), np.array(self.values)
        order = np.argsort(steps, kind="stable")
        return steps[order], values[order]


@dataclass
class Run:
    """What a folder tells of its run."""

    folder: Path
    name: str
    recipe: str
    method: str
    options: dict[str, Any]
    """By their full names: optim.batch."""
    metrics: dict[str, Series] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Step and epoch of each line."""
    step: int = 0
    """The last one that a line is of."""
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""

    def option(self, name: str) -> float | None:
        """A positive number among the options, or None."""
        value = number_in(self.options.get(name))
        return value if value and value > 0 else None

    def whole_option(self, name: str) -> int | None:
        value = self.option(name)
        return int(value) if value and value == int(value) else None

    @property
    def steps_per_epoch(self) -> int | None:
        """From what the lines say: a step s counted from 0 is of epoch s // n. None before the
        first epoch's end, when it cannot be known."""
        least = max((step // (epoch + 1) + 1 for step, epoch in self.epochs), default=1)
        later = [step // epoch for step, epoch in self.epochs if epoch > 0]
        return least if later and least <= min(later) else None


def read_run(folder: Path) -> Run:
    """A folder without a run's configuration is refused; all else may be missing."""
    page = _read_config(folder)
    options = dict(_flat({name: page[name] for name in page if name not in ("recipe", "method")}))
    name = folder.resolve().name or str(folder)
    run = Run(folder, name, str(page["recipe"]), str(page.get("method", "croc")), options)
    for file in (METRICS, GAUGES):
        try:
            _read_metrics(folder / file, run)
        except FileNotFoundError:
            if file == METRICS:  # older runs have no gauges
                run.notes.append(f"{file} is not there yet: there are no curves")
        except OSError as error:
            run.notes.append(f"{file} {error.strerror}: its curves are missing")
    return run


def read_json(path: Path) -> Any:
    """None where there is no such file; ValueError for one that is no JSON."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise ValueError("it is too large")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The lines of a file by number; None for one that is no JSON object."""
    if path.stat().st_size > LARGEST_BYTES:
        raise OSError(0, "is too large")
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, _object(line)


def number_in(value: Any) -> float | None:
    """A number that can be drawn, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if abs(value) <= LARGEST else None  # nor is nan


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / PAGE
    if not path.is_file():
        raise UserError(f"{folder} holds no run: give a folder that `croc pretrain` wrote")
    try:
        page = read_json(path)
    except ValueError as error:
        raise UserError(f"{path} is no configuration of a CrOC run: {error}") from None
    if not isinstance(page, dict) or "recipe" not in page:
        raise UserError(f"{path} is no configuration of a CrOC run: it names no recipe")
    return page


def _flat(page: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in page.items():
        if isinstance(value, dict) and value and before.count(".") < 3:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _read_metrics(path: Path, run: Run) -> None:
    bad: list[int] = []
    odd = last = 0
    name = path.name
    for last, line in read_lines(path):
        step = number_in(line.get("step")) if line else None
        if line is None or step is None or not 0 <= step < 2**53:
            bad.append(last)
            continue
        odd += _add_line(run, int(step), line)
    if bad == [last]:
        run.notes.append(f"the last line of {name} is not whole yet, and left out")
    elif bad:
        run.notes.append(f"{len(bad)} lines of {name} are none of ours, line {bad[0]} the first")
    if odd:
        run.notes.append(f"{odd} values in {name} are no finite numbers, and left out")
    if not run.metrics:
        run.notes.append(f"{name} holds no line yet: there are no curves")


def _add_line(run: Run, step: int, line: dict[str, Any]) -> int:
    """How many values of the line could not be taken."""
    odd = 0
    for name, value in line.items():
        if name in PLACES:
            continue
        # Long runs have millions of values, almost all of them plain: no call for those.
        plain = type(value) is float and -LARGEST <= value <= LARGEST
        number = value if plain else number_in(value)
        if number is None:
            odd += 1
            continue
        series = run.metrics.get(name)
        if series is None:
            series = run.metrics[name] = Series()
        series.steps.append(step)
        series.values.append(number)
        run.step = max(run.step, step)
    epoch = line.get("epoch")
    if type(epoch) is int and 0 <= epoch < 2**53 and step > 0:
        run.epochs.append((step - 1, epoch))
    return odd
