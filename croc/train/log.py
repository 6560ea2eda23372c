"""Logging: metrics.jsonl, gauges.jsonl, TensorBoard, and a progress bar or lines on the screen."""

import contextlib
import errno
import io
import json
import math
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from croc.io import read_lines, replacing

TIMINGS = {"images_per_s", "seconds"}


class RunLog:
    """Writes in the first process; in the others, calls do nothing."""

    def __init__(self, folder: Path, first_step: int, last_step: int, *, writes: bool) -> None:
        self.writes = writes
        self._failures: set[str] = set()
        if not writes:
            return
        metrics, self._gauges = folder / "metrics.jsonl", folder / "gauges.jsonl"
        for path in (metrics, self._gauges):
            _drop_lines_after(path, first_step)
        self._metrics = metrics.open("a", buffering=1)
        self._board = TensorBoard(folder / "tensorboard", first_step + 1)
        self._started = self._last_time = time.perf_counter()
        self._last_step, self._final_step, self._bar = first_step, last_step, None
        if sys.stderr.isatty():
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            times = (TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, *times, console=Console(stderr=True))
            self._task = self._bar.add_task("", total=last_step, completed=first_step)
            self._bar.start()

    def write(self, step: int, epoch: int, metrics: dict[str, float], batch: int) -> None:
        if not self.writes:
            return
        now = time.perf_counter()
        speed = batch * (step - self._last_step) / max(1e-9, now - self._last_time)
        self._last_step, self._last_time = step, now
        timings = {"images_per_s": round(speed, 2), "seconds": round(now - self._started, 3)}
        line = {"step": step, "epoch": epoch, **finite_or_none(metrics), **timings}
        with self.never_fatal("metrics cannot be written"):
            self._metrics.write(json.dumps(line) + "\n")
            self._board.write(step, {**metrics, **timings})
        k = f"  K {metrics['mean_k']:.1f}" if "mean_k" in metrics else ""
        text = f"loss {metrics['loss']:.3f}{k}  {speed:,.0f} images/s"
        if self._bar:
            self._bar.update(self._task, completed=step, description=text)
        else:
            self.say(f"step {step}/{self._final_step}  {text}")

    def write_gauges(self, step: int, values: dict[str, float]) -> None:
        if not self.writes:
            return
        with self.never_fatal("metrics cannot be written"):
            with self._gauges.open("a") as file:
                file.write(json.dumps({"step": step, **finite_or_none(values)}) + "\n")
            self._board.write(step, {f"gauges/{name}": value for name, value in values.items()})

    def advance(self, step: int) -> None:
        if self.writes and self._bar:
            self._bar.update(self._task, completed=step)

    def say(self, text: str) -> None:
        if not self.writes:
            return
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def never_fatal(self, failure: str) -> Iterator[None]:
        """Errors in curves, gauges and pictures do not stop a run; each is reported once."""
        try:
            yield
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            if failure not in self._failures:
                self.say(f"{failure} ({type(error).__name__}: {reason}); training continues")
            self._failures.add(failure)

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.writes:
            return
        if self._bar:
            self._bar.stop()
        for file in (self._board, self._metrics):
            with self.never_fatal("metrics cannot be written"):
                file.close()


def finite_or_none(values: dict[str, float]) -> dict[str, float | None]:
    """Non-finite values become None, since JSON has neither NaN nor infinity."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _drop_lines_after(path: Path, step: int) -> None:
    """Drop lines that a resumed run will log again, and lines that were cut off."""
    if path.exists():
        kept = [line for line in read_lines(path) if line.get("step", step + 1) <= step]
        with replacing(path) as partial:
            partial.write_text("".join(json.dumps(line) + "\n" for line in kept))


class TensorBoard:
    """Writes the curves since the run was last started; from `first_step` on, they replace those of
    earlier starts.

    torch's own writer is not used because its thread dies, with a traceback, if the disk is full
    for a moment.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        import tensorboard.compat.proto.event_pb2 as events
        import tensorboard.compat.proto.summary_pb2 as summaries

        self._events: Any = events  # created on import, so type checkers do not know them
        self._summary: Any = summaries.Summary  # pyright: ignore[reportAttributeAccessIssue]
        folder.mkdir(parents=True, exist_ok=True)
        process = f"{socket.gethostname()}.{os.getpid()}"
        path = folder / f"events.out.tfevents.{time.time():.6f}.{process}"
        self._file = path.open("ab", buffering=0)
        start = self._events.SessionLog(status=self._events.SessionLog.START)
        self._append(step=first_step, file_version="brain.Event:2")
        self._append(step=first_step, session_log=start)

    def write(self, step: int, values: dict[str, float]) -> None:
        """After an OSError, the file is unchanged."""
        scalars = [self._summary.Value(tag=name, simple_value=x) for name, x in values.items()]
        self._append(step=step, summary=self._summary(value=scalars))

    def close(self) -> None:
        self._file.close()

    def _append(self, **fields: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        event = self._events.Event(wall_time=time.time(), **fields)
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        end = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(record.getvalue()) < len(record.getvalue()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(end)  # readers would stop at an incomplete record
            raise
