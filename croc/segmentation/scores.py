"""Class scores of many images, whole ones in batches or large ones in tiles."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from croc.method.photometric import normalize
from croc.segmentation.images import Loaded
from croc.segmentation.segmenter import Segmenter

OVERLAP = 4
"""Adjacent tiles overlap by at least 1/OVERLAP of their side."""


def score_images(
    loaded: Iterable[Loaded], segmenter: Segmenter, batch: int, tile_px: int | None
) -> Iterator[tuple[Loaded, Float[Tensor, "classes rows columns"]]]:
    """Each image with its patches' scores, in order."""
    waiting: list[Loaded] = []
    for each in loaded:
        if each.pixels is None:
            assert each.image is not None
            assert tile_px is not None
            yield each, score_tiles(each.image, segmenter, tile_px, batch)
            continue
        if waiting and waiting[0].pixels.shape != each.pixels.shape:  # pyright: ignore
            yield from _score_alike(waiting, segmenter)
            waiting = []
        waiting.append(each)
        if len(waiting) == batch:
            yield from _score_alike(waiting, segmenter)
            waiting = []
    if waiting:
        yield from _score_alike(waiting, segmenter)


def _score_alike(batch: Sequence[Loaded], segmenter: Segmenter) -> Iterator[tuple[Loaded, Tensor]]:
    yield from zip(batch, segmenter.scores(network_input(batch, segmenter.device)))


def network_input(batch: Sequence[Loaded], device: torch.device) -> Float[Tensor, "B 3 h w"]:
    # Stacked on the device: on the CPU, torch's threads would compete with the readers for cores.
    pixels = [each.pixels.to(device) for each in batch if each.pixels is not None]
    return normalize(torch.stack(pixels) / 255)


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
        scores = segmenter.scores(normalize(torch.stack(tiles) / 255))
        if not total.ndim:
            total = scores.new_zeros(scores.shape[1], *grid)
        for (y, x), each in zip(tile_batch, scores):
            total[:, y, x] += weight * each
            weights[y, x] += weight
    return total / weights


def _starts(count: int, side: int) -> list[int]:
    """Of tiles of this side that cover `count` patches, evenly spaced."""
    step = max(1, side - -(-side // OVERLAP))
    tiles = 1 + -(-(count - side) // step)
    return [round(k * (count - side) / max(1, tiles - 1)) for k in range(tiles)]
