"""Within-image segmentation with planted tokens, and against nested loops."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from croc.eval import kmeans
from croc.eval.features import Report
from croc.eval.machine import Machine
from croc.eval.protocols import WithinConfig
from croc.weights.backbones import DenseBackbone
from tests.eval.fakes import Listed

SIDE = 8
CONFIG = WithinConfig(image_px=32, label_px=16, pca=2, seeds=2, restarts=2)


class Planted(DenseBackbone):
    """A backbone whose tokens were chosen before, image by image in order."""

    name, stride_px = "planted", 4

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        return self._tokens[: len(images)]


def scores(tokens: Tensor, maps: np.ndarray, config: WithinConfig = CONFIG) -> Report:
    return kmeans.evaluate_within(Planted(tokens), Machine(), Listed(maps), config)


def enlarged(maps: np.ndarray) -> np.ndarray:
    return maps.repeat(2, axis=1).repeat(2, axis=2)


def halves(count: int = 12) -> np.ndarray:
    """Two of the four classes, each on a random half of the tokens."""
    generator = np.random.default_rng(0)
    pairs = [generator.choice(4, 2, replace=False) for _ in range(count)]
    grids = [generator.permutation(pair.repeat(SIDE * SIDE // 2)) for pair in pairs]
    return np.stack(grids).reshape(count, SIDE, SIDE)


def noise(count: int = 12, width: int = 4) -> Tensor:
    return torch.randn(count, width, SIDE, SIDE, generator=torch.Generator().manual_seed(0))


def test_a_perfect_segmentation_scores_100():
    grids = halves()
    grids[0, :4, :4] = 3 - grids[0, 4, 4]  # and one image with more classes
    tokens = torch.eye(4)[torch.from_numpy(grids)].movedim(-1, 1)
    report = scores(tokens, enlarged(grids), replace(CONFIG, pca=4, restarts=5))
    assert report.scores["by seed"] == [100, 100]
    assert list(report.classes.values()) == [100] * 4
    for example in report.examples:
        assert torch.equal(example.predicted, example.truth)


def test_one_label_per_image_scores_no_better_than_noise():
    grids = halves()
    one = noise()[:, :, :1, :1].expand(-1, -1, SIDE, SIDE)
    label, chance = (scores(x, enlarged(grids)).scores["mIoU"] for x in (one, noise()))
    assert label == pytest.approx(25)  # the half of one class, nothing of the other
    assert chance == pytest.approx(100 / 3, abs=5)


def loops(clusters: Tensor, truth: Tensor) -> dict[int, float]:
    """IoU of each class in one image, by the best of all one-to-one matchings."""
    classes = sorted(set(truth.flatten().tolist()) - {255})
    best: dict[int, float] = {}
    for matching in permutations(classes):
        scores = {}
        for cluster, label in enumerate(matching):
            both = either = 0
            for k, c in zip(clusters.flatten().tolist(), truth.flatten().tolist()):
                if c != 255:
                    both += k == cluster and c == label
                    either += k == cluster or c == label
            scores[label] = both / either
        if not best or sum(scores.values()) > sum(best.values()):
            best = scores
    return best


def test_matching_and_means_are_those_of_nested_loops(monkeypatch: pytest.MonkeyPatch):
    maps = np.random.default_rng(1).choice([0, 1, 2, 3, 255], (5, 16, 16))
    maps[1] = np.where(maps[1] < 2, 3, maps[1])
    maps[2] = np.where(maps[2] < 255, 1, 255)  # one class: not scored
    seen: list[list[dict[int, float]]] = [[], []]
    real = kmeans.cluster_image

    def watched(
        tokens: Tensor, truth: Tensor, count: int, config: WithinConfig, seed: int
    ) -> Tensor:
        clusters = real(tokens, truth, count, config, seed)
        seen[seed].append(loops(clusters, truth))
        return clusters

    monkeypatch.setattr(kmeans, "cluster_image", watched)
    report = scores(noise(5), maps)
    for score, images in zip(report.scores["by seed"], seen):
        assert len(images) == 4
        means = [np.mean(list(each.values())) for each in images]
        assert score == pytest.approx(100 * np.mean(means))
    for label, score in enumerate(report.classes.values()):
        own = [each[label] for each in seen[0] if label in each]
        assert score == pytest.approx(100 * np.mean(own))


def test_ignored_tokens_take_no_cluster():
    grids = np.zeros((3, SIDE, SIDE))
    grids[:, :, 3:], grids[:, :, 6:] = 1, 255
    tokens = torch.from_numpy(grids)[:, None].float().expand(-1, 2, -1, -1)
    assert scores(tokens, enlarged(grids)).scores["by seed"] == [100, 100]


def test_clusters_are_enlarged_about_the_centers_of_pixels():
    """As Pillow resizes the labels: 3 tokens to 5 pixels."""
    tokens = torch.tensor([0.0, 0.0, 9.0]).expand(3, 3)[..., None]
    truth = torch.from_numpy(np.tile([0, 0, 0, 0, 1], (5, 1)))
    clusters = kmeans.cluster_image(tokens, truth, 2, replace(CONFIG, label_px=5), 0)
    small = Image.fromarray(np.tile(np.array([0, 0, 1], np.uint8), (3, 1)))
    expected = np.array(small.resize((5, 5), Image.Resampling.NEAREST))
    assert np.array_equal(clusters == clusters[0, -1], expected == 1)


def test_labels_between_the_tokens_centers_are_scored():
    maps = np.full((3, 16, 16), 255)
    maps[:, :, 0], maps[:, :, 8] = 0, 1
    tokens = torch.zeros(3, 2, SIDE, SIDE)
    tokens[..., 3:] = 1
    assert scores(tokens, maps).scores["by seed"] == [100, 100]
