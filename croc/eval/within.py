"""Within-image segmentation: K-means on the tokens of each image by themselves.

K-means over all images (kmeans.py) rewards telling images apart wherever one class fills most of an
image. Here every image has its own clusters and its own matching, so that only what varies within
an image counts.
"""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64
from torch import Tensor

from croc.errors import UserError
from croc.eval.datasets import SegmentationData
from croc.eval.features import DenseBackbone
from croc.eval.inputs import PatchFeatures
from croc.eval.kmeans import (
    ITERATIONS,
    KmeansReport,
    Reduction,
    enlarge,
    fit_kmeans,
    nearest,
)
from croc.eval.metrics import (
    IGNORED,
    IouReport,
    apply_matching,
    confusion,
    iou,
    match_hungarian,
)
from croc.eval.moments import Moments
from croc.eval.parts import Subset
from croc.eval.protocols import WithinConfig
from croc.eval.scoring import EXAMPLES, SegmentationReport, first_batch, make_examples
from croc.eval.tracking import Track, silent


def evaluate_within(
    backbone: DenseBackbone,
    data: SegmentationData,
    config: WithinConfig,
    device: torch.device,
    workers: int = 0,
    track: Track = silent,
) -> KmeansReport:
    """Score clusters that are found and matched in each image alone, once for each seed.

    for every image with at least two classes among its labelled pixels:
        K = the number of these classes
        clusters = K-means of the image's tokens, enlarged to the labels' size
        image_score = mean IoU over the K classes, clusters matched one to one
    score = mean of image_score

    The classes' scores are means over the images that have them.
    """
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
    moments = Moments()
    for features, _ in patches.passes("features"):
        moments.add(features, covariance=True)
    reduce = Reduction(moments, config.pca)
    reports: list[list[IouReport]] = [[] for _ in range(config.seeds)]
    shown: dict[int, Tensor] = {}
    number = -1
    for features, labels in patches.passes("scores"):
        for tokens, truth in zip(reduce(features.movedim(1, -1)).cpu(), labels.cpu()):
            number += 1
            classes = truth[truth != IGNORED].unique()
            if len(classes) < 2:
                continue
            for seed, scored in enumerate(reports):
                clusters = cluster_image(tokens, truth, len(classes), config, seed)
                report, predicted = score_image(clusters, truth, classes, len(data.classes))
                scored.append(report)
                if seed == 0 and len(shown) < EXAMPLES:
                    shown[number] = predicted
    if not shown:
        raise UserError("no image of the scored part has two labelled classes to tell apart")
    seen = first_batch(Subset(data, tuple(shown)), len(shown), config.image_px, config.label_px)
    examples = make_examples(seen, list(shown.values()), len(shown))
    means = [_mean_over_images(each) for each in reports]
    first = SegmentationReport(means[0], tuple(examples))
    return KmeansReport(tuple(each.mean for each in means), first)


def cluster_image(
    tokens: Float32[Tensor, "h w c"],
    truth: Int64[Tensor, "px px"],
    count: int,
    config: WithinConfig,
    seed: int,
) -> Int64[Tensor, "px px"]:
    """The cluster of each pixel. Centroids are fitted to the tokens whose centre is labelled."""
    size = (tokens.shape[0], tokens.shape[1])
    centres = F.interpolate(truth[None, None].float(), size=size, mode="nearest-exact")[0, 0]
    points = tokens[centres != IGNORED]
    if len(points) < count:  # the labelled pixels are between the centres
        points = tokens.flatten(0, 1)
    array, count = np.ascontiguousarray(points.numpy()), min(count, len(points))
    centroids = fit_kmeans(array, count, ITERATIONS["tokens"], config.restarts, seed)
    clusters = nearest(tokens.movedim(-1, 0)[None], torch.from_numpy(centroids))
    return enlarge(clusters, config.label_px)[0]


def score_image(
    clusters: Int64[Tensor, "px px"],
    truth: Int64[Tensor, "px px"],
    present: Int64[Tensor, "K"],
    classes: int,
) -> tuple[IouReport, Int64[Tensor, "px px"]]:
    """IoU of the K classes that are present, nan for all others, and the class of each pixel."""
    counts = confusion(clusters, truth, classes, clusters=len(present))
    matching = present[match_hungarian(counts[:, present])]
    return iou(apply_matching(counts, matching, classes)), matching[clusters]


def _mean_over_images(reports: list[IouReport]) -> IouReport:
    per_class = torch.stack([each.per_class for each in reports]).nanmean(dim=0)
    mean, accuracy = np.mean([(each.mean, each.accuracy) for each in reports], axis=0).tolist()
    return IouReport(per_class, mean, accuracy)
