"""Worker processes that leave signals to the main process, and still end with it."""

import atexit
import signal
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from croc.signals import NOTICES

_live: weakref.WeakSet[Any] = weakref.WeakSet()


def iterate(
    items: Dataset[Any], order: range, *, workers: int, ahead: int = 2, pin: bool = False
) -> Generator[Any, None, None]:
    """The items in order, made by `workers` processes that start now; 0 makes them here.

    Each worker runs at most `ahead` items ahead of the consumer.
    """
    loader = DataLoader(
        items,
        batch_size=None,
        sampler=order,
        num_workers=workers,
        prefetch_factor=ahead if workers else None,
        collate_fn=_unchanged,
        pin_memory=pin and torch.cuda.is_available(),
        worker_init_fn=_start_worker,
    )
    iterator = iter(loader)
    _live.add(iterator)
    return _closing(iterator)


def _unchanged(item: object) -> object:
    return item


def _start_worker(_: int) -> None:
    """Ctrl-C and a cluster's signal reach all processes; only the main one handles them."""
    for number in NOTICES:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)


def _closing(iterator: Iterator[Any]) -> Generator[Any, None, None]:
    try:
        yield from iterator
    finally:
        _stop_workers(iterator)


def _stop_workers(iterator: Iterator[Any]) -> None:
    # torch does this when its iterator is collected, but the traceback of an error keeps it alive.
    if stop := getattr(iterator, "_shutdown_workers", None):
        stop()
    # It waits some seconds, then sends the SIGTERM that workers ignore; nothing is lost here.
    for worker in getattr(iterator, "_workers", ()):
        if worker.is_alive():
            worker.kill()
            worker.join()


@atexit.register
def _stop_all_workers() -> None:
    """Runs before multiprocessing's own hook (registered earlier, when torch was imported), which
    would send the workers the SIGTERM that they ignore and wait for them forever."""
    for iterator in list(_live):
        _stop_workers(iterator)
