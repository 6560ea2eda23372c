"""Moments of the device's work, and whether the host had to wait for it in between."""

import contextlib
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

WAITED = "called a synchronizing CUDA operation"
ANNOUNCED = "Synchronization debug mode is a prototype"


class Marks:
    """Moments in the device's queue; on the CPU, by the clock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._moments: list[float] = []

    def set(self) -> None:
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._moments.append(time.perf_counter())

    def apart_ms(self) -> list[float]:
        """From each to the next; waits for the device."""
        wait(self._device)
        if self._events:
            pairs = zip(self._events, self._events[1:])
            return [start.elapsed_time(end) for start, end in pairs]
        return [1e3 * (end - start) for start, end in zip(self._moments, self._moments[1:])]


def keep_busy(device: torch.device) -> None:
    """Some 30 ms of work for the GPU: what is launched meanwhile then runs without a pause."""
    if device.type == "cuda":
        square = torch.ones(4096, 4096, device=device, dtype=torch.bfloat16)
        for _ in range(150):
            square @ square  # pyright: ignore[reportUnusedExpression]


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def host_waits(device: torch.device) -> Iterator[list[str]]:
    """At its end, the places at which the host waited for the device meanwhile."""
    places: list[str] = []
    if device.type != "cuda":
        yield places
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        text = str(warning.message)
        if WAITED in text:
            places.append(f"{Path(warning.filename).name}:{warning.lineno}")
        elif ANNOUNCED not in text:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
