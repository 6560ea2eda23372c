"""K-means against scikit-learn, and unsupervised segmentation with a known answer."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from croc.eval.datasets import LabeledImage
from croc.eval.features import Moments
from croc.eval.kmeans import Reduction, evaluate_kmeans, fit_kmeans
from croc.eval.machine import Machine
from croc.eval.protocols import KmeansConfig
from tests.eval.fakes import MeanColor, Patches, SecondToLast, TwoColors

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
    config = replace(CONFIG, on=on)  # pyright: ignore[reportArgumentType]
    report = evaluate_kmeans(TwoColors(), Machine(), Patches(20, 0), config)
    least = 75 if on == "pixels" else 100  # bilinear features blur the borders
    assert min(report.scores["by seed"]) >= least
    assert report.scores["mIoU"] == pytest.approx(np.mean(report.scores["by seed"]))
    again = evaluate_kmeans(TwoColors(), Machine(), Patches(20, 0), config)
    assert again.scores == report.scores


def test_more_clusters_than_classes_are_matched_many_to_one():
    config = replace(CONFIG, on="tokens", clusters=6)
    noisy = evaluate_kmeans(MeanColor(), Machine(), Patches(20, 0), config)
    assert noisy.scores["mIoU"] == 100


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


def test_features_narrower_than_the_pca_are_all_kept():
    features, moments = torch.randn(2, 5, 8, 8), Moments()
    moments.add(features)
    assert Reduction(moments, 50)(features.movedim(1, -1)).shape == (2, 8, 8, 5)


@pytest.mark.parametrize("on", ["pixels", "tokens"])
def test_the_requested_blocks_are_clustered(on: str):
    backbone = SecondToLast()
    config = replace(CONFIG, on=on, blocks=2)  # pyright: ignore[reportArgumentType]
    assert evaluate_kmeans(backbone, Machine(), Patches(20, 0), config).scores["mIoU"] > 70
    assert set(backbone.requested) == {2}
