"""Labelled photographs as batches: squashed to a square, normalised, labels at their own size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from croc.data.workers import iterate
from croc.errors import UserError
from croc.eval.crops import Crops
from croc.eval.datasets import SegmentationData
from croc.eval.features import DenseBackbone
from croc.eval.tracking import Track, silent
from croc.method.photometric import normalise

HELD_BYTES = 2**31
"""Features of a set are found once and held if they fit in this, else found anew each time."""


@dataclass(frozen=True)
class Batch:
    """Images of one size with their labels; 255 is ignored."""

    images: Float[Tensor, "B 3 h w"]
    labels: Int64[Tensor, "B rows columns"] | list[Tensor]
    """A list where each image's labels have their own size."""


def batches(
    data: SegmentationData,
    order: Sequence[Sequence[int]],
    *,
    image_px: int,
    label_px: int | None,
    workers: int,
    device: torch.device,
    crops: Crops | None = None,
    keep_ratio: int | None = None,
) -> Iterator[Batch]:
    """One batch for each list of numbers in `order`; label_px None leaves labels as they are.

    `keep_ratio` gives an image's shorter side image_px instead of both, the other in multiples of
    this number: pass one image at a time.
    """
    items = _Squashed(data, order, image_px, label_px, crops, keep_ratio)
    for made in iterate(items, range(len(order)), workers=workers, pin=device.type == "cuda"):
        if isinstance(made, UserError):
            raise made
        pixels, labels = made
        images = normalise(pixels.to(device, non_blocking=True).float() / 255)
        yield Batch(images, _to_long(labels, device))


def _to_long(labels: Any, device: torch.device) -> Any:
    if isinstance(labels, list):
        return [each.to(device).long() for each in labels]
    return labels.to(device, non_blocking=True).long()


def in_order(count: int, batch: int) -> list[range]:
    """All numbers below `count`, the last batch as short as it comes."""
    return [range(start, min(start + batch, count)) for start in range(0, count, batch)]


class PatchFeatures:
    """All patch features of a set with its labels, batch by batch, in order.

    The first pass finds them; later ones find them again, or take those held if they fit.
    """

    def __init__(
        self,
        backbone: DenseBackbone,
        data: SegmentationData,
        *,
        image_px: int,
        label_px: int,
        blocks: int,
        device: torch.device,
        workers: int,
        track: Track = silent,
        batch: int = 32,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        self._backbone, self._data, self._blocks = backbone, data, blocks
        self._sizes: dict[str, Any] = {"image_px": image_px, "label_px": label_px}
        self._options: dict[str, Any] = {"device": device, "workers": workers}
        self._track, self._batch, self._held_bytes = track, batch, held_bytes
        self.held: tuple[Tensor, Tensor] | None = None
        """Features "n C rows columns" and labels "n px px" in a byte each, after a whole pass."""

    def passes(self, what: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Features "B C rows columns" and labels "B px px" of each batch."""
        order = in_order(len(self._data), self._batch)
        found = self._from_held(order) if self.held else self._find(order)
        yield from self._track(found, what, len(order))

    def _from_held(self, order: list[range]) -> Iterator[tuple[Tensor, Tensor]]:
        assert self.held is not None
        features, labels = self.held
        for numbers in order:
            part = slice(numbers.start, numbers.stop)
            yield features[part], labels[part].long()

    def _find(self, order: list[range]) -> Iterator[tuple[Tensor, Tensor]]:
        kept: tuple[Tensor, Tensor] | None = None
        parts = batches(self._data, order, **self._sizes, **self._options)
        for numbers, part in zip(order, parts):
            features = self._backbone.features(part.images, self._blocks)
            assert isinstance(part.labels, Tensor)
            if numbers.start == 0:
                kept = self._room(features, part.labels)
            if kept:
                kept[0][numbers.start : numbers.stop] = features
                kept[1][numbers.start : numbers.stop] = part.labels
            yield features, part.labels
        self.held = kept

    def _room(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """Allocated at once, since joining parts at the end would take twice as much."""
        count = len(self._data)
        taken = features[0].numel() * features.element_size() + labels[0].numel()
        if count * taken > self._held_bytes:
            return None
        return (
            features.new_empty(count, *features.shape[1:]),
            labels.new_empty(count, *labels.shape[1:], dtype=torch.uint8),
        )


class _Squashed(Dataset[Any]):
    """Batches of pixels and labels, or the complaint of one who cannot make them."""

    def __init__(
        self,
        data: SegmentationData,
        order: Sequence[Sequence[int]],
        image_px: int,
        label_px: int | None,
        crops: Crops | None,
        keep_ratio: int | None,
    ) -> None:
        self.data, self.order, self.crops, self.keep_ratio = data, order, crops, keep_ratio
        self.image_px, self.label_px = image_px, label_px

    def __getitem__(self, index: int) -> Any:
        try:
            pairs = [self._read(index, number) for number in self.order[index]]
        except UserError as error:  # raised in a worker it would arrive as a traceback's text
            return error
        pixels = torch.from_numpy(np.stack([pixels for pixels, _ in pairs])).permute(0, 3, 1, 2)
        labels = [torch.from_numpy(np.array(labels)) for _, labels in pairs]
        return pixels.contiguous(), labels if self.label_px is None else torch.stack(labels)

    def _read(self, step: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        read = self.data.read(number)
        image, labels = read.image, read.labels
        if self.crops:
            image, labels = self.crops.cut(image, labels, step, number)
        size = (self.image_px, self.image_px)
        if self.keep_ratio:
            size = kept_ratio(labels.shape, self.image_px, self.keep_ratio)
        pixels = _resize(image, size, Image.Resampling.BICUBIC)
        if self.label_px is None:
            return pixels, labels
        return pixels, _resize(labels, (self.label_px, self.label_px), Image.Resampling.NEAREST)


def kept_ratio(shape: tuple[int, ...], short_px: int, unit_px: int) -> tuple[int, int]:
    """Rows and columns of an image whose shorter side is `short_px`, in whole units.

    The longer one is four times that at most.
    """
    longer = min(4.0, max(shape) / min(shape)) * short_px
    long_px = max(unit_px, round(longer / unit_px) * unit_px)
    return (short_px, long_px) if shape[0] <= shape[1] else (long_px, short_px)


def _resize(pixels: np.ndarray, size: tuple[int, int], how: Image.Resampling) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), how))
