"""Data passed between the parts of the method, and the letters of the axes.

M views of an image        B images                  H attention heads
N patches in a view        T = M·N joined tokens     K clusters
D width of the backbone    d = D/H width of a head   P prototypes
h, w pixels of a view      S pixels of a canvas's side

Shapes are written with jaxtyping and checked in the tests; at run time they cost nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int64, UInt8
from torch import Tensor, device


@dataclass(frozen=True)
class Canvases:
    """Decoded images, each in the top-left corner of a square canvas of equal size."""

    pixels: UInt8[Tensor, "B 3 S S"]
    sizes: Int64[Tensor, "B 2"]
    """True height and width of each image on its canvas."""
    sample_keys: Int64[Tensor, "B"]
    """One number per sample, from (seed, epoch, index), which determines all its randomness."""
    failed: tuple[str, ...] = ()
    """Names of undecodable files that were replaced in this batch."""

    def to(self, device: device) -> "Canvases":
        """Copy to the device, without waiting if the memory is pinned."""
        tensors = (self.pixels, self.sizes, self.sample_keys)
        pixels, sizes, keys = (x.to(device, non_blocking=True) for x in tensors)
        return Canvases(pixels, sizes, keys, self.failed)

    def split(self, size: int | None) -> Iterator["Canvases"]:
        """Micro-batches of at most `size` images."""
        size = size or len(self.sample_keys)
        for start in range(0, len(self.sample_keys), size):
            part = slice(start, start + size)
            yield Canvases(self.pixels[part], self.sizes[part], self.sample_keys[part])

    def copied(self) -> "Canvases":
        """A copy with its own tensors."""
        pixels, sizes, keys = (x.clone() for x in (self.pixels, self.sizes, self.sample_keys))
        return Canvases(pixels, sizes, keys, self.failed)


@dataclass(frozen=True)
class Views:
    """Augmented crops, and the positions of their patches in the original image."""

    pixels: Float[Tensor, "M B 3 h w"]
    positions: Float[Tensor, "M B N 2"]
    """Patch centers (x, y) in coordinates of the original image, whose longer side is 1."""


@dataclass(frozen=True)
class Tokens:
    """The output of a backbone for its views."""

    cls: Float[Tensor, "M B D"]
    patches: Float[Tensor, "M B N D"]
    heads: Float[Tensor, "M B H N d"]
    """Keys, queries or values of the last block; for `last`, the patches (H = 1, d = D)."""
    cls_heads: Float[Tensor, "M B H d"]
    attention: Float[Tensor, "M B H N"]
    """Softmax of the CLS query over the patches of its view."""


@dataclass(frozen=True)
class Clusters:
    """Soft assignments of the tokens of each view to the clusters of each image and head."""

    assignments: Float[Tensor, "M B H N K"]
    """Padding columns are zero; a pruned column keeps its values and is marked in `valid`."""
    valid: Bool[Tensor, "B H K"]
    """Clusters present in every view; false for padding and pruned columns."""
    cost: Float[Tensor, "B H"]
    """Transport cost of the chosen clustering."""
    count: Int[Tensor, "B H"]
    """The chosen K, before pruning."""


@dataclass(frozen=True)
class ScheduleState:
    """The schedule at a step: its position, learning rate and weight decay."""

    step: int
    total_steps: int
    epoch: int
    lr: float
    weight_decay: float


def cosine(start: float, end: float, step: int, steps: int) -> float:
    """Half a cosine from start (step 0) to end (which step `steps` would reach)."""
    return end + (start - end) * (1 + math.cos(math.pi * step / max(1, steps))) / 2


def autocast_dtype(device: torch.device, otherwise: torch.dtype) -> torch.dtype:
    """The dtype in which autocast currently computes matrix products."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else otherwise
