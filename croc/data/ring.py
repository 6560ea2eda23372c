"""Batches in memory that all processes share: workers write them, the device copies them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from typing import Any

import torch
from torch import Tensor

from croc.errors import UserError
from croc.method.types import Canvases


class Ring:
    """Room for some batches, used in turn: step s writes over step s − slots.

    A worker decodes straight into the memory from which the device copies, so that no batch is
    allocated, sent through a queue or copied on its way.
    """

    def __init__(self, slots: int, batch: int, canvas_px: int, *, shared: bool) -> None:
        self.slots = slots
        counts = (slots * batch * 2, slots * batch, slots * batch * 3 * canvas_px**2)
        sizes_end, keys_end = 8 * counts[0], 8 * (counts[0] + counts[1])
        self.memory = torch.empty(keys_end + counts[2], dtype=torch.uint8)
        if shared:
            _share(self.memory)
        self.sizes = self.memory[:sizes_end].view(torch.int64).view(slots, batch, 2)
        self.keys = self.memory[sizes_end:keys_end].view(torch.int64).view(slots, batch)
        self.pixels = self.memory[keys_end:].view(slots, batch, 3, canvas_px, canvas_px)

    def of_step(self, step: int, failed: tuple[str, ...] = ()) -> Canvases:
        """The batch of a step, in the ring's own memory."""
        slot = step % self.slots
        return Canvases(self.pixels[slot], self.sizes[slot], self.keys[slot], failed)

    @contextmanager
    def pinned(self, device: torch.device) -> Iterator[None]:
        """Page-locked within, so that copies to the device do not wait for each other."""
        runtime: Any = torch.cuda.cudart()
        with torch.cuda.device(device):
            outcome = runtime.cudaHostRegister(self.memory.data_ptr(), self.memory.nbytes, 0)
        locked = int(outcome) == 0
        if not locked:
            print(
                "croc: the loader's memory cannot be page-locked (ulimit -l): copies to the GPU "
                "will be slower",
                file=sys.stderr,
            )
        try:
            yield
        finally:
            if locked:
                runtime.cudaHostUnregister(self.memory.data_ptr())


def _share(memory: Tensor) -> None:
    try:
        memory.share_memory_()
    except RuntimeError as error:  # a container's /dev/shm is often of 64 MB
        for left in glob(f"/dev/shm/torch_{os.getpid()}_*"):  # the name of what did not fit
            os.unlink(left)
        raise UserError(
            f"the loader's processes share {memory.nbytes / 2**20:,.0f} MiB, which do not fit in "
            "/dev/shm: enlarge it (docker run --shm-size) or pass --data.workers 0"
        ) from error


def slots_needed(parts_ahead: int, parts: int) -> int:
    """So many that no worker writes into a batch that is in use.

    When step s is asked for, s − 1 may still be copied, s is made, and `parts_ahead` parts of
    the steps after it are being made.
    """
    return 3 + (parts_ahead - 1) // parts
