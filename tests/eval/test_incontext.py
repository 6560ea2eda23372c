"""In-context segmentation against loops, scikit-learn, and made-up data whose answer is known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsRegressor
from torch import Tensor

from croc.eval.datasets import LabeledImage
from croc.eval.features import PatchFeatures
from croc.eval.incontext import Memory, choose, count_labels, evaluate_incontext, fill_memory
from croc.eval.machine import Machine
from croc.eval.protocols import InContextConfig
from croc.weights.backbones import DenseBackbone
from tests.eval.fakes import CPU, Patches, TwoColors
from tests.oracles import incontext as oracle

CONFIG = InContextConfig(image_px=32, label_px=32)


class Shaded(Patches):
    """Squares of many shades."""

    def __init__(self, count: int, seed: int, bright: float = 0.5) -> None:
        super().__init__(count, seed, bright)
        self.shade = np.random.default_rng(seed + 9).integers(-40, 40, (count, 4, 4, 3))

    def read(self, index: int) -> LabeledImage:
        read = super().read(index)
        shade = self.shade[index].repeat(8, axis=0).repeat(8, axis=1)
        return LabeledImage((read.image + shade).astype(np.uint8), read.labels, read.name)


class Halved(TwoColors):
    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        return super().features(images).bfloat16()


def remember(
    config: InContextConfig,
    data: Patches,
    backbone: DenseBackbone | None = None,
    machine: Machine | None = None,
    **options: Any,
) -> Memory:
    sizes = (config.image_px, config.label_px, config.blocks)
    network, machine = backbone or TwoColors(), machine or Machine()
    return fill_memory(PatchFeatures(network, machine, data, *sizes, **options), config)


def random_memory(entries: int, width: int, classes: int, seed: int, neighbors: int) -> Memory:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(entries, width, generator=generator, dtype=torch.float64)
    histograms = torch.rand(entries, classes, generator=generator, dtype=torch.float64)
    unit, parts = F.normalize(features, dim=1), F.normalize(histograms, p=1.0, dim=1)
    return Memory(unit, parts, neighbors, 0.05)


def random_features(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 7 * torch.randn(shape, generator=generator, dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(2, 6), st.integers(1, 4)),
    neighbors=st.integers(1, 45),
    grid=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 1000),
)
def test_a_prediction_is_what_the_loops_say(sizes, neighbors, grid, seed):
    entries, width, classes = sizes
    images, rows, columns = grid
    memory = random_memory(entries, width, classes, seed, neighbors)
    features = random_features(seed + 1, images, width, rows, columns)
    result = memory(features)
    assert result.shape == (images, classes, rows, columns)
    bank, histograms = memory.features.tolist(), memory.histograms.tolist()
    for image, y, x in np.ndindex(images, rows, columns):
        query = features[image, :, y, x].tolist()
        expected = oracle.predict(query, bank, histograms, neighbors, 0.05)
        assert result[image, :, y, x].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("neighbors", [1, 5, 30])
def test_a_prediction_is_scikit_learns(neighbors: int):
    memory = random_memory(200, 8, 5, 0, neighbors=neighbors)
    features = random_features(1, 2, 8, 3, 4)

    def weigh(distances: np.ndarray) -> np.ndarray:
        return np.exp(-distances / 0.05)  # cosine distance is 1 - cosine

    model = KNeighborsRegressor(neighbors, weights=weigh, metric="cosine", algorithm="brute")
    model.fit(memory.features.numpy(), memory.histograms.numpy())
    expected = model.predict(features.permute(0, 2, 3, 1).reshape(-1, 8).numpy())
    result = memory(features).permute(0, 2, 3, 1).reshape(-1, 5)
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    classes=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_labels_of_a_patch_are_counted_as_by_loops(size, grid, classes, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, (3, *size))
    labels[generator.random(labels.shape) < 0.3] = 255
    result = count_labels(torch.from_numpy(labels), classes, *grid)
    for image in range(3):
        expected = oracle.count_labels(labels[image], classes, *grid)
        assert np.array_equal(result[image].numpy(), expected)


@settings(max_examples=40, deadline=None)
@given(patches=st.integers(1, 12), classes=st.integers(1, 4), seed=st.integers(0, 1000))
def test_the_choice_is_what_the_loops_say(patches: int, classes: int, seed: int):
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 9, (3, patches, classes))
    counts[generator.random(counts.shape) < 0.6] = 0
    shares = generator.integers(0, patches + 2, 3)
    draws = generator.uniform(0, 1, (3, patches))
    result = choose(*map(torch.from_numpy, (counts, shares, draws)))
    for image in range(3):
        expected = oracle.choose(counts[image], shares[image], draws[image].tolist())
        assert set(result[image].nonzero()[:, 0].tolist()) == expected


def test_every_image_has_its_share():
    class Numbered(TwoColors):
        """Features that tell the image: angles by the order in which images are seen."""

        seen = 0

        def features(self, images: Tensor, blocks: int = 1) -> Tensor:
            numbers = torch.arange(self.seen, self.seen + len(images)).float()
            self.seen += len(images)
            angles = torch.stack([numbers.cos(), numbers.sin()], dim=1)
            return angles[:, :, None, None].expand(-1, -1, 4, 4)

    config = replace(CONFIG, memory=50)
    features = remember(config, Patches(6, 0), Numbered(), batch=4).features
    expected = torch.tensor([8, 8, 9, 8, 8, 9])  # 50 / 6 = 8⅓
    numbers = torch.arange(6).repeat_interleave(expected).float()
    torch.testing.assert_close(features, torch.stack([numbers.cos(), numbers.sin()], dim=1))


def test_the_seed_decides_and_the_batch_does_not():
    config = replace(CONFIG, memory=60)

    def fill(seed: int, batch: int, workers: int = 0) -> Memory:
        chosen = replace(config, seed=seed)
        machine = Machine(workers=workers)
        return remember(chosen, Shaded(11, 0), machine=machine, batch=batch)

    first = fill(0, 32)
    for same in (fill(0, 32), fill(0, 3), fill(0, 4, workers=1)):
        assert torch.equal(first.features, same.features)
        assert torch.equal(first.histograms, same.histograms)
    assert not torch.equal(first.features, fill(1, 32).features)


def score_of(backbone: TwoColors, config: InContextConfig) -> float:
    parts = (Shaded(12, 0), Shaded(6, 1))
    return evaluate_incontext(backbone, Machine(), *parts, config).scores["mIoU"]


def test_an_easy_answer_is_right():
    # Upsampling blurs the borders of the squares; at one pixel per patch there is nothing to blur.
    assert score_of(TwoColors(), CONFIG) > 80
    exact = replace(CONFIG, label_px=4)
    assert score_of(TwoColors(), exact) == 100
    assert score_of(Halved(), exact) == 100
    assert score_of(TwoColors(), replace(exact, memory=24)) == 100


@pytest.mark.cuda
def test_gpu_and_cpu_agree():
    config, device = replace(CONFIG, memory=90), torch.device("cuda")
    here, there = (remember(config, Shaded(11, 0), machine=Machine(x)) for x in (CPU, device))
    torch.testing.assert_close(there.features.cpu(), here.features)
    assert torch.equal(there.histograms.cpu(), here.histograms)
    memory = random_memory(3000, 16, 5, 0, neighbors=30)
    features = random_features(1, 2, 16, 9, 9)
    expected = memory(features)
    predicted = memory.cuda()(features.cuda())
    torch.testing.assert_close(predicted.cpu(), expected, atol=1e-9, rtol=0)
