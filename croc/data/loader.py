"""Batches by the number of the step: any step can be made alone, so any run can be resumed."""

import os
from collections.abc import Generator, Iterable
from contextlib import closing
from functools import lru_cache
from itertools import islice

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch.utils.data import Dataset

from croc.config import DataConfig
from croc.data.decode import UndecodableImage, fill_canvas
from croc.data.prefetch import prefetch
from croc.data.reduce import reduce_image
from croc.data.ring import Ring, slots_needed
from croc.data.sources import ImageSource
from croc.data.workers import iterate
from croc.errors import UserError
from croc.method.randomness import derive, sample_key
from croc.method.types import Canvases

_TRIES = 100
_NAMES_SHOWN = 20
_CPU = torch.device("cpu")

# Parts of batches that a worker has been asked for and not delivered. With two, decoding that is
# about as fast as training was up to 15% slower; the price is the ring's memory.
_PARTS_AHEAD = 4

# What a worker sends of the part that it made: names of files that failed, or the error to raise.
_Part = list[str] | UserError


@lru_cache(maxsize=2)
def epoch_order(count: int, seed: int, epoch: int) -> Int64[np.ndarray, "count"]:
    """A permutation of the images that depends on nothing but (count, seed, epoch).

    It sorts by the hash that also draws the crops, not by a library's generator, whose stream
    may change between versions. The hash maps no two numbers to one, so there are no ties.
    """
    keys = torch.arange(count) + sample_key(seed, epoch, 0)
    order = np.argsort(derive(keys, "order").numpy(), kind="stable")
    order.setflags(write=False)
    return order


def steps_per_epoch(count: int, batch: int) -> int:
    """Whole batches in the data; the rest is left out of the epoch."""
    return count // batch


def batch_indices(
    step: int, count: int, batch: int, seed: int, rank: int = 0, processes: int = 1
) -> tuple[int, Int64[np.ndarray, "B"]]:
    """The epoch of a step, and the images of it that are this process's."""
    _check_batch(count, batch, processes)
    epoch, step_in_epoch = divmod(step, steps_per_epoch(count, batch))
    share = batch // processes
    start = step_in_epoch * batch + rank * share
    return epoch, epoch_order(count, seed, epoch)[start : start + share]


def _check_batch(count: int, batch: int, processes: int) -> None:
    if batch % processes:
        fitting = max(batch // processes, 1) * processes
        raise UserError(
            f"a batch of {batch} cannot be shared by {processes} processes: "
            f"pass --optim.batch {fitting}"
        )
    if count < batch:
        fitting = count // processes * processes
        advice = f"pass --optim.batch {fitting}" if fitting else "give more images"
        raise UserError(f"{count} images do not fill a batch of {batch}: {advice}")


def worker_count(config: DataConfig, processes: int = 1) -> int:
    """As asked for, or one a core, shared by the machine's training processes, 16 at most."""
    if config.workers is not None:
        return config.workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(16, (cores or 1) // processes))


def make_loader(
    source: ImageSource,
    *,
    canvas_px: int,
    batch: int,
    seed: int,
    first_step: int,
    last_step: int,
    rank: int = 0,
    processes: int = 1,
    workers: int = 0,
    device: torch.device = _CPU,
) -> Generator[Canvases, None, None]:
    """One batch for each step from `first_step` to before `last_step`, across epochs.

    They come on the device. The workers start here, not when the first batch is asked for; each
    makes a part of every batch.
    """
    _check_batch(len(source), batch, processes)
    parts = max(1, min(workers, batch // processes))
    slots = slots_needed(workers * _PARTS_AHEAD, parts)
    ring = Ring(slots, batch // processes, canvas_px, shared=workers > 0)
    making = _Parts(source, ring, parts, batch, seed, rank, processes)
    order = range(first_step * parts, last_step * parts)
    made = iterate(making, order, workers=workers, ahead=_PARTS_AHEAD)
    return _delivered(_whole(made, ring, parts, range(first_step, last_step)), ring, device)


def _delivered(
    batches: Generator[Canvases, None, None], ring: Ring, device: torch.device
) -> Generator[Canvases, None, None]:
    with closing(batches):
        if device.type == "cuda":
            with ring.pinned(device), closing(prefetch(batches, device)) as arriving:
                yield from arriving
        else:
            for canvases in batches:
                yield canvases.copied()


def _whole(
    made: Generator[_Part, None, None], ring: Ring, parts: int, steps: range
) -> Generator[Canvases, None, None]:
    """Batches in the ring's memory: each may be written over once the next but one is begun."""
    with closing(made):
        for step in steps:
            failed: dict[str, None] = {}
            for part in islice(made, parts):
                if isinstance(part, UserError):
                    raise part
                failed |= dict.fromkeys(part)
            yield ring.of_step(step, tuple(failed))


class _Parts(Dataset[_Part]):
    """Makes the parts of one process's batches in the ring; part p of step s is s · parts + p."""

    def __init__(
        self,
        source: ImageSource,
        ring: Ring,
        parts: int,
        batch: int,
        seed: int,
        rank: int,
        processes: int,
    ) -> None:
        self.source = source
        self.ring = ring
        self.parts = parts
        self.batch = batch
        self.seed = seed
        self.rank = rank
        self.processes = processes

    def __getitem__(self, index: int) -> _Part:
        try:
            return self._make(*divmod(index, self.parts))
        except UserError as error:
            return error  # raised by a worker, it would arrive wrapped in a traceback

    def _make(self, step: int, part: int) -> list[str]:
        epoch, indices = batch_indices(
            step, len(self.source), self.batch, self.seed, self.rank, self.processes
        )
        canvases = self.ring.of_step(step)
        pixels, canvas_px = canvases.pixels.numpy(), canvases.pixels.shape[-1]
        failed: list[str] = []
        first, end = (len(indices) * bound // self.parts for bound in (part, part + 1))
        for row, index in enumerate(indices[first:end].tolist(), first):
            image = reduce_image(_read_or_next(self.source, index, failed), canvas_px)
            fill_canvas(pixels[row], image)
            canvases.sizes[row] = torch.tensor(image.shape[:2])
            canvases.keys[row] = sample_key(self.seed, epoch, index)
        return failed


def _read_or_next(source: ImageSource, index: int, failed: list[str]) -> UInt8[np.ndarray, "h w 3"]:
    """The image, or the nearest readable one after it; adds to the names of those that failed."""
    count = len(source)
    for offset in range(min(_TRIES, count)):
        candidate = (index + offset) % count
        try:
            return source.read(candidate)
        except UndecodableImage:
            failed.append(source.name(candidate))
    raise UserError(
        f"{min(_TRIES, count)} images in a row cannot be decoded, from {source.name(index)} on: "
        f"check --data.root"
    )


class FailedFiles:
    """The distinct files that could not be decoded so far."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = dict.fromkeys(names)

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they were met."""
        return tuple(self._names)

    def add(self, names: Iterable[str]) -> tuple[str, ...]:
        """Counts failures and returns those that are new, for the log."""
        new = tuple(dict.fromkeys(name for name in names if name not in self._names))
        self._names.update(dict.fromkeys(new))
        return new

    def check(self, seen: int, count: int, max_share: float) -> None:
        """Stops the run when too many fail, once enough were seen to tell."""
        looked_at = min(seen, count)
        enough = looked_at >= min(100, count)
        if not enough or len(self._names) <= max_share * looked_at:
            return
        shown = ", ".join(self.names[:_NAMES_SHOWN])
        more = len(self._names) - _NAMES_SHOWN
        raise UserError(
            f"{len(self._names)} of {looked_at} images cannot be decoded, more than "
            f"--data.max-failed-share {max_share:g} allows: {shown}"
            + (f" and {more} more" if more > 0 else "")
        )
