"""Class scores of many images, whole ones in batches or large ones in tiles."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from croc.segmentation.images import Loaded
from croc.segmentation.segmenter import Segmenter
from croc.weights.backbones import DenseBackbone

OVERLAP = 4
"""Adjacent tiles overlap by at least 1/OVERLAP of their side."""


def score_images(
    loaded: Iterable[Loaded], segmenter: Segmenter, batch: int, tile_px: int | None
) -> Iterator[tuple[Loaded, Float[Tensor, "classes rows columns"]]]:
    """Each image with its patches' scores, in order."""
    if tile_px is not None:
        for image in loaded:
            assert image.image is not None
            yield image, score_tiles(image.image, segmenter, tile_px, batch)
        return
    for images in in_batches(loaded, batch):
        inputs = network_input(images, segmenter.backbone, segmenter.device)
        yield from zip(images, segmenter.scores(inputs))


def certainty(probabilities: Float[Tensor, "classes rows columns"]) -> float:
    """The mean over patches of the margin between the two most probable classes."""
    best = probabilities.topk(min(2, len(probabilities)), dim=0).values
    margins = best[0] - best[1:].sum(dim=0)
    return float(margins.mean(dtype=torch.float64))  # rounding must not exceed 1


def in_batches(loaded: Iterable[Loaded], size: int) -> Iterator[list[Loaded]]:
    """At most `size` consecutive images whose inputs have the same shape."""
    for _, images in groupby(loaded, key=lambda image: image.pixels.shape):  # pyright: ignore
        while batch := list(islice(images, size)):
            yield batch


def network_input(
    batch: Sequence[Loaded], backbone: DenseBackbone, device: torch.device
) -> Float[Tensor, "B 3 h w"]:
    # Stacked on the device: on the CPU, torch's threads would compete with the readers for cores.
    pixels = [image.pixels.to(device) for image in batch if image.pixels is not None]
    return backbone.normalize(torch.stack(pixels) / 255)


def score_tiles(
    image: UInt8[np.ndarray, "H W 3"], segmenter: Segmenter, tile_px: int, batch: int
) -> Float[Tensor, "classes rows columns"]:
    """At the image's own resolution, rounded to whole patches.

    for every patch: score = Σ weight · score over the tiles that contain it, divided by Σ weight
    A patch's weight grows linearly from the tile's border to its middle.
    """
    unit = segmenter.backbone.stride_px
    grid = [max(1, round(side / unit)) for side in image.shape[:2]]
    size = (grid[1] * unit, grid[0] * unit)
    resized = Image.fromarray(image).resize(size, Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(resized)).to(segmenter.device).permute(2, 0, 1)
    sides = [min(tile_px // unit, count) for count in grid]
    rows, columns = (_starts(count, side) for count, side in zip(grid, sides))
    tile_slices = [np.s_[y : y + sides[0], x : x + sides[1]] for y in rows for x in columns]
    ramps = [1.0 + torch.arange(side).minimum(torch.arange(side).flip(0)) for side in sides]
    weight = torch.outer(*ramps).to(segmenter.device)
    total, weights = torch.zeros(()), torch.zeros(grid, device=segmenter.device)
    for start in range(0, len(tile_slices), batch):
        tile_batch = tile_slices[start : start + batch]
        tiles = [
            pixels[:, y.start * unit : y.stop * unit, x.start * unit : x.stop * unit]
            for y, x in tile_batch
        ]
        scores = segmenter.scores(segmenter.backbone.normalize(torch.stack(tiles) / 255))
        if not total.ndim:
            total = scores.new_zeros(scores.shape[1], *grid)
        for (y, x), tile_scores in zip(tile_batch, scores):
            total[:, y, x] += weight * tile_scores
            weights[y, x] += weight
    return total / weights


def _starts(count: int, side: int) -> list[int]:
    """The first patch of each of the evenly spaced tiles that cover `count` patches."""
    step = max(1, side - -(-side // OVERLAP))
    tiles = 1 + -(-(count - side) // step)
    return [round(k * (count - side) / max(1, tiles - 1)) for k in range(tiles)]
