"""Unsupervised segmentation: K-means over a whole data set's features, clusters matched to classes.

Two readings of the paper. `pixels`: the features are resized to the labels' 100² and clustered.
`tokens`: the patch tokens are standardised, reduced by PCA and clustered, and the map of clusters
is resized. Only patch tokens are ever held; resized features exist for a few images at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from croc.evals.datasets import SegmentationData
from croc.evals.features import DenseBackbone
from croc.evals.inputs import extract, in_order
from croc.evals.metrics import (
    IouReport,
    apply_matching,
    confusion,
    iou,
    match_hungarian,
    match_majority,
)
from croc.randomness import sample_key

POINTS_PER_CENTROID = 256  # faiss' own default; the rest is only assigned
IMAGES_AT_ONCE = 8


@dataclass(frozen=True)
class KmeansConfig:
    """The paper's protocol."""

    reading: Literal["pixels", "tokens"] = "pixels"
    """What is clustered."""
    image_px: int = 448
    """Side to which images are squashed."""
    label_px: int = 100
    """Side at which clusters and labels are compared."""
    blocks: int = 1
    """Last blocks of a ViT whose tokens are concatenated."""
    clusters: int | None = None
    """By default one a class, matched one to one; more are matched many to one."""
    pca: int = 50
    """Dimensions that PCA leaves, in the reading `tokens`."""
    seeds: int = 5
    """Runs whose scores are averaged."""
    restarts: int = 5
    """Starts of a run, of which the best is taken."""


@dataclass(frozen=True)
class KmeansReport:
    """Mean IoU of each seed, and the classes' of the first."""

    scores: tuple[float, ...]
    first: IouReport

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    @property
    def deviation(self) -> float:
        return float(np.std(self.scores))


def evaluate_kmeans(
    backbone: DenseBackbone,
    data: SegmentationData,
    config: KmeansConfig,
    device: torch.device,
    workers: int = 0,
) -> KmeansReport:
    """Cluster the features of all images, once for each seed, and score the matched clusters."""
    options: dict[str, Any] = {"device": device, "workers": workers}
    tokens, labels = extract(
        backbone, data, config.image_px, config.label_px, config.blocks, **options
    )
    if config.reading == "tokens":
        tokens = reduce(tokens, config.pca)
    reports = [
        _score(tokens, labels, len(data.classes), config, seed) for seed in range(config.seeds)
    ]
    return KmeansReport(tuple(report.mean for report in reports), reports[0])


def reduce(
    tokens: Float[Tensor, "n C rows columns"], dimensions: int
) -> Float[Tensor, "n c rows columns"]:
    """Standardise each feature over all tokens, then keep the directions of most variance."""
    flat = rearrange(tokens, "n c h w -> (n h w) c").double()
    flat = (flat - flat.mean(dim=0)) / flat.std(dim=0).clamp_min(1e-6)
    _, directions = torch.linalg.eigh(flat.mT @ flat)  # in ascending order of variance
    kept = (flat @ directions[:, -dimensions:]).float()
    return rearrange(kept, "(n h w) c -> n c h w", h=tokens.shape[2], w=tokens.shape[3])


def _score(
    tokens: Float[Tensor, "n C h w"],
    labels: Int64[Tensor, "n px px"],
    classes: int,
    config: KmeansConfig,
    seed: int,
) -> IouReport:
    count = config.clusters or classes
    points = _points(tokens, count, config, seed)
    iterations = 50 if config.reading == "pixels" else 100
    start = fit_kmeans(points, count, iterations, config.restarts, seed)
    centroids = torch.from_numpy(start).to(tokens.device)
    total = torch.zeros(count, classes, dtype=torch.long)
    for found, truth in _assigned(tokens, labels, centroids, config):
        total += confusion(found, truth, classes, clusters=count).cpu()
    match = match_hungarian if count == classes else match_majority
    return iou(apply_matching(total, match(total), classes))


def fit_kmeans(
    points: Float32[np.ndarray, "n c"],
    clusters: int,
    iterations: int,
    restarts: int,
    seed: int,
    start: Float32[np.ndarray, "K c"] | None = None,
) -> Float32[np.ndarray, "K c"]:
    """faiss' centroids; the same seed gives the same."""
    import faiss

    kmeans = faiss.Kmeans(
        points.shape[1],
        clusters,
        niter=iterations,
        nredo=restarts if start is None else 1,
        seed=seed + 1234,
        min_points_per_centroid=1,
        max_points_per_centroid=max(POINTS_PER_CENTROID, len(points)),  # sampled by us
    )
    kmeans.train(points, init_centroids=start)
    return np.ascontiguousarray(kmeans.centroids).reshape(clusters, -1)


def _points(
    tokens: Float[Tensor, "n C h w"], clusters: int, config: KmeansConfig, seed: int
) -> Float32[np.ndarray, "m C"]:
    """What the centroids are trained on: 256 features a centroid, drawn by the seed."""
    side = config.label_px if config.reading == "pixels" else tokens.shape[2]
    generator = np.random.Generator(np.random.Philox(sample_key(seed, 0, 0) % 2**63))
    total = len(tokens) * side * side
    wanted = min(total, POINTS_PER_CENTROID * clusters)
    chosen = torch.from_numpy(np.sort(generator.choice(total, wanted, replace=False)))
    image = chosen // (side * side)
    parts = []
    for numbers in in_order(len(tokens), IMAGES_AT_ONCE):
        flat = rearrange(
            _resized(tokens[numbers.start : numbers.stop], side), "b c h w -> (b h w) c"
        )
        inside = (image >= numbers.start) & (image < numbers.stop)
        parts.append(flat[(chosen[inside] - numbers.start * side * side).to(flat.device)])
    return np.ascontiguousarray(torch.cat(parts).float().cpu().numpy())


def _assigned(
    tokens: Float[Tensor, "n C h w"],
    labels: Int64[Tensor, "n px px"],
    centroids: Float[Tensor, "K C"],
    config: KmeansConfig,
) -> Iterator[tuple[Int64[Tensor, "b px px"], Int64[Tensor, "b px px"]]]:
    """Each pixel's nearest centroid, and its label."""
    for numbers in in_order(len(tokens), IMAGES_AT_ONCE):
        part = slice(numbers.start, numbers.stop)
        features = tokens[part].float()
        if config.reading == "pixels":
            features = _resized(features, config.label_px)
        found = nearest(features, centroids)
        if config.reading == "tokens":
            resized = F.interpolate(found[:, None].float(), size=config.label_px, mode="nearest")
            found = resized[:, 0].long()
        yield found, labels[part]


def nearest(
    features: Float[Tensor, "b C h w"], centroids: Float[Tensor, "K C"]
) -> Int64[Tensor, "b h w"]:
    """The centroid of least distance; |x|² is the same for all of them."""
    products = torch.einsum("bchw,kc->bkhw", features, centroids)
    return (centroids.square().sum(dim=1)[None, :, None, None] - 2 * products).argmin(dim=1)


def _resized(features: Float[Tensor, "b C h w"], side: int) -> Float[Tensor, "b C side side"]:
    if features.shape[2:] == (side, side):
        return features
    return F.interpolate(features, size=(side, side), mode="bilinear", align_corners=False)
