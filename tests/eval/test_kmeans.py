"""K-means, of a set and within images, against scikit-learn, loops and a known answer."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from croc.eval import kmeans
from croc.eval.datasets import LabeledImage
from croc.eval.features import Moments, Report
from croc.eval.kmeans import Reduction, evaluate_kmeans, fit_kmeans
from croc.eval.machine import Machine
from croc.eval.protocols import KmeansConfig, WithinConfig
from croc.weights.backbones import DenseBackbone
from tests.eval.fakes import Listed, MeanColor, Patches, SecondToLast, TwoColors

CONFIG = KmeansConfig(image_px=32, label_px=16, seeds=2, restarts=2, pca=2)


def blobs(seed: int, count: int = 600, clusters: int = 5) -> np.ndarray:
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(clusters, 8)) * 2
    return (
        centers[generator.integers(0, clusters, count)] + generator.normal(size=(count, 8))
    ).astype(np.float32)


def inertia(points: np.ndarray, centroids: np.ndarray) -> float:
    return float(((points[:, None] - centroids[None]) ** 2).sum(-1).min(1).sum())


@pytest.mark.parametrize("seed", range(3))
def test_inertia_is_scikit_learns_from_the_same_start(seed: int):
    points = blobs(seed)
    start = points[:5].copy()
    ours = fit_kmeans(points, 5, iterations=100, restarts=1, seed=seed, start=start)
    reference = KMeans(5, init=start, n_init=1, max_iter=100, algorithm="lloyd").fit(points)
    assert inertia(points, ours) == pytest.approx(reference.inertia_, rel=0.02)


def test_pca_is_scikit_learns():
    tokens = torch.from_numpy(blobs(1)).reshape(6, 10, 10, 8).permute(0, 3, 1, 2)
    flat = StandardScaler().fit_transform(blobs(1).astype(np.float64))
    expected = PCA(3).fit_transform(flat)
    moments = Moments()
    for part in tokens.split(4):
        moments.add(part)
    reduce = Reduction(moments, pca=3)
    reduced = reduce(tokens.permute(0, 2, 3, 1)).reshape(-1, 3).numpy()[:, ::-1]
    signs = np.sign((reduced * expected).sum(0))
    np.testing.assert_allclose(reduced * signs, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("on", ["pixels", "tokens"])
def test_separate_classes_are_recovered(on: str):
    config = replace(CONFIG, on=on)
    report = evaluate_kmeans(TwoColors(), Machine(), Patches(20, 0), config)
    least = 75 if on == "pixels" else 100  # bilinear features blur the borders
    assert min(report.scores["by seed"]) >= least
    assert report.scores["mIoU"] == pytest.approx(np.mean(report.scores["by seed"]))
    assert evaluate_kmeans(TwoColors(), Machine(), Patches(20, 0), config).scores == report.scores


def test_more_clusters_than_classes_are_matched_many_to_one():
    config = replace(CONFIG, on="tokens", clusters=6)
    noisy = evaluate_kmeans(MeanColor(), Machine(), Patches(20, 0), config)
    assert noisy.scores["mIoU"] == 100


def test_features_narrower_than_the_pca_are_all_kept():
    features, moments = torch.randn(2, 5, 8, 8), Moments()
    moments.add(features)
    assert Reduction(moments, 50)(features.movedim(1, -1)).shape == (2, 8, 8, 5)


@pytest.mark.parametrize("on", ["pixels", "tokens"])
def test_the_requested_blocks_are_clustered(on: str):
    backbone = SecondToLast()
    config = replace(CONFIG, on=on, blocks=2)
    assert evaluate_kmeans(backbone, Machine(), Patches(20, 0), config).scores["mIoU"] > 70
    assert set(backbone.requested) == {2}


class ThreeShades(Patches):
    """The class `dark` has two shades: black, and a grey that is nearly the shade of `bright`."""

    def read(self, index: int) -> LabeledImage:
        squares = np.array([0] * 8 + [150] * 5 + [200] * 3, np.uint8).reshape(4, 4)
        shades = squares.repeat(8, axis=0).repeat(8, axis=1)
        return LabeledImage(
            shades[..., None].repeat(3, axis=2), (shades == 200).astype(np.uint8), ""
        )


def test_as_many_clusters_as_classes_are_matched_one_to_one():
    """Most of both clusters, black and the rest, is dark: one has to be bright all the same."""
    config = replace(CONFIG, on="tokens")
    report = evaluate_kmeans(TwoColors(), Machine(), ThreeShades(4, 0), config)
    assert list(report.classes.values()) == pytest.approx([800 / 13, 300 / 8])
    expected = 100 * (8 / 13 + 3 / 8) / 2  # else 13 / 16 / 2
    assert report.scores["by seed"] == pytest.approx([expected] * 2)


SIDE = 8
WITHIN = WithinConfig(image_px=32, label_px=16, pca=2, seeds=2, restarts=2)


class Planted(DenseBackbone):
    """A backbone whose tokens were chosen before, image by image in order."""

    name, stride_px = "planted", 4

    def __init__(self, tokens: Tensor) -> None:
        self._tokens = tokens

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        return self._tokens[: len(images)]


def scores(tokens: Tensor, maps: np.ndarray, config: WithinConfig = WITHIN) -> Report:
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
    report = scores(tokens, enlarged(grids), replace(WITHIN, pca=4, restarts=5))
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
    clusters = kmeans.cluster_image(tokens, truth, 2, replace(WITHIN, label_px=5), 0)
    small = Image.fromarray(np.tile(np.array([0, 0, 1], np.uint8), (3, 1)))
    expected = np.array(small.resize((5, 5), Image.Resampling.NEAREST))
    assert np.array_equal(clusters == clusters[0, -1], expected == 1)


def test_labels_between_the_tokens_centers_are_scored():
    maps = np.full((3, 16, 16), 255)
    maps[:, :, 0], maps[:, :, 8] = 0, 1
    tokens = torch.zeros(3, 2, SIDE, SIDE)
    tokens[..., 3:] = 1
    assert scores(tokens, maps).scores["by seed"] == [100, 100]
