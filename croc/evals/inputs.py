"""Labelled photographs as batches: squashed to a square, normalised, labels at their own size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from croc.data.workers import iterate
from croc.evals.datasets import SegmentationData
from croc.evals.features import DenseBackbone
from croc.photometric import normalise


@dataclass(frozen=True)
class Batch:
    """Images of one size with their labels; 255 is ignored."""

    images: Float[Tensor, "B 3 h w"]
    labels: Int64[Tensor, "B rows columns"]


def batches(
    data: SegmentationData,
    order: Sequence[Sequence[int]],
    *,
    image_px: int,
    label_px: int,
    workers: int,
    device: torch.device,
) -> Iterator[Batch]:
    """One batch for each list of numbers in `order`."""
    for pixels, labels in iterate(
        _Squashed(data, order, image_px, label_px), range(len(order)), workers=workers
    ):
        images = normalise(pixels.to(device).float() / 255)
        yield Batch(images, labels.to(device).long())


def in_order(count: int, batch: int) -> list[range]:
    """All numbers below `count`, the last batch as short as it comes."""
    return [range(start, min(start + batch, count)) for start in range(0, count, batch)]


def extract(
    backbone: DenseBackbone,
    data: SegmentationData,
    image_px: int,
    label_px: int,
    blocks: int,
    *,
    device: torch.device,
    workers: int,
    batch: int = 32,
) -> tuple[Float[Tensor, "n C rows columns"], Int64[Tensor, "n px px"]]:
    """All patch features of a set, with its labels; a photograph takes about a megabyte."""
    features, labels = [], []
    order = in_order(len(data), batch)
    for part in batches(
        data, order, image_px=image_px, label_px=label_px, device=device, workers=workers
    ):
        features.append(backbone.features(part.images, blocks))
        labels.append(part.labels)
    return torch.cat(features), torch.cat(labels)


class _Squashed(Dataset[tuple[Tensor, Tensor]]):
    def __init__(
        self,
        data: SegmentationData,
        order: Sequence[Sequence[int]],
        image_px: int,
        label_px: int,
    ) -> None:
        self.data, self.order = data, order
        self.image_px, self.label_px = image_px, label_px

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, labels = [], []
        for number in self.order[index]:
            read = self.data.read(number)
            images.append(_resize(read.image, self.image_px, Image.Resampling.BICUBIC))
            labels.append(_resize(read.labels, self.label_px, Image.Resampling.NEAREST))
        pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
        return pixels, torch.from_numpy(np.stack(labels))


def _resize(pixels: np.ndarray, side: int, how: Image.Resampling) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize((side, side), how))
