"""Named stages of a step, as ranges for torch.profiler, or timed by a stopwatch.

The kernels of a backward pass are launched by another thread, so the profiler does not attribute
them to the range around it. The stopwatch does, with events in the GPU's queue.
"""

import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.profiler import record_function

_running: "list[Stopwatch]" = []


class Stopwatch:
    """Adds up the time of every stage; on a GPU with events in its queue, without waiting."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._seconds: dict[str, float] = {}

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        """Time the stages that run in this context."""
        _running.append(self)
        try:
            yield
        finally:
            _running.remove(self)

    @contextmanager
    def time(self, name: str) -> Generator[None, None, None]:
        if self._device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            yield
            end.record()
            self._spans.append((name, start, end))
        else:
            began = time.perf_counter()
            yield
            self._add(name, time.perf_counter() - began)

    def seconds(self) -> dict[str, float]:
        """Seconds of each stage, in the order of their first run; waits for the device."""
        if self._spans:
            torch.cuda.synchronize(self._device)
        for name, start, end in self._spans:
            self._add(name, start.elapsed_time(end) / 1000)
        self._spans.clear()
        return dict(self._seconds)

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds


def profile_range(name: str) -> AbstractContextManager[Any]:
    """A stage of the step. Use it around compiled functions, not inside them."""
    return _running[-1].time(name) if _running else record_function(name)
