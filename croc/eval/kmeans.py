"""Unsupervised segmentation: K-means over a whole data set's features, clusters matched to classes.

Two readings of the paper. `pixels`: the features are resized to the labels' 100² and clustered.
`tokens`: the patch tokens are standardised, reduced by PCA and clustered, and the map of clusters
is resized. Two passes over the data: one draws what the centroids of all seeds are trained on, one
assigns all features to them. Resized features exist for a few images at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from croc.errors import UserError
from croc.eval.datasets import SegmentationData
from croc.eval.features import DenseBackbone
from croc.eval.inputs import PatchFeatures, in_order
from croc.eval.metrics import (
    apply_matching,
    confusion,
    iou,
    match_hungarian,
    match_majority,
)
from croc.eval.moments import Moments
from croc.eval.protocols import KmeansConfig
from croc.eval.scoring import (
    EXAMPLES,
    SegmentationReport,
    check_labelled,
    first_batch,
    make_examples,
)
from croc.eval.tracking import Track, silent
from croc.method.randomness import sample_key

FEW_PRODUCTS = 20_000_000  # of all points with all centroids
POINTS_PER_CENTROID = 256  # faiss' own default; the rest is only assigned
IMAGES_AT_ONCE = 8
ITERATIONS = {"pixels": 50, "tokens": 100}


@dataclass(frozen=True)
class KmeansReport:
    """Mean IoU of each seed; the classes' and the first images' predictions of seed 0."""

    scores: tuple[float, ...]
    first: SegmentationReport

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
    track: Track = silent,
) -> KmeansReport:
    """Cluster the features of all images, once for each seed, and score the matched clusters."""
    count = config.clusters or len(data.classes)
    if count < len(data.classes):
        raise UserError(
            f"--kmeans.clusters {count} is fewer than the {len(data.classes)} classes: "
            "pass as many or more"
        )
    patches = PatchFeatures(
        backbone,
        data,
        image_px=config.image_px,
        label_px=config.label_px,
        blocks=config.blocks,
        device=device,
        workers=workers,
        track=track,
    )
    points, moments = draw_points(patches, len(data), count, config)
    reduce = Reduction(moments, config.pca) if moments else None
    seeds = track(enumerate(points), "K-means", config.seeds)
    centroids = [_cluster(reduce, each, count, config, seed) for seed, each in seeds]
    found = [torch.zeros(count, len(data.classes), dtype=torch.long) for _ in centroids]
    maps: list[Tensor] = []
    for features, labels in patches.passes("scores"):
        for clusters, truth in _assigned(features, labels, centroids, reduce, config):
            for total, each in zip(found, clusters):
                total += confusion(each, truth, len(data.classes), clusters=count).cpu()
            maps.extend(clusters[0][: EXAMPLES - len(maps)].cpu())
    check_labelled(found[0])
    match = match_hungarian if count == len(data.classes) else match_majority
    matches = [match(total) for total in found]
    reports = [
        iou(apply_matching(total, classes, len(data.classes)))
        for total, classes in zip(found, matches)
    ]
    seen = first_batch(data, len(maps), config.image_px, config.label_px)
    examples = make_examples(seen, [matches[0][each] for each in maps], len(maps))
    first = SegmentationReport(reports[0], tuple(examples))
    return KmeansReport(tuple(report.mean for report in reports), first)


def draw_points(
    patches: PatchFeatures, images: int, clusters: int, config: KmeansConfig
) -> tuple[list[Float32[Tensor, "m C"]], Moments | None]:
    """For each seed 256 features a centroid; and all features' moments, if they are reduced."""
    moments = Moments() if config.reading == "tokens" else None
    chosen: list[Tensor] = []
    drawn: list[list[Tensor]] = [[] for _ in range(config.seeds)]
    start = 0
    for features, _ in patches.passes("features"):
        if moments is not None:
            moments.add(features, covariance=True)
        shape = _drawn_shape(features, config)
        if not chosen:
            total = images * shape[0] * shape[1]
            chosen = [_choose(total, clusters, seed) for seed in range(config.seeds)]
        for part in features.split(IMAGES_AT_ONCE):
            flat = rearrange(_resized(part.float(), shape), "b c h w -> (b h w) c")
            for kept, numbers in zip(drawn, chosen):
                inside = numbers[(numbers >= start) & (numbers < start + len(flat))] - start
                kept.append(flat[inside.to(flat.device)])
            start += len(flat)
    return [torch.cat(kept) for kept in drawn], moments


def _drawn_shape(features: Float[Tensor, "b C h w"], config: KmeansConfig) -> tuple[int, int]:
    if config.reading == "pixels":
        return config.label_px, config.label_px
    return features.shape[2], features.shape[3]


def _choose(total: int, clusters: int, seed: int) -> Int64[Tensor, "m"]:
    """Numbers of the features that centroids are trained on, drawn by the seed, ascending."""
    generator = np.random.Generator(np.random.Philox(sample_key(seed, 0, 0) % 2**63))
    wanted = min(total, POINTS_PER_CENTROID * clusters)
    return torch.from_numpy(np.sort(generator.choice(total, wanted, replace=False)))


class Reduction:
    """Standardises each feature, then keeps the directions in which all of them vary most."""

    def __init__(self, moments: Moments, pca: int) -> None:
        self.mean, self.deviation = moments.mean, moments.deviation
        if pca > len(self.mean):
            raise UserError(
                f"pca {pca} is more than the backbone's width of {len(self.mean)}: "
                "pass that or less"
            )
        scale = self.deviation.double()
        _, directions = torch.linalg.eigh(moments.covariance / torch.outer(scale, scale))
        self.directions = directions[:, -pca:].float()  # eigh's variances ascend

    def __call__(self, features: Float[Tensor, "*n C"]) -> Float[Tensor, "*n c"]:
        return (features.float() - self.mean) / self.deviation @ self.directions


def _cluster(
    reduce: Reduction | None,
    points: Float[Tensor, "m C"],
    count: int,
    config: KmeansConfig,
    seed: int,
) -> Float[Tensor, "K c"]:
    kept = reduce(points) if reduce else points
    array = np.ascontiguousarray(kept.float().cpu().numpy())
    fitted = fit_kmeans(array, count, ITERATIONS[config.reading], config.restarts, seed)
    return torch.from_numpy(fitted).to(points.device)


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

    if len(points) < clusters:
        raise UserError(
            f"{len(points)} features do not fill {clusters} clusters: give more images or ask for "
            "fewer clusters"
        )
    kmeans = faiss.Kmeans(
        points.shape[1],
        clusters,
        niter=iterations,
        nredo=restarts if start is None else 1,
        seed=seed + 1234,
        min_points_per_centroid=1,
        max_points_per_centroid=max(POINTS_PER_CENTROID, len(points)),  # sampled by us
    )
    with _threads_for(points.size * clusters):
        kmeans.train(points, init_centroids=start)
    return np.ascontiguousarray(kmeans.centroids).reshape(clusters, -1)


@contextmanager
def _threads_for(products: int) -> Iterator[None]:
    """One thread for a small task: several would wait for each other longer than they work, and
    where other programs use the same cores a hundred times longer."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1 if products < FEW_PRODUCTS else before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _assigned(
    features: Float[Tensor, "n C h w"],
    labels: Int64[Tensor, "n px px"],
    centroids: list[Float[Tensor, "K c"]],
    reduce: Reduction | None,
    config: KmeansConfig,
) -> Iterator[tuple[list[Int64[Tensor, "b px px"]], Int64[Tensor, "b px px"]]]:
    """Each pixel's nearest centroid for every seed, and its label, a few images at a time."""
    for numbers in in_order(len(features), IMAGES_AT_ONCE):
        part = slice(numbers.start, numbers.stop)
        found = _resized(features[part].float(), _drawn_shape(features, config))
        if reduce:
            found = reduce(found.movedim(1, -1)).movedim(-1, 1)
        clusters = [nearest(found, each) for each in centroids]
        if reduce:
            clusters = [enlarge(each, config.label_px) for each in clusters]
        yield clusters, labels[part]


def nearest(
    features: Float[Tensor, "b C h w"], centroids: Float[Tensor, "K C"]
) -> Int64[Tensor, "b h w"]:
    """The centroid of least distance; |x|² is the same for all of them."""
    products = torch.einsum("bchw,kc->bkhw", features, centroids)
    return (centroids.square().sum(dim=1)[None, :, None, None] - 2 * products).argmin(dim=1)


def enlarge(clusters: Int64[Tensor, "b h w"], side: int) -> Int64[Tensor, "b side side"]:
    large = F.interpolate(clusters[:, None].float(), size=(side, side), mode="nearest")
    return large[:, 0].long()


def _resized(
    features: Float[Tensor, "b C h w"], shape: tuple[int, int]
) -> Float[Tensor, "b C rows columns"]:
    if features.shape[2:] == shape:
        return features
    return F.interpolate(features, size=shape, mode="bilinear", align_corners=False)
