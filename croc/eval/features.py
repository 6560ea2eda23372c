"""From a dataset's images to patch features, and from predictions to scores."""

import copy
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Float64, Int64, UInt8
from PIL import Image
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.utils.data import Dataset

from croc.data.loader import iterate
from croc.errors import UserError
from croc.eval.datasets import SegmentationData, Subset
from croc.eval.machine import Machine
from croc.eval.metrics import IGNORED, confusion, iou, scores_by_class
from croc.io import free_memory
from croc.weights.backbones import DenseBackbone

EXAMPLES = 6
UNLABELED = "no scored pixel is labeled: all labels are 255"

Item = TypeVar("Item")
Crop = Callable[[np.ndarray, np.ndarray, int, int], tuple[np.ndarray, np.ndarray]]
"""Takes an image, its labels, the step and the image's index; returns a part of both."""
Predict = Callable[[Float[Tensor, "B C h w"]], Float[Tensor, "B classes h w"]]
"""Features to a score for each class, at the features' resolution."""


def progress(items: Iterable[Item], task: str, total: int) -> Iterator[Item]:
    """Passes the items on. On stderr: a bar with the time left on a terminal; in logs one line at
    the end if it took a second, and one every 30 s with the time left."""
    if sys.stderr.isatty():
        with Progress(console=Console(stderr=True), transient=True) as bar:
            yield from bar.track(items, total=total, description=task)
        return
    started = printed = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - printed > 30 and done < total:
            left = (now - started) / done * (total - done)
            print(f"{task} {done}/{total}, about {left:.0f} s left", file=sys.stderr, flush=True)
            printed = now
    if (seconds := time.monotonic() - started) >= 1:
        print(f"{task} done in {seconds:.0f} s", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Example:
    """An image with the true and the predicted classes of its pixels; the image may be larger."""

    image: UInt8[Tensor, "3 h w"]
    truth: Int64[Tensor, "rows columns"]
    predicted: Int64[Tensor, "rows columns"]


@dataclass(frozen=True)
class Report:
    """The scores of a protocol in percent, and its first images."""

    scores: dict[str, Any]
    """The number that papers report comes first."""
    classes: dict[str, float | None]
    """IoU of each class (None if absent from the data), or J&F of each video."""
    examples: tuple[Example, ...]
    counts: Int64[Tensor, "C C"] | None = None
    """The confusion matrix, to add up over folds."""


class PatchFeatures:
    """Patch features of a dataset's images, with their labels.

    Images are squashed to image_px², labels to label_px². With `keep_ratio`, an image's shorter
    side becomes image_px and the longer one whole patches, four times that at most. Without a
    label_px, labels keep their own size. In both cases there is one image per batch.
    """

    def __init__(
        self,
        backbone: DenseBackbone,
        machine: Machine,
        data: SegmentationData,
        image_px: int,
        label_px: int | None,
        blocks: int,
        *,
        batch: int = 32,
        keep_ratio: bool = False,
        fill: bool = False,
    ) -> None:
        self.backbone, self.machine, self.data, self.blocks = backbone, machine, data, blocks
        self.device, self.quiet = machine.device, False
        unit_px = backbone.stride_px if keep_ratio else None
        self.reader = Reader(data, image_px, label_px, unit_px, fill=fill)
        sizes_vary, on_gpu = keep_ratio or label_px is None, self.device.type == "cuda"
        self.batch = 1 if sizes_vary else batch
        free = torch.cuda.mem_get_info(self.device)[0] if on_gpu else free_memory()
        self._cache_bytes = 0 if sizes_vary else free // 2
        self.cached: tuple[Tensor, Tensor] | None = None
        """Features "n C rows columns" and labels "n px px" as uint8, once `keep` has computed
        them."""
        self._rows = np.arange(len(data))
        """Where the images are in `cached`, which subsets share."""

    def keep(self) -> None:
        """Compute all features now, for every later use and for subsets, if they fit into half of
        the free memory; otherwise they are computed whenever they are used."""
        if self.cached:
            return
        count, start, cached = len(self.data), 0, None
        for features, labels in self.all_batches("features"):
            if cached is None:
                if count * (features[0].nbytes + labels[0].numel()) > self._cache_bytes:
                    return
                cached = (
                    features.new_empty(count, *features.shape[1:]),
                    labels.new_empty(count, *labels.shape[1:], dtype=torch.uint8),
                )
            stop = start + len(features)
            cached[0][start:stop], cached[1][start:stop] = features, labels
            start = stop
        self.cached, self._rows = cached, np.arange(count)

    def subset(self, numbers: Sequence[int]) -> "PatchFeatures":
        """The features of some of the images."""
        part = copy.copy(self)
        part.data = Subset(self.data, tuple(numbers))
        part.reader = replace(self.reader, data=part.data)
        part._rows = self._rows[list(numbers)]
        return part

    def progress(self, items: Iterable[Item], task: str, total: int) -> Iterable[Item]:
        return items if self.quiet else progress(items, task, total)

    def all_batches(self, task: str) -> Iterable[tuple[Tensor, Tensor]]:
        """Features and labels of all images in order; `task` is shown as progress."""
        order = in_order(len(self.data), self.batch)
        return self.progress(self.batches(order), task, len(order))

    def batches(
        self, order: Sequence[Sequence[int]], crop: Crop | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Features "B C rows columns" and labels "B px px" for each list of indices."""
        if self.cached and crop is None:
            features, labels = self.cached
            for numbers in order:
                rows = self._rows[list(numbers)]
                yield features[rows], labels[rows].long()
            return
        for batch in self.read(order, crop):
            pixels, labels = (tensor.to(self.device, non_blocking=True) for tensor in batch)
            pixels = self.backbone.normalize(pixels.float() / 255)
            features = self.backbone.features(pixels, self.blocks)
            yield features, labels.long()

    def read(
        self, order: Sequence[Sequence[int]], crop: Crop | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Pixels "B 3 rows columns" and labels "B px px", uint8, for each list of indices."""
        items = replace(self.reader, order=order, crop=crop)
        workers, pin = self.machine.workers, self.device.type == "cuda"
        for batch in iterate(items, range(len(order)), workers=workers, pin=pin):
            if isinstance(batch, UserError):
                raise batch
            yield batch

    def example(self, index: int, predicted: Int64[Tensor, "rows columns"]) -> Example:
        pixels, labels = self.reader.read(index)
        return Example(pixels.contiguous(), labels.long(), predicted.cpu())


@dataclass(frozen=True)
class Reader(Dataset[Any]):
    """Reads and resizes the images of each list of indices; pickled for worker processes."""

    data: SegmentationData
    image_px: int
    label_px: int | None
    unit_px: int | None = None
    order: Sequence[Sequence[int]] = ()
    crop: Crop | None = None
    fill: bool = False
    """Whether pixels that are unlabeled after resizing take the most frequent label of their area,
    so that thin strokes do not vanish."""

    def __getitem__(self, step: int) -> Any:
        try:
            pairs = [self.read(index, step) for index in self.order[step]]
        except UserError as error:  # raised in a worker, it would arrive as the text of a traceback
            return error
        pixels, labels = zip(*pairs)
        return torch.stack(pixels).contiguous(), torch.stack(labels)

    def read(
        self, index: int, step: int = 0
    ) -> tuple[UInt8[Tensor, "3 h w"], UInt8[Tensor, "rows columns"]]:
        labeled = self.data.read(index)
        image, labels = labeled.image, labeled.labels
        if self.crop:
            image, labels = self.crop(image, labels, step, index)
        if self.label_px is not None:
            size = (self.label_px, self.label_px)
            resized = np.array(Image.fromarray(labels).resize(size, Image.Resampling.NEAREST))
            labels = fill_unlabeled(resized, labels) if self.fill else resized
        pixels = resize_image(image, self.image_px, self.unit_px)
        return pixels, torch.from_numpy(np.array(labels))


def fill_unlabeled(
    small: UInt8[np.ndarray, "h w"], labels: UInt8[np.ndarray, "H W"]
) -> UInt8[np.ndarray, "h w"]:
    """Give unlabeled pixels of a reduced label map the most frequent label of their area."""
    if not (small == IGNORED).any():
        return small
    down, across = (np.arange(n) * m // n for n, m in zip(labels.shape, small.shape))
    empty = (small == IGNORED)[down][:, across]
    y, x = np.nonzero(empty & (labels != IGNORED))
    area = down[y] * small.shape[1] + across[x]
    pairs, counts = np.unique(256 * area + labels[y, x], return_counts=True)
    filled, pairs = small.ravel().copy(), pairs[np.argsort(counts, kind="stable")]
    filled[pairs // 256] = pairs % 256  # the most frequent label of an area comes last
    return filled.reshape(small.shape)


def in_order(count: int, batch: int) -> list[range]:
    """All indices below `count`; the last batch may be shorter."""
    return [range(start, min(start + batch, count)) for start in range(0, count, batch)]


def resize_image(
    image: UInt8[np.ndarray, "H W 3"], image_px: int, unit_px: int | None = None
) -> UInt8[Tensor, "3 h w"]:
    """To a square of image_px; with `unit_px` to a shorter side of image_px, the longer one a
    multiple of it."""
    size = kept_ratio(image.shape[:2], image_px, unit_px) if unit_px else (image_px, image_px)
    resized = Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def kept_ratio(shape: Sequence[int], short_px: int, unit_px: int) -> tuple[int, int]:
    """Height and width of an image whose shorter side is `short_px`, the longer one in units."""
    longer = min(4.0, max(shape) / min(shape)) * short_px
    long_px = max(unit_px, round(longer / unit_px) * unit_px)
    return (short_px, long_px) if shape[0] <= shape[1] else (long_px, short_px)


@torch.no_grad()
def score(patches: PatchFeatures, heads: Sequence[Predict]) -> list[Report]:
    """A report for each head, all from one pass over the images."""
    classes = len(patches.data.classes)
    counts = [torch.zeros(classes, classes, dtype=torch.long, device=patches.device) for _ in heads]
    examples: list[list[Example]] = [[] for _ in heads]
    for features, labels in patches.all_batches("scores"):
        for head, count, shown in zip(heads, counts, examples):
            for logits, truth in zip(head(features), labels):  # one by one: few fit at full size
                predicted = upsample(logits[None].float(), truth.shape).argmax(dim=1)[0]
                count += confusion(predicted, truth, classes)
                if len(shown) < EXAMPLES:
                    shown.append(patches.example(len(shown), predicted))
    if not counts[0].any():
        raise UserError(UNLABELED)
    reports = []
    for count, shown in zip(counts, examples):
        result = iou(count)
        scores = {"mIoU": 100 * result.mean, "accuracy": 100 * result.accuracy}
        by_class = scores_by_class(patches.data.classes, result.per_class)
        reports.append(Report(scores, by_class, tuple(shown), count.cpu()))
    return reports


def upsample(logits: Float[Tensor, "B C h w"], size: Sequence[int]) -> Float[Tensor, "B C H W"]:
    """Bilinear; it commutes with a linear layer, and there are fewer logits than features."""
    return F.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)


class Moments:
    """Mean, deviation and covariance of features that arrive in batches.

    Sums are taken about the first batch's mean: squares of features far from 0 would lose
    precision.
    """

    def __init__(self) -> None:
        self.count = 0

    def add(self, features: Float[Tensor, "B C rows columns"]) -> None:
        flat = features.float().movedim(1, -1).flatten(0, -2)
        if self.count == 0:
            self._origin = flat.mean(dim=0)
            self._sum = torch.zeros_like(self._origin, dtype=torch.float64)
            self._products = torch.diag(self._sum)
        flat = flat - self._origin
        self.count += len(flat)
        self._sum += flat.sum(dim=0).double()
        self._products += (flat.mT @ flat).double()

    @property
    def mean(self) -> Float32[Tensor, "C"]:
        return (self._origin.double() + self._sum / self.count).float()

    @property
    def covariance(self) -> Float64[Tensor, "C C"]:
        return (self._products - torch.outer(self._sum, self._sum) / self.count) / self.count

    @property
    def deviation(self) -> Float32[Tensor, "C"]:
        """Of a sample; never 0, so that features can be divided by it."""
        variance = self.covariance.diagonal() * self.count / max(1, self.count - 1)
        return variance.clamp_min(0).sqrt().clamp_min(1e-6).float()
