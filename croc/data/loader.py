"""Batches by step number: any step's batch can be loaded on its own, so any run can be resumed.

Workers decode into a ring of batches in shared memory, from which the GPU copies each batch during
the step before it.
"""

import atexit
import ctypes
import gc
import os
import signal
import sys
import weakref
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from glob import glob
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch.utils.data import DataLoader

from croc.config import DataConfig
from croc.data.decode import UndecodableImage, downscale_image, fill_canvas
from croc.data.sources import ImageSource
from croc.errors import UserError
from croc.io import cores
from croc.method.randomness import derive, sample_key
from croc.method.types import Canvases
from croc.signals import SIGNALS

Item = TypeVar("Item")
_MAX_TRIES = 100
# How many parts of batches each worker may be ahead. With two, loading was up to 15% slower where
# decoding is about as fast as training; more cost memory of the ring.
_PARTS_AHEAD = 4


@lru_cache(maxsize=2)
def epoch_order(count: int, seed: int, epoch: int) -> Int64[np.ndarray, "count"]:
    """A permutation of the images that depends on nothing but (count, seed, epoch).

    It sorts by the hash that also draws the crops, not by a library's generator, whose stream
    may change between versions. The hash is injective, so there are no ties.
    """
    keys = torch.arange(count) + sample_key(seed, epoch, 0)
    order = np.argsort(derive(keys, "order").numpy(), kind="stable")
    order.setflags(write=False)
    return order


def steps_per_epoch(count: int, batch: int) -> int:
    """Whole batches in the data; an epoch leaves out the remainder."""
    return count // batch


def batch_indices(
    step: int, count: int, batch: int, seed: int, rank: int = 0, processes: int = 1
) -> tuple[int, Int64[np.ndarray, "B"]]:
    """The epoch of a step, and the images of this process in the step's batch."""
    if batch % processes:
        fitting = max(batch // processes, 1) * processes
        raise UserError(
            f"a batch of {batch} cannot be shared by {processes} processes: "
            f"pass --optim.batch {fitting}"
        )
    if count < batch:
        fitting = count // processes * processes
        advice = f"pass --optim.batch {fitting}" if fitting else "add more images"
        raise UserError(f"{count} images do not fill a batch of {batch}: {advice}")
    epoch, step_in_epoch = divmod(step, steps_per_epoch(count, batch))
    share = batch // processes
    start = step_in_epoch * batch + rank * share
    return epoch, epoch_order(count, seed, epoch)[start : start + share]


def worker_count(config: DataConfig, processes: int = 1) -> int:
    """As configured, or one per core, divided among the machine's processes, at most 16."""
    default = max(1, min(16, cores() // processes))
    return default if config.workers is None else config.workers


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
    device: torch.device = torch.device("cpu"),  # noqa: B008, immutable
) -> Generator[Canvases, None, None]:
    """One batch for each step from `first_step` to before `last_step`, across epochs.

    Batches are on the device. The workers start now, not with the first `next`; each decodes parts
    of batches.
    """
    batch_indices(first_step, len(source), batch, seed, rank, processes)  # raises if it cannot fit
    steps = range(first_step, last_step)
    parts = max(1, min(workers, batch // processes))
    # While step s is requested, s − 1 may still be copied, and workers write s and the parts of
    # later steps that they are ahead: none of them may share memory.
    slots = 3 + (workers * _PARTS_AHEAD - 1) // parts
    ring = Ring(slots, batch // processes, canvas_px, shared=workers > 0)
    dataset = _Parts(source, ring, parts, batch, seed, rank, processes)
    order = range(first_step * parts, last_step * parts)
    written = iterate(dataset, order, workers=workers, ahead=_PARTS_AHEAD)
    batches = _whole_batches(written, ring, steps, parts)
    if device.type == "cuda":
        return _prefetch(batches, ring, device)
    return (canvases.copied() for canvases in batches)


def _whole_batches(
    written: Generator[list[str] | UserError, None, None], ring: "Ring", steps: range, parts: int
) -> Generator[Canvases, None, None]:
    """Each step's batch in the ring's memory, valid until the next but one is requested."""
    with closing(written):
        for step in steps:
            failed: dict[str, None] = {}
            for part in islice(written, parts):
                if isinstance(part, UserError):
                    raise part
                failed |= dict.fromkeys(part)
            yield ring.of_step(step, tuple(failed))


@dataclass(eq=False)
class _Parts:
    """Writes parts of one process's batches into the ring; part p of step s is s · parts + p.

    A part is the names of files that failed, or the error to raise: raised in a worker, it would
    arrive wrapped in a traceback.
    """

    source: ImageSource
    ring: "Ring"
    parts: int
    batch: int
    seed: int
    rank: int
    processes: int

    def __getitem__(self, number: int) -> list[str] | UserError:
        step, part = divmod(number, self.parts)
        count = len(self.source)
        epoch, indices = batch_indices(
            step, count, self.batch, self.seed, self.rank, self.processes
        )
        canvases = self.ring.of_step(step)
        pixels, canvas_px = canvases.pixels.numpy(), canvases.pixels.shape[-1]
        failed: list[str] = []
        first, end = (len(indices) * bound // self.parts for bound in (part, part + 1))
        for row, index in enumerate(indices[first:end].tolist(), first):
            try:
                image = downscale_image(_read_or_next(self.source, index, failed), canvas_px)
            except UserError as error:
                return error
            fill_canvas(pixels[row], image)
            canvases.sizes[row] = torch.tensor(image.shape[:2])
            canvases.sample_keys[row] = sample_key(self.seed, epoch, index)
        return failed


def _read_or_next(source: ImageSource, index: int, failed: list[str]) -> UInt8[np.ndarray, "h w 3"]:
    """The image, or the next readable one; adds the names of unreadable ones to `failed`."""
    tries = min(_MAX_TRIES, len(source))
    for offset in range(tries):
        candidate = (index + offset) % len(source)
        try:
            return source.read(candidate)
        except UndecodableImage:
            failed.append(source.name(candidate))
    raise UserError(
        f"{tries} images in a row cannot be decoded, starting with {source.name(index)}: "
        f"check --data.root"
    )


def _prefetch(
    batches: Generator[Canvases, None, None], ring: "Ring", device: torch.device
) -> Generator[Canvases, None, None]:
    """The same batches on the device, each copied during the step before it.

    Nothing here waits for the device's computations. A batch's host memory is no longer read once
    the next but one has been requested, or this has been closed.
    """
    stream = torch.cuda.Stream(device)

    def send(canvases: Canvases) -> tuple[Canvases, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            moved, arrived = canvases.to(device), torch.cuda.Event()
            arrived.record(stream)
            return moved, arrived

    with closing(batches), ring.pinned(device):
        try:
            for moved, arrived in one_ahead(map(send, batches)):
                current = torch.cuda.current_stream(device)
                current.wait_event(arrived)
                for tensor in (moved.pixels, moved.sizes, moved.sample_keys):
                    tensor.record_stream(current)  # not reused before this stream is done with it
                yield moved
                arrived.synchronize()  # long done: it was sent before the last step
        finally:
            stream.synchronize()


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, each yielded once the next one has been made or has failed."""
    ready: list[Item] = []
    try:
        for item in items:
            yield from ready
            ready = [item]
    except Exception:
        yield from ready  # what came before the failure is good
        raise
    yield from ready


class Ring:
    """Memory for several batches, reused in turn: step s overwrites step s − slots.

    A worker decodes straight into the memory from which the device copies: no batch is allocated,
    sent through a queue or copied on its way.
    """

    def __init__(self, slots: int, batch: int, canvas_px: int, *, shared: bool) -> None:
        self.slots = slots
        # In one allocation: int64 sizes and keys, then the pixels.
        numbers, pixels = slots * batch, slots * batch * 3 * canvas_px**2
        self.memory = torch.empty(24 * numbers + pixels, dtype=torch.uint8)
        if shared:
            try:
                self.memory.share_memory_()
            except RuntimeError as error:  # a container's /dev/shm often has 64 MB
                for path in glob(f"/dev/shm/torch_{os.getpid()}_*"):  # torch leaves it behind
                    os.unlink(path)
                raise UserError(
                    f"the loader's processes share {self.memory.nbytes / 2**20:,.0f} MiB, too much "
                    "for /dev/shm: enlarge it (docker run --shm-size) or pass --data.workers 0"
                ) from error
        sizes, keys, planes = self.memory.split([16 * numbers, 8 * numbers, pixels])
        self.sizes = sizes.view(torch.int64).view(slots, batch, 2)
        self.keys = keys.view(torch.int64).view(slots, batch)
        self.pixels = planes.view(slots, batch, 3, canvas_px, canvas_px)

    def of_step(self, step: int, failed: tuple[str, ...] = ()) -> Canvases:
        """The batch of a step, in the ring's own memory."""
        slot = step % self.slots
        return Canvases(self.pixels[slot], self.sizes[slot], self.keys[slot], failed)

    @contextmanager
    def pinned(self, device: torch.device) -> Iterator[None]:
        """Page-locked within the context, so that copies to the device are asynchronous."""
        runtime: Any = torch.cuda.cudart()
        with torch.cuda.device(device):
            status = runtime.cudaHostRegister(self.memory.data_ptr(), self.memory.nbytes, 0)
        locked = int(status) == 0
        if not locked:
            print(
                "croc: cannot page-lock the loader's memory (ulimit -l): copies to the GPU will "
                "be slower",
                file=sys.stderr,
            )
        try:
            yield
        finally:
            if locked:
                runtime.cudaHostUnregister(self.memory.data_ptr())


def iterate(
    items: Any, order: range, *, workers: int, ahead: int = 2, pin: bool = False
) -> Generator[Any, None, None]:
    """`items[number]` in this order, computed by `workers` processes that start now, or in this
    process if there are none. Each worker is at most `ahead` items ahead of the consumer."""
    loader = DataLoader(
        items,
        batch_size=None,
        sampler=order,
        num_workers=workers,
        prefetch_factor=ahead if workers else None,
        collate_fn=_unchanged,
        pin_memory=pin and torch.cuda.is_available(),
        worker_init_fn=start_worker,
    )
    # A forked worker that collects this process's garbage may free CUDA tensors, which aborts it.
    if workers:
        gc.collect()
    iterator = iter(loader)
    _live.add(iterator)
    return _until_closed(iterator)


def _until_closed(iterator: Iterator[Any]) -> Generator[Any, None, None]:
    """Stop the workers at the end, after an error, or when the generator is closed."""
    try:
        yield from iterator
    finally:
        _stop_workers(iterator)


_live: weakref.WeakSet[Any] = weakref.WeakSet()
_PR_SET_PDEATHSIG = 1  # in linux/prctl.h


def _unchanged(item: object) -> object:
    return item


def start_worker(_: int = 0) -> None:
    """Ctrl-C and a cluster's signals reach all processes, but only the main one handles them. A
    worker whose parent is killed may wait forever to pass on its last item: the kernel ends it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    torch.set_num_threads(1)


def _stop_workers(iterator: Any) -> None:
    # torch does this when its iterator is collected, but the traceback of an error keeps it alive.
    if stop := getattr(iterator, "_shutdown_workers", None):
        stop()
    # It waits for seconds, then sends the SIGTERM that workers ignore. Nothing is lost by SIGKILL.
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
