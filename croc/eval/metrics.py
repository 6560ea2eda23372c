"""Scores: mean IoU from a confusion matrix, clusters matched to classes, and DAVIS' J and F.

C classes of the truth; K predicted values (rows), the classes themselves or free clusters. Rows
from the C-th on predict no class: their pixels count as missed by their true class, and as false
positives of none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Integer
from scipy.optimize import linear_sum_assignment
from scipy.spatial import KDTree
from torch import Tensor

from croc.errors import UserError

IGNORED = 255
"""The label of a pixel that is not scored, and of a cluster that predicts nothing."""
Mask = Bool[np.ndarray, "h w"]


@dataclass(frozen=True)
class IouReport:
    """Scores in [0, 1]; nan where there was nothing to score."""

    per_class: Float64[Tensor, "C"]
    """nan for a class absent from the truth, 0 for one never predicted."""
    mean: float
    """Over the classes present in the truth."""
    accuracy: float
    """Share of the scored pixels whose class is right."""


def confusion(
    predicted: Integer[Tensor, "*pixels"],
    truth: Integer[Tensor, "*pixels"],
    classes: int,
    *,
    clusters: int | None = None,
) -> Int64[Tensor, "K C"]:
    """How often value k was predicted where c is true; add up over batches.

    for every pixel with truth ≠ 255: counts[predicted, truth] += 1

    `clusters` is the number of predicted values, by default the number of classes.
    """
    rows = classes if clusters is None else clusters
    predicted, truth = predicted.flatten().long(), truth.flatten().long()
    # Ignored pixels go to one cell past the end, so that shapes stay fixed.
    cells = torch.where(truth == IGNORED, rows * classes, predicted * classes + truth)
    return cells.bincount(minlength=rows * classes + 1)[:-1].view(rows, classes)


def iou(confusion: Int64[Tensor, "K C"]) -> IouReport:
    """Intersection over union of each class; row c predicts class c, rows from the C-th on none.

    A class absent from the truth is left out of the mean, even if it is predicted somewhere.
    """
    counts = confusion.cpu().double()
    hits = counts.diagonal()
    true, predicted = counts.sum(dim=0), counts[: counts.shape[1]].sum(dim=1)
    per_class = torch.where(true > 0, hits / (true + predicted - hits), torch.nan)
    return IouReport(per_class, float(per_class.nanmean()), float(hits.sum() / counts.sum()))


def scores_by_class(
    names: Sequence[str], per_class: Float64[Tensor, "C"]
) -> dict[str, float | None]:
    """In percent; None for nan, which JSON does not have."""
    scores = zip(names, per_class.tolist(), strict=True)
    return {name: None if math.isnan(score) else 100 * score for name, score in scores}


def pairwise_iou(confusion: Int64[Tensor, "K C"]) -> Float64[Tensor, "K C"]:
    """IoU between every cluster and every class; 0 where both are empty."""
    counts = confusion.cpu().double()
    union = counts.sum(dim=1, keepdim=True) + counts.sum(dim=0, keepdim=True) - counts
    return counts / union.clamp_min(1)


def match_hungarian(confusion: Int64[Tensor, "K C"]) -> Int64[Tensor, "K"]:
    """The class of each cluster, one to one, that maximizes the sum of IoU.

    A permutation if K = C; with more clusters than classes, the remaining ones are `IGNORED`.
    """
    clusters, labels = linear_sum_assignment(pairwise_iou(confusion).numpy(), maximize=True)
    matching = torch.full((len(confusion),), IGNORED)
    matching[torch.from_numpy(clusters)] = torch.from_numpy(labels)
    return matching.to(confusion.device)


def match_majority(confusion: Int64[Tensor, "K C"]) -> Int64[Tensor, "K"]:
    """The most frequent class of each cluster, many to one; an empty cluster is `IGNORED`."""
    # On ties NumPy promises the first; torch does not.
    labels = torch.from_numpy(confusion.cpu().numpy().argmax(axis=1)).to(confusion.device)
    return torch.where(confusion.sum(dim=1) > 0, labels, IGNORED)


def apply_matching(
    confusion: Int64[Tensor, "K C"], matching: Int64[Tensor, "K"], classes: int
) -> Int64[Tensor, "rows C"]:
    """The confusion once every cluster has its class: C rows, and a last one for no class.

    The last row has the pixels of `IGNORED` clusters, so that `iou` counts them as missed.
    """
    rows = torch.where(matching == IGNORED, classes, matching)
    return confusion.new_zeros(classes + 1, classes).index_add_(0, rows, confusion)


def video_scores(
    predicted: Integer[np.ndarray, "t h w"], truth: Integer[np.ndarray, "t h w"]
) -> Float64[np.ndarray, "2 O"]:
    """J and F of every object of the first frame, means over all frames but the first and the last.

    Label 0 is the background. Pixels whose truth is 255 are background on both sides.
    """
    void = truth == IGNORED
    predicted, truth = np.where(void, 0, predicted), np.where(void, 0, truth)
    objects = [number for number in np.unique(truth[0]) if number]
    if not objects:
        raise UserError(
            "the first frame of a video has no labeled object; for binary masks (0 and 255), pass "
            "davis16:PATH"
        )
    frames = list(zip(predicted, truth, strict=True))[1:-1]
    scores = [
        [[score(a == number, b == number) for a, b in frames] for number in objects]
        for score in (region_similarity, boundary_accuracy)
    ]
    return np.mean(scores, axis=2)


def video_means(scores: Float64[np.ndarray, "2 O"]) -> dict[str, float]:
    """J&F, J and F in percent, each the mean over the objects."""
    region, boundary = map(float, scores.mean(axis=1))
    return {"J&F": 100 * ((region + boundary) / 2), "J": 100 * region, "F": 100 * boundary}


def region_similarity(predicted: Mask, truth: Mask) -> float:
    """J = intersection / union; 1 if both masks are empty."""
    union = (predicted | truth).sum()
    return float((predicted & truth).sum() / union) if union else 1.0


def boundary_accuracy(predicted: Mask, truth: Mask, tolerance: float = 0.008) -> float:
    """F = 2 · precision · recall / (precision + recall) of the boundaries.

    A boundary pixel is matched if the other boundary has one within the distance
    ceil(tolerance · image diagonal). Two masks without boundary agree (1); exactly one without
    gives 0.
    """
    radius_px = math.ceil(tolerance * math.hypot(*truth.shape))
    pixels, true_pixels = np.argwhere(boundary(predicted)), np.argwhere(boundary(truth))
    if not len(pixels) or not len(true_pixels):
        return float(len(pixels) == len(true_pixels))
    precision, recall = (  # further than the bound is infinitely far
        (KDTree(b).query(a, distance_upper_bound=radius_px + 1)[0] <= radius_px).mean()
        for a, b in ((pixels, true_pixels), (true_pixels, pixels))
    )
    return float(2 * precision * recall / max(precision + recall, np.finfo(float).tiny))


def boundary(mask: Mask) -> Mask:
    """One-pixel boundary: pixels that differ from the one right, below or diagonally below.

    The mask is extended beyond the last row and column, so the image's edge is no boundary.
    """
    padded = np.pad(mask, (0, 1), mode="edge")
    return (mask ^ padded[:-1, 1:]) | (mask ^ padded[1:, :-1]) | (mask ^ padded[1:, 1:])
