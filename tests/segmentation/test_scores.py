"""Tiles cover an image and are blended; the guided filter aligns masks with edges."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from croc.method.photometric import normalize
from croc.segmentation.edges import follow_edges
from croc.segmentation.scores import _starts, score_tiles
from croc.segmentation.segmenter import argmax_upsampled
from tests.segmentation.heads import make_head


@pytest.mark.parametrize(("count", "side"), [(1, 1), (7, 7), (8, 7), (40, 7), (41, 8), (300, 1)])
def test_tiles_overlap_and_cover(count: int, side: int):
    starts = _starts(count, side)
    assert starts[0] == 0
    assert starts[-1] + side == count
    overlap = -(-side // 4) if side > 1 else 0
    assert all(0 < b - a <= side - overlap for a, b in pairwise(starts))


def test_one_tile_equals_the_whole_image_and_overlapping_tiles_are_blended():
    segmenter = make_head()
    image = np.random.default_rng(0).integers(0, 256, (64, 112, 3), np.uint8)
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None] / 255
    whole = segmenter.scores(normalize(pixels))[0]
    torch.testing.assert_close(score_tiles(image, segmenter, 112, 2), whole)
    tiled = score_tiles(image, segmenter, 48, 2)
    assert tiled.shape == whole.shape
    corner = segmenter.scores(normalize(pixels[..., :48, :48]))[0]
    torch.testing.assert_close(tiled[:, 0, 0], corner[:, 0, 0])  # in one tile only
    below = segmenter.scores(normalize(pixels[..., 16:64, :48]))[0]
    blend = (2 * corner[:, 1, 0] + 1 * below[:, 0, 0]) / 3  # weighted by distance to the border
    torch.testing.assert_close(tiled[:, 1, 0], blend)
    assert score_tiles(np.resize(image, (5, 203, 3)), segmenter, 32, 3).shape == (3, 1, 13)


@pytest.mark.parametrize("size", [(96, 128), (600, 900)])
def test_masks_follow_edges(size: tuple[int, int]):
    truth = np.zeros(size, np.uint8)
    truth[:, int(0.45 * size[1]) :] = 1  # between the centers of two patches
    noise = np.random.default_rng(0).integers(-8, 8, (*size, 3))
    image = np.clip(60 + 130 * truth[..., None].astype(int) + noise, 0, 255).astype(np.uint8)
    scores = torch.tensor([4.0] * 12 + [1.0] + [0.0] * 15).expand(21, 28)
    scores = torch.stack([scores, 4 - scores])
    plain, guided = argmax_upsampled(scores, size), follow_edges(scores, image)
    assert guided.shape == size
    assert guided.dtype == np.uint8
    assert (guided != truth).mean() < 0.2 * (plain != truth).mean()
