"""Loader processes that leave signals to the main one, and end with it all the same."""

import atexit
import signal
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from croc.train.signals import NOTICES

_live: weakref.WeakSet[Any] = weakref.WeakSet()


def iterate(
    items: Dataset[Any], order: range, *, workers: int, ahead: int = 2, pin: bool = False
) -> Generator[Any, None, None]:
    """The items in order, made by `workers` processes that start now; 0 makes them here.

    Each worker runs at most `ahead` items ahead of the one who consumes them.
    """
    loader = DataLoader(
        items,
        batch_size=None,
        sampler=order,
        num_workers=workers,
        prefetch_factor=ahead if workers else None,
        collate_fn=_as_it_is,
        pin_memory=pin and torch.cuda.is_available(),
        worker_init_fn=_leave_signals_to_main,
    )
    iterator = iter(loader)
    _live.add(iterator)
    return _ending_workers(iterator)


def _as_it_is(item: object) -> object:
    return item


def _leave_signals_to_main(_: int) -> None:
    """Ctrl-C and a cluster's notice reach all processes; the main one alone answers them."""
    for number in NOTICES:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)


def _ending_workers(iterator: Iterator[Any]) -> Generator[Any, None, None]:
    try:
        yield from iterator
    finally:
        _end_workers(iterator)


def _end_workers(iterator: Iterator[Any]) -> None:
    # torch does this when its iterator is collected, but the traceback of an error keeps it.
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()
    # It gives them some seconds, then sends the SIGTERM that they ignore; nothing is lost here.
    for worker in getattr(iterator, "_workers", ()):
        if worker.is_alive():
            worker.kill()
            worker.join()


@atexit.register
def _end_all_workers() -> None:
    """Before multiprocessing's own hook, which would send the workers the SIGTERM that they
    ignore and then wait for them for ever. Hooks run last in, first out, and torch has
    registered that one already."""
    for iterator in list(_live):
        _end_workers(iterator)
