"""Unsupervised segmentation by K-means, clusters matched to classes: over all images, or in each.

Two ways to read the paper. `pixels`: the features are resized to the labels' 100² and clustered.
`tokens`: the patch tokens are standardized, reduced by PCA and clustered, and the map of clusters
is resized. Two passes over the data: one draws the points that the centroids of all seeds are
fitted to, one assigns all features to them. Resized features exist for a few images at a time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from croc.errors import UserError
from croc.eval.datasets import SegmentationData
from croc.eval.features import (
    EXAMPLES,
    UNLABELED,
    Example,
    Moments,
    PatchFeatures,
    Report,
    progress,
)
from croc.eval.machine import Machine
from croc.eval.metrics import (
    IGNORED,
    IouReport,
    apply_matching,
    confusion,
    iou,
    match_hungarian,
    match_majority,
    scores_by_class,
)
from croc.eval.protocols import KmeansConfig, WithinConfig
from croc.method.randomness import sample_key
from croc.weights.backbones import DenseBackbone

FEW_PRODUCTS = 20_000_000  # of all points with all centroids
POINTS_PER_CENTROID = 256  # faiss' own default; the rest is only assigned
IMAGES_AT_ONCE = 8
ITERATIONS = {"pixels": 50, "tokens": 100}


def summarize(by_seed: Sequence[float]) -> dict[str, Any]:
    """Mean and deviation over the seeds, in percent."""
    summary = {"mIoU": 100 * float(np.mean(by_seed)), "deviation": 100 * float(np.std(by_seed))}
    return summary | {"by seed": [100 * score for score in by_seed]}


def evaluate_kmeans(
    backbone: DenseBackbone, machine: Machine, data: SegmentationData, config: KmeansConfig
) -> Report:
    """Cluster the features of all images, once per seed, and score the matched clusters; the
    classes' scores and the examples are those of the first seed."""
    classes = len(data.classes)
    count = config.clusters or classes
    if count < classes:
        raise UserError(f"--kmeans.clusters {count} is fewer than the {classes} classes")
    sizes = (config.image_px, config.label_px, config.blocks)
    patches = PatchFeatures(backbone, machine, data, *sizes)
    patches.keep()
    points, moments = draw_points(patches, count, config)
    reduce = Reduction(moments, config.pca) if moments else None
    centroids: list[Tensor] = []
    for seed, drawn in progress(enumerate(points), "K-means", config.seeds):
        sample = (reduce(drawn) if reduce else drawn).float().cpu().numpy()
        iterations = ITERATIONS[config.on]
        fitted = fit_kmeans(np.ascontiguousarray(sample), count, iterations, config.restarts, seed)
        centroids.append(torch.from_numpy(fitted).to(drawn.device))
    counts = [torch.zeros(count, classes, dtype=torch.long) for _ in centroids]
    maps: list[Tensor] = []  # of clusters, for the examples
    for batch, labels in patches.all_batches("scores"):
        parts = zip(batch.split(IMAGES_AT_ONCE), labels.split(IMAGES_AT_ONCE))
        for features, truth in parts:
            features = _resized(features.float(), config)
            if reduce:
                features = reduce(features.movedim(1, -1)).movedim(-1, 1)
            for seed, total in enumerate(counts):
                clusters = enlarge(nearest(features, centroids[seed]), config.label_px)
                total += confusion(clusters, truth, classes, clusters=count).cpu()
                if seed == 0:
                    maps.extend(clusters[: EXAMPLES - len(maps)].cpu())
    if not counts[0].any():
        raise UserError(UNLABELED)
    match = match_hungarian if count == classes else match_majority
    matchings = [match(total) for total in counts]
    reports = [iou(apply_matching(*pair, classes)) for pair in zip(counts, matchings)]
    examples = [patches.example(i, matchings[0][clusters]) for i, clusters in enumerate(maps)]
    by_class = scores_by_class(data.classes, reports[0].per_class)
    return Report(summarize([report.mean for report in reports]), by_class, tuple(examples))


def evaluate_within(
    backbone: DenseBackbone, machine: Machine, data: SegmentationData, config: WithinConfig
) -> Report:
    """Score clusters that are computed and matched in each image alone, once per seed.

    for every image with at least two classes among its labeled pixels:
        K = the number of these classes
        clusters = K-means of the image's tokens, enlarged to the labels' size
        image_score = mean IoU over the K classes, clusters matched one to one
    score = mean of image_score

    Clustering all images rewards telling images apart wherever one class fills most of an image;
    here only what varies within an image counts. The classes' scores are means over the images
    that have them.
    """
    sizes = (config.image_px, config.label_px, config.blocks)
    patches = PatchFeatures(backbone, machine, data, *sizes)
    patches.keep()
    moments = Moments()
    for features, _ in patches.all_batches("features"):
        moments.add(features)
    reduce = Reduction(moments, config.pca)
    by_seed: list[list[IouReport]] = [[] for _ in range(config.seeds)]
    examples: list[Example] = []
    number = -1
    for features, labels in patches.all_batches("scores"):
        for tokens, truth in zip(reduce(features.movedim(1, -1)).cpu(), labels.cpu()):
            number += 1
            present = truth[truth != IGNORED].unique()
            if len(present) < 2:
                continue
            for seed, reports in enumerate(by_seed):
                clusters = cluster_image(tokens, truth, len(present), config, seed)
                counts = confusion(clusters, truth, len(data.classes), clusters=len(present))
                matching = present[match_hungarian(counts[:, present])]
                reports.append(iou(apply_matching(counts, matching, len(data.classes))))
                if seed == 0 and len(examples) < EXAMPLES:
                    examples.append(patches.example(number, matching[clusters]))
    if not examples:
        raise UserError("no scored image has two labeled classes to tell apart")
    scores = [float(np.mean([report.mean for report in reports])) for reports in by_seed]
    per_class = torch.stack([report.per_class for report in by_seed[0]]).nanmean(dim=0)
    by_class = scores_by_class(data.classes, per_class)
    return Report(summarize(scores), by_class, tuple(examples))


def cluster_image(
    tokens: Float32[Tensor, "h w c"],
    truth: Int64[Tensor, "px px"],
    count: int,
    config: WithinConfig,
    seed: int,
) -> Int64[Tensor, "px px"]:
    """The cluster of each pixel. Centroids are fitted to the tokens whose center is labeled."""
    size = (tokens.shape[0], tokens.shape[1])
    centers = F.interpolate(truth[None, None].float(), size=size, mode="nearest-exact")[0, 0]
    points = tokens[centers != IGNORED]
    if len(points) < count:  # the labeled pixels are between the centers
        points = tokens.flatten(0, 1)
    array, count = np.ascontiguousarray(points.numpy()), min(count, len(points))
    centroids = fit_kmeans(array, count, ITERATIONS["tokens"], config.restarts, seed)
    clusters = nearest(tokens.movedim(-1, 0)[None], torch.from_numpy(centroids))
    # Centers of pixels, as the labels are resized; on all images, Leopart's "nearest" stays.
    return enlarge(clusters, config.label_px, "nearest-exact")[0]


def draw_points(
    patches: PatchFeatures, clusters: int, config: KmeansConfig
) -> tuple[list[Float32[Tensor, "m C"]], Moments | None]:
    """256 features per centroid for each seed; and all features' moments, if they are reduced."""
    moments = Moments() if config.on == "tokens" else None
    chosen: list[Tensor] = []
    drawn: list[list[Tensor]] = [[] for _ in range(config.seeds)]
    start = 0
    for features, _ in patches.all_batches("features"):
        if moments is not None:
            moments.add(features)
        for part in features.split(IMAGES_AT_ONCE):
            flat = rearrange(_resized(part.float(), config), "b c h w -> (b h w) c")
            if not chosen:
                total = len(patches.data) * (len(flat) // len(part))
                size = min(total, POINTS_PER_CENTROID * clusters)
                for seed in range(config.seeds):
                    philox = np.random.Philox(sample_key(seed, 0, 0) % 2**63)
                    numbers = np.random.Generator(philox).choice(total, size, replace=False)
                    chosen.append(torch.from_numpy(np.sort(numbers)))
            for points, numbers in zip(drawn, chosen):
                inside = numbers[(numbers >= start) & (numbers < start + len(flat))] - start
                points.append(flat[inside.to(flat.device)])
            start += len(flat)
    return [torch.cat(points) for points in drawn], moments


class Reduction:
    """Standardizes features and projects them to the directions of largest variance (PCA), all of
    them if features are narrower."""

    def __init__(self, moments: Moments, pca: int) -> None:
        self.mean, self.deviation = moments.mean, moments.deviation
        scale = self.deviation.double()
        _, directions = torch.linalg.eigh(moments.covariance / torch.outer(scale, scale))
        self.directions = directions[:, -pca:].float()  # eigh's variances ascend

    def __call__(self, features: Float[Tensor, "*n C"]) -> Float[Tensor, "*n c"]:
        return (features.float() - self.mean) / self.deviation @ self.directions


def fit_kmeans(
    points: Float32[np.ndarray, "n c"],
    clusters: int,
    iterations: int,
    restarts: int,
    seed: int,
    start: Float32[np.ndarray, "K c"] | None = None,
) -> Float32[np.ndarray, "K c"]:
    """Centroids by faiss; the same seed gives the same."""
    import faiss

    if len(points) < clusters:
        raise UserError(f"{len(points)} features are too few for {clusters} clusters")
    kmeans = faiss.Kmeans(
        points.shape[1],
        clusters,
        niter=iterations,
        nredo=restarts if start is None else 1,
        seed=seed + 1234,
        min_points_per_centroid=1,
        max_points_per_centroid=max(POINTS_PER_CENTROID, len(points)),  # we have sampled already
    )
    # Small tasks take one thread: several would wait for each other longer than they work, and
    # a hundred times longer where other programs use the same cores.
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1 if points.size * clusters < FEW_PRODUCTS else threads)
    try:
        kmeans.train(points, init_centroids=start)
    finally:
        faiss.omp_set_num_threads(threads)
    return np.ascontiguousarray(kmeans.centroids).reshape(clusters, -1)


def nearest(
    features: Float[Tensor, "b C h w"], centroids: Float[Tensor, "K C"]
) -> Int64[Tensor, "b h w"]:
    """The index of the nearest centroid; |x|² is the same for all of them."""
    products = torch.einsum("bchw,kc->bkhw", features, centroids)
    return (centroids.square().sum(dim=1)[None, :, None, None] - 2 * products).argmin(dim=1)


def enlarge(
    clusters: Int64[Tensor, "b h w"], side: int, mode: str = "nearest"
) -> Int64[Tensor, "b side side"]:
    large = F.interpolate(clusters[:, None].float(), size=(side, side), mode=mode)
    return large[:, 0].long()


def _resized(
    features: Float[Tensor, "b C h w"], config: KmeansConfig
) -> Float[Tensor, "b C rows columns"]:
    """With `--kmeans.on pixels`, at the labels' size."""
    size = (config.label_px, config.label_px)
    if config.on == "tokens" or features.shape[2:] == size:
        return features
    return F.interpolate(features, size=size, mode="bilinear", align_corners=False)
