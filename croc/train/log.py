"""What a run says of itself: metrics.jsonl, gauges.jsonl, TensorBoard, and a bar or plain lines on
screen."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from croc.io import replacing
from croc.train.guard import finite_or_none

GAUGES = "gauges.jsonl"
TIMINGS = {"images_per_s", "seconds"}


class RunLog:
    """Writes on the first process only; elsewhere every call does nothing."""

    def __init__(self, folder: Path, first_step: int, last_step: int, *, writes: bool) -> None:
        self.writes = writes
        if not writes:
            return
        from croc.train.board import Board

        path, self._gauges = folder / "metrics.jsonl", folder / GAUGES
        _drop_later(path, first_step)
        _drop_later(self._gauges, first_step)
        self._file = path.open("a", buffering=1)
        self._board = Board(folder / "tensorboard", first_step + 1)
        self._screen = _Screen(first_step, last_step)
        self._failed = False
        self._started = time.perf_counter()
        self._last = (first_step, self._started)

    def write(self, step: int, epoch: int, metrics: dict[str, float], batch: int) -> None:
        if not self.writes:
            return
        now = time.perf_counter()
        before, then = self._last
        self._last = (step, now)
        speed = batch * (step - before) / max(1e-9, now - then)
        timings = {"images_per_s": round(speed, 2), "seconds": round(now - self._started, 3)}
        line = {"step": step, "epoch": epoch, **finite_or_none(metrics), **timings}
        with self._disk_may_fail():
            self._file.write(json.dumps(line) + "\n")
            self._board.write(step, {**metrics, **timings})
        self._screen.show(step, metrics, speed)

    def write_gauges(self, step: int, values: dict[str, float]) -> None:
        if not self.writes:
            return
        with self._disk_may_fail():
            with self._gauges.open("a") as file:
                file.write(json.dumps({"step": step, **finite_or_none(values)}) + "\n")
            self._board.write(step, {f"gauges/{name}": value for name, value in values.items()})

    def advance(self, step: int) -> None:
        if self.writes:
            self._screen.advance(step)

    def say(self, text: str) -> None:
        if self.writes:
            self._screen.say(text)

    @contextlib.contextmanager
    def _disk_may_fail(self) -> Iterator[None]:
        """A curve with a gap is no reason to end a run; what was not written may follow later."""
        try:
            yield
        except OSError as error:
            if not self._failed:
                self.say(f"metrics cannot be written ({error.strerror}); training continues")
            self._failed = True

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_: object) -> None:
        if self.writes:
            self._screen.close()
            with self._disk_may_fail():
                self._board.close()
            with self._disk_may_fail():
                self._file.close()


def read_metrics(folder: Path) -> list[dict[str, float | int]]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def read_gauges(folder: Path) -> list[dict[str, float | int | None]]:
    """The lines of a run's gauges.jsonl; none before the first checkpoint."""
    path = folder / GAUGES
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _drop_later(path: Path, step: int) -> None:
    """A resumed run says again what came after its checkpoint; so does a line cut off by a kill."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] > step:
                break
        except (ValueError, KeyError, TypeError):
            break
        kept.append(line + "\n")
    with replacing(path) as partial:
        partial.write_text("".join(kept))


class _Screen:
    """A progress bar on a terminal, plain lines elsewhere."""

    def __init__(self, first_step: int, last_step: int) -> None:
        self._last_step = last_step
        self._progress = None
        if sys.stderr.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            console = Console(stderr=True)
            self._progress = Progress(
                *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console
            )
            self._task = self._progress.add_task("", total=last_step, completed=first_step)
            self._progress.start()

    def show(self, step: int, metrics: dict[str, float], speed: float) -> None:
        k = f"  K {metrics['k_mean']:.1f}" if "k_mean" in metrics else ""
        said = f"loss {metrics['loss']:.3f}{k}  {speed:,.0f} images/s"
        if self._progress:
            self._progress.update(self._task, completed=step, description=said)
        else:
            print(f"step {step}/{self._last_step}  {said}", file=sys.stderr, flush=True)

    def advance(self, step: int) -> None:
        if self._progress:
            self._progress.update(self._task, completed=step)

    def say(self, text: str) -> None:
        if self._progress:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._progress:
            self._progress.stop()
