"""Random parts of labelled images for training, by (seed, step, image)."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from croc.eval.metrics import IGNORED
from croc.method.photometric import IMAGENET_MEAN
from croc.method.randomness import sample_key

Pixels = UInt8[np.ndarray, "h w 3"]
Labels = UInt8[np.ndarray, "h w"]
MEAN_COLOUR = np.round(255 * np.array(IMAGENET_MEAN)).astype(np.uint8)


@runtime_checkable
class Crops(Protocol):
    """Takes a part of an image and the same of its labels."""

    def cut(
        self, image: Pixels, labels: Labels, step: int, number: int
    ) -> tuple[np.ndarray, np.ndarray]: ...


@dataclass(frozen=True)
class ResizedCrops:
    """Parts of `least` of the image's area or more, mirrored half of the time."""

    least: float
    seed: int

    def cut(
        self, image: Pixels, labels: Labels, step: int, number: int
    ) -> tuple[np.ndarray, np.ndarray]:
        area, aspect, x, y, flip = draws(self.seed, step, number)
        box = crop_box(labels.shape, self.least + (1 - self.least) * area, aspect, x, y)
        top, left, height, width = box
        part = np.s_[top : top + height, left : left + width]
        return mirrored(image[part], labels[part], flip)


@dataclass(frozen=True)
class ScaledCrops:
    """Square windows of an image at a random scale, mirrored half of the time.

    As semantic segmentation is trained: the image is scaled so that its shorter side is 1/2 to 2
    times the window's (but the longer at most four times that), and a window is cut; what of it
    lies beyond the image has the mean colour and is ignored.
    """

    seed: int

    def cut(
        self, image: Pixels, labels: Labels, step: int, number: int
    ) -> tuple[np.ndarray, np.ndarray]:
        scale, y, x, flip, _ = draws(self.seed, step, number)
        side = window_side(labels.shape, 0.5 + 1.5 * scale)
        rows, columns = (min(side, length) for length in labels.shape)
        top = int(y * (labels.shape[0] - rows + 1))
        left = int(x * (labels.shape[1] - columns + 1))
        part = np.s_[top : top + rows, left : left + columns]
        window = np.full((side, side, 3), MEAN_COLOUR)
        truth = np.full((side, side), IGNORED, np.uint8)
        window[:rows, :columns], truth[:rows, :columns] = image[part], labels[part]
        return mirrored(window, truth, flip)


def window_side(shape: tuple[int, ...], scale: float) -> int:
    """Side in the image's own pixels of a window that is 1/scale of its shorter side."""
    return max(1, round(max(min(shape), max(shape) / 4) / scale))


def draws(seed: int, step: int, number: int) -> list[float]:
    """Five numbers in 0 … 1."""
    key = sample_key(seed, step, number) % 2**63
    return np.random.Generator(np.random.Philox(key)).random(5).tolist()


def mirrored(image: np.ndarray, labels: np.ndarray, flip: float) -> tuple[np.ndarray, np.ndarray]:
    turn = np.s_[:, ::-1] if flip < 0.5 else np.s_[:, :]
    return np.ascontiguousarray(image[turn]), np.ascontiguousarray(labels[turn])


def crop_box(
    shape: tuple[int, ...], area: float, aspect: float, x: float, y: float
) -> tuple[int, int, int, int]:
    """Top, left, height, width of a part of the image; aspect, x and y are draws in 0 … 1.

    The aspect is relative to the image's, log-uniform in ¾ … 4⁄3 as far as such a part fits.
    """
    ratio = math.exp((2 * aspect - 1) * min(math.log(4 / 3), -math.log(area)))
    height = min(shape[0], max(1, round(shape[0] * math.sqrt(area / ratio))))
    width = min(shape[1], max(1, round(shape[1] * math.sqrt(area * ratio))))
    return int(y * (shape[0] - height + 1)), int(x * (shape[1] - width + 1)), height, width
