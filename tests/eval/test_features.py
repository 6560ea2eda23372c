"""Images to patch features: sizes, kept features, errors from workers; moments of features."""

from typing import Any

import numpy as np
import pytest
import torch

from croc.eval.datasets import LabeledImage
from croc.eval.features import Moments, PatchFeatures, in_order, kept_ratio
from croc.eval.machine import Machine
from croc.weights.backbones import DenseBackbone
from tests.eval.fakes import Counting, MeanColor, Patches

SMALL: dict[str, Any] = {"image_px": 32, "label_px": 8, "blocks": 1, "batch": 2}


class Identity(DenseBackbone):
    name, stride_px = "identity", 1

    def features(self, images: torch.Tensor, blocks: int = 1) -> torch.Tensor:
        return images


@pytest.mark.parametrize("workers", [0, 1])
def test_images_are_squashed_and_normalized(workers: int):
    data = Patches(5, 0)
    options = {**SMALL, "image_px": 16}
    patches = PatchFeatures(Identity(), Machine(workers=workers), data, **options)
    batches = list(patches.batches(in_order(5, 2)))
    assert [tuple(images.shape) for images, _ in batches] == [(n, 3, 16, 16) for n in (2, 2, 1)]
    images, labels = batches[2]
    assert np.array_equal(labels[0].numpy(), data.read(4).labels[2::4, 2::4])
    pixel = (float(data.read(4).image[12, 4, 0]) / 255 - 0.485) / 0.229
    assert images[0, 0, 6, 2].item() == pytest.approx(pixel, abs=0.05)


class Tall(Patches):
    """Images of several sizes."""

    def read(self, index: int) -> LabeledImage:
        read = super().read(index)
        rows = 24 + 4 * index
        return LabeledImage(read.image[:rows], read.labels[:rows], read.name)


def test_the_ratio_and_the_labels_size_may_be_kept():
    options = {**SMALL, "image_px": 48, "label_px": None}
    patches = PatchFeatures(MeanColor(), Machine(), Tall(3, 0), **options, keep_ratio=True)
    batches = list(patches.all_batches("features"))
    assert [tuple(features.shape[2:]) for features, _ in batches] == [(6, 8), (6, 7), (6, 6)]
    assert [tuple(labels.shape) for _, labels in batches] == [(1, 24, 32), (1, 28, 32), (1, 32, 32)]
    patches.keep()
    assert patches.cached is None
    assert kept_ratio((100, 50), 512, 16) == (1024, 512)
    assert kept_ratio((50, 5000), 512, 16) == (512, 2048)


def test_features_are_kept_if_they_fit(monkeypatch: pytest.MonkeyPatch):
    backbone = Counting()
    roomy = PatchFeatures(backbone, Machine(), Patches(5, 0), **SMALL)
    monkeypatch.setattr("croc.eval.features.free_memory", lambda: 4000)
    tight = PatchFeatures(MeanColor(), Machine(), Patches(5, 0), **SMALL)
    for patches in (roomy, tight):
        patches.keep()
        patches.keep()
    assert roomy.cached is not None
    assert roomy.cached[0].shape == (5, 6, 4, 4)
    assert tight.cached is None
    for kept, computed in (
        (roomy.all_batches("features"), tight.all_batches("features")),
        (roomy.batches([[3, 1]]), tight.batches([[3, 1]])),
        (roomy.subset([4, 1, 3]).batches([[2, 0]]), tight.subset([4, 1, 3]).batches([[2, 0]])),
    ):
        for tensors, expected in zip(kept, computed, strict=True):
            assert all(map(torch.equal, tensors, expected))
    assert backbone.images == 5


def test_moments_equal_torchs():
    features = 3 * torch.randn(50, 2, 4, 4) + 1e4  # far from 0
    moments = Moments()
    for part in features.split(7):
        moments.add(part)
    flat = features.movedim(1, 0).flatten(1).double()
    torch.testing.assert_close(moments.mean, flat.mean(dim=1).float())
    torch.testing.assert_close(moments.deviation, flat.std(dim=1).float(), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(moments.covariance, flat.cov(correction=0), atol=1e-2, rtol=1e-3)
