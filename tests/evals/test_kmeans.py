"""K-means against scikit-learn, and unsupervised segmentation with a known answer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from croc.errors import UserError
from croc.eval import inputs
from croc.eval.datasets import Labelled
from croc.eval.kmeans import Reduction, evaluate_kmeans, fit_kmeans, nearest
from croc.eval.moments import Moments
from croc.eval.protocols import KmeansConfig
from tests.evals.test_linear import CPU, MeanColour, Patches, SecondToLast

CONFIG = KmeansConfig(image_px=32, label_px=16, seeds=2, restarts=2, pca=2)


def blobs(seed: int, count: int = 600, clusters: int = 5) -> np.ndarray:
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(clusters, 8)) * 2
    return (
        centres[generator.integers(0, clusters, count)] + generator.normal(size=(count, 8))
    ).astype(np.float32)


def inertia(points: np.ndarray, centroids: np.ndarray) -> float:
    return float(((points[:, None] - centroids[None]) ** 2).sum(-1).min(1).sum())


@pytest.mark.parametrize("seed", range(4))
def test_inertia_is_scikit_learns_from_the_same_start(seed: int):
    points = blobs(seed)
    start = points[:5].copy()
    ours = fit_kmeans(points, 5, iterations=100, restarts=1, seed=seed, start=start)
    theirs = KMeans(5, init=start, n_init=1, max_iter=100, algorithm="lloyd").fit(points)
    assert inertia(points, ours) == pytest.approx(theirs.inertia_, rel=0.02)


def test_the_same_seed_gives_the_same_centroids():
    points = blobs(0)
    one, again, other = (fit_kmeans(points, 5, 20, 2, seed) for seed in (3, 3, 4))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_small_tasks_have_one_thread_and_threads_are_given_back(monkeypatch: pytest.MonkeyPatch):
    import faiss

    seen, train = [], faiss.Kmeans.train

    def watched(*given: Any, **named: Any) -> Any:
        seen.append(faiss.omp_get_max_threads())
        return train(*given, **named)

    monkeypatch.setattr(faiss.Kmeans, "train", watched)
    usual = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        fit_kmeans(blobs(0), 5, 2, 1, 0)
        monkeypatch.setattr("croc.eval.kmeans.FEW_PRODUCTS", 600 * 8 * 5)
        fit_kmeans(blobs(0), 5, 2, 1, 0)
        assert (seen, faiss.omp_get_max_threads()) == ([1, 3], 3)
    finally:
        faiss.omp_set_num_threads(usual)


def test_nearest_is_the_nearest():
    features, centroids = torch.randn(2, 8, 3, 4), torch.randn(5, 8)
    distances = (features[:, None] - centroids[None, :, :, None, None]).square().sum(dim=2)
    assert torch.equal(nearest(features, centroids), distances.argmin(dim=1))


def test_pca_is_scikit_learns():
    tokens = torch.from_numpy(blobs(1)).reshape(6, 10, 10, 8).permute(0, 3, 1, 2)
    flat = StandardScaler().fit_transform(blobs(1).astype(np.float64))
    expected = PCA(3).fit_transform(flat)
    moments = Moments()
    for part in tokens.split(4):
        moments.add(part, covariance=True)
    reduce = Reduction(moments, pca=3)
    got = reduce(tokens.permute(0, 2, 3, 1)).reshape(-1, 3).numpy()[:, ::-1]
    signs = np.sign((got * expected).sum(0))
    np.testing.assert_allclose(got * signs, expected, rtol=2e-3, atol=2e-3)


class TwoColours(MeanColour):
    """Only the colours: two well-separated clusters."""

    def features(self, images: Tensor, blocks: int = 1) -> Tensor:
        return super().features(images)[:, :3]


@pytest.mark.parametrize("reading", ["pixels", "tokens"])
def test_separate_classes_are_found(reading: str):
    config = replace(CONFIG, reading=reading)  # pyright: ignore[reportArgumentType]
    report = evaluate_kmeans(TwoColours(), Patches(20, 0), config, CPU)
    least = 0.75 if reading == "pixels" else 1.0  # bilinear features blur the borders
    assert min(report.scores) >= least
    assert len(report.scores) == 2
    assert report.mean == pytest.approx(np.mean(report.scores))
    again = evaluate_kmeans(TwoColours(), Patches(20, 0), config, CPU)
    assert again.scores == report.scores


def test_more_clusters_than_classes_are_matched_many_to_one():
    config = replace(CONFIG, reading="tokens", clusters=6)
    noisy = evaluate_kmeans(MeanColour(), Patches(20, 0), config, CPU)
    assert noisy.mean == 1


class ThreeShades(Patches):
    """The class `dark` has two shades: black, and a grey that is nearly the shade of `bright`."""

    def read(self, index: int) -> Labelled:
        squares = np.array([0] * 8 + [150] * 5 + [200] * 3, np.uint8).reshape(4, 4)
        shades = squares.repeat(8, axis=0).repeat(8, axis=1)
        return Labelled(shades[..., None].repeat(3, axis=2), (shades == 200).astype(np.uint8), "")


def test_as_many_clusters_as_classes_are_matched_one_to_one():
    """Most of both clusters, black and the rest, is dark: one has to be bright all the same."""
    config = replace(CONFIG, reading="tokens")
    report = evaluate_kmeans(TwoColours(), ThreeShades(4, 0), config, CPU)
    assert report.first.iou.per_class.tolist() == pytest.approx([8 / 13, 3 / 8])
    assert report.scores == pytest.approx([(8 / 13 + 3 / 8) / 2] * 2)  # else 13 / 16 / 2


@pytest.mark.parametrize(("reading", "iterations"), [("pixels", 50), ("tokens", 100)])
def test_every_seed_clusters_points_of_its_own_in_all_iterations(
    reading: str, iterations: int, monkeypatch: pytest.MonkeyPatch
):
    calls = []

    def watched(points: np.ndarray, *settings: int) -> np.ndarray:
        calls.append((points, settings))
        return fit_kmeans(points, *settings)

    monkeypatch.setattr("croc.eval.kmeans.fit_kmeans", watched)
    config = replace(CONFIG, reading=reading)  # pyright: ignore[reportArgumentType]
    evaluate_kmeans(TwoColours(), Patches(40, 0), config, CPU)
    (one, settings), (other, other_settings) = calls
    assert settings == (2, iterations, config.restarts, 0)
    assert other_settings == (2, iterations, config.restarts, 1)
    assert len(one) == len(other) == 2 * 256
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("reading", ["pixels", "tokens"])
def test_the_blocks_asked_for_are_clustered(reading: str):
    backbone = SecondToLast()
    config = replace(CONFIG, reading=reading, blocks=2)  # pyright: ignore[reportArgumentType]
    assert evaluate_kmeans(backbone, Patches(20, 0), config, CPU).mean > 0.7
    assert set(backbone.asked) == {2}


def test_features_are_not_held_at_the_labels_size(monkeypatch: pytest.MonkeyPatch):
    """At most a few images are resized at once, whatever the number of images and seeds."""
    import croc.eval.kmeans as module

    sizes = []
    real = module._resized

    def watched(features: Tensor, shape: tuple[int, int]) -> Tensor:
        sizes.append(len(features))
        return real(features, shape)

    monkeypatch.setattr(module, "_resized", watched)
    evaluate_kmeans(TwoColours(), Patches(30, 0), replace(CONFIG, seeds=3), CPU)
    assert sum(sizes) == 60
    assert max(sizes) <= module.IMAGES_AT_ONCE


@pytest.mark.parametrize("reading", ["pixels", "tokens"])
def test_features_that_do_not_fit_are_found_again(reading: str, monkeypatch: pytest.MonkeyPatch):
    config = replace(CONFIG, reading=reading)  # pyright: ignore[reportArgumentType]
    held = evaluate_kmeans(MeanColour(), Patches(40, 0), config, CPU)
    monkeypatch.setattr(inputs.PatchFeatures, "_room", lambda *_: None)
    anew = evaluate_kmeans(MeanColour(), Patches(40, 0), config, CPU)
    assert anew.scores == held.scores
    assert torch.equal(anew.first.examples[0].predicted, held.first.examples[0].predicted)


def test_predictions_are_kept_to_be_looked_at():
    config = replace(CONFIG, reading="tokens")
    examples = evaluate_kmeans(TwoColours(), Patches(20, 0), config, CPU).first.examples
    assert len(examples) == 6
    scored = examples[3].truth != 255
    assert torch.equal(examples[3].predicted[scored], examples[3].truth[scored])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"clusters": 2, "seeds": 0}, "--kmeans.seeds must be at least 1"),
        ({"pca": 7, "reading": "tokens"}, "more than the backbone's width of 6"),
        ({"clusters": 400, "reading": "tokens"}, "320 features do not fill 400 clusters"),
    ],
)
def test_what_cannot_be_clustered(change: dict[str, Any], complaint: str):
    with pytest.raises(UserError, match=complaint):
        evaluate_kmeans(MeanColour(), Patches(20, 0), replace(CONFIG, **change), CPU)


def test_fewer_clusters_than_classes_are_refused():
    three = Patches(4, 0)
    three.classes = ("dark", "bright", "none")
    with pytest.raises(UserError, match="fewer than the 3 classes"):
        evaluate_kmeans(MeanColour(), three, replace(CONFIG, clusters=2), CPU)
