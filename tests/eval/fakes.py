"""Data and backbones whose answer is known."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from croc.eval.datasets import LabeledImage
from croc.weights.backbones import DenseBackbone

CPU = torch.device("cpu")


class Patches:
    """Images of 8 px squares; a square's class is whether it is bright, 255 in one corner."""

    classes: tuple[str, ...] = ("dark", "bright")

    def __init__(self, count: int, seed: int, bright: float = 0.5) -> None:
        generator = np.random.default_rng(seed)
        self.bright = (generator.random((count, 4, 4)) < bright).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.bright)

    def name(self, index: int) -> str:
        return str(index)

    def read(self, index: int) -> LabeledImage:
        labels = self.bright[index].repeat(8, axis=0).repeat(8, axis=1)
        image = (60 + 130 * labels)[..., None].repeat(3, axis=2).astype(np.uint8)
        labels[:8, :8] = 255
        return LabeledImage(image, labels, str(index))


class Listed:
    """Black images with the given labels and names."""

    classes: tuple[str, ...] = ("a", "b", "c", "d")

    def __init__(self, maps: np.ndarray, names: list[str] | None = None) -> None:
        self.maps, self.names = maps.astype(np.uint8), names or [str(n) for n in range(len(maps))]

    def __len__(self) -> int:
        return len(self.maps)

    def name(self, index: int) -> str:
        return self.names[index]

    def read(self, index: int) -> LabeledImage:
        labels = self.maps[index]
        return LabeledImage(np.zeros((*labels.shape, 3), np.uint8), labels, self.names[index])


class MeanColor(DenseBackbone):
    """A backbone whose features are the mean colors of 8 px squares, and noise."""

    name = "mean color"
    stride_px = 8

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        colors = F.avg_pool2d(images, 8)
        noise = torch.sin(1e4 * colors)  # the same for the same colors
        return torch.cat([colors, noise], dim=1)


class Counting(MeanColor):
    """Counts the images."""

    images = 0

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        self.images += len(images)
        return super().features(images)


class TwoColors(MeanColor):
    """Only the colors: two well-separated clusters."""

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        return super().features(images)[:, :3]


class SecondToLast(MeanColor):
    """Its last block is blind and the one before sees the colors; records the blocks requested."""

    def __init__(self) -> None:
        self.requested: list[int] = []

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        self.requested.append(blocks)
        colors = super().features(images)
        return torch.cat([torch.zeros_like(colors), colors][:blocks], dim=1)
