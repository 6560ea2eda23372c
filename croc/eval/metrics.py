"""Scores: mean IoU from a confusion matrix, clusters matched to classes, and DAVIS' J and F.

C classes of the truth; K predicted values (rows), the classes themselves or free clusters. Rows
from the C-th on predict no class: their pixels count as missed by their true class, and as false
positives of none.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Integer
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from croc.errors import UserError

IGNORED = 255
"""The label of a pixel that is not scored, and of a cluster that predicts nothing."""
Masks = Bool[np.ndarray, "*t h w"]


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
    ignore: int = IGNORED,
    *,
    clusters: int | None = None,
) -> Int64[Tensor, "K C"]:
    """How often value k was predicted where c is true; add up over batches.

    for every pixel with truth ≠ ignore: counts[predicted, truth] += 1

    `clusters` is the number of predicted values, by default the number of classes.
    """
    rows = classes if clusters is None else clusters
    predicted, truth = predicted.flatten().long(), truth.flatten().long()
    scored = truth != ignore
    inside = (predicted >= 0) & (predicted < rows) & (truth >= 0) & (truth < classes)
    if (scored & ~inside).any():
        raise UserError(
            f"labels out of range: predictions must be in 0..{rows - 1}, "
            f"truth in 0..{classes - 1} or be {ignore}"
        )
    # Ignored pixels go to one cell past the end, so that shapes stay fixed.
    cells = torch.where(scored, predicted * classes + truth, rows * classes)
    return cells.bincount(minlength=rows * classes + 1)[:-1].view(rows, classes)


def iou(confusion: Int64[Tensor, "K C"]) -> IouReport:
    """Intersection over union of each class; row c predicts class c, rows from the C-th on none.

    A class absent from the truth is left out of the mean, even if it is predicted somewhere.
    """
    counts = confusion.cpu().double()
    clusters, classes = counts.shape
    if clusters < classes:
        raise ValueError(f"{clusters} clusters for {classes} classes: apply a matching first")
    hits = counts.diagonal()
    true, predicted = counts.sum(dim=0), counts[:classes].sum(dim=1)
    per_class = torch.where(true > 0, hits / (true + predicted - hits), torch.nan)
    return IouReport(per_class, float(per_class.nanmean()), float(hits.sum() / counts.sum()))


def pairwise_iou(confusion: Int64[Tensor, "K C"]) -> Float64[Tensor, "K C"]:
    """IoU between every cluster and every class; 0 where both are empty."""
    counts = confusion.cpu().double()
    union = counts.sum(dim=1, keepdim=True) + counts.sum(dim=0, keepdim=True) - counts
    return counts / union.clamp_min(1)


def match_hungarian(confusion: Int64[Tensor, "K C"]) -> Int64[Tensor, "K"]:
    """The class of each cluster, one to one, that maximises the sum of IoU.

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


@dataclass(frozen=True)
class VideoScores:
    """Means over the scored frames, one entry per object."""

    region: Float64[np.ndarray, "O"]
    """J."""
    boundary: Float64[np.ndarray, "O"]
    """F."""

    @property
    def means(self) -> dict[str, float]:
        """J&F, J and F, each the mean over the objects."""
        region, boundary = float(self.region.mean()), float(self.boundary.mean())
        return {"J&F": (region + boundary) / 2, "J": region, "F": boundary}


def video_scores(
    predicted: Integer[np.ndarray, "t h w"],
    truth: Integer[np.ndarray, "t h w"],
) -> VideoScores:
    """J and F of every object of the first frame, over all frames but the first and the last.

    Label 0 is the background. Pixels whose truth is 255 are background on both sides.
    """
    if predicted.shape != truth.shape or len(truth) < 3:
        raise UserError(
            f"scoring a video needs equal shapes and at least 3 frames, "
            f"got predictions {predicted.shape} and truth {truth.shape}"
        )
    predicted, truth = (
        np.where(truth == IGNORED, 0, predicted),
        np.where(truth == IGNORED, 0, truth),
    )
    objects = [number for number in np.unique(truth[0]) if number]
    if not objects:
        raise UserError("a video's first frame must show the objects to track, it shows none")
    masks = [(predicted[1:-1] == number, truth[1:-1] == number) for number in objects]
    return VideoScores(
        np.array([region_similarity(*pair).mean() for pair in masks]),
        np.array([boundary_accuracy(*pair).mean() for pair in masks]),
    )


def region_similarity(predicted: Masks, truth: Masks) -> Float64[np.ndarray, "*t"]:
    """J = intersection / union of each frame; 1 where both masks are empty."""
    intersection = (predicted & truth).sum(axis=(-2, -1))
    union = (predicted | truth).sum(axis=(-2, -1))
    return np.asarray(np.where(union == 0, 1.0, intersection / np.maximum(union, 1)))


def boundary_accuracy(
    predicted: Masks, truth: Masks, tolerance: float | int = 0.008
) -> Float64[np.ndarray, "*t"]:
    """F = 2 · precision · recall / (precision + recall) of the boundaries of each frame.

    A boundary pixel is matched if the other boundary, dilated by a disk x² + y² ≤ r², covers it.
    r = ceil(tolerance · image diagonal), or `tolerance` itself in pixels if it is 1 or more.
    Two masks without boundary agree (1); exactly one without gives 0.
    """
    *frames, height, width = predicted.shape
    radius_px = tolerance if tolerance >= 1 else math.ceil(tolerance * math.hypot(height, width))
    scores = []
    for one, other in zip(
        boundary(predicted).reshape(-1, height, width), boundary(truth).reshape(-1, height, width)
    ):
        if not one.any() or not other.any():
            scores.append(float(one.any() == other.any()))
            continue
        rows, columns = (np.flatnonzero((one | other).any(axis=axis)) for axis in (1, 0))
        box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]  # for speed
        precision = dilate(other[box], radius_px)[one[box]].mean()
        recall = dilate(one[box], radius_px)[other[box]].mean()
        total = max(precision + recall, np.finfo(float).tiny)
        scores.append(float(2 * precision * recall / total))
    return np.array(scores).reshape(frames)


def boundary(masks: Masks) -> Masks:
    """One-pixel boundaries: pixels that differ from the one right, below or diagonally below.

    The mask is extended beyond the last row and column, so the image's edge is no boundary.
    """
    height, width = masks.shape[-2:]
    padded = np.pad(masks, [(0, 0)] * (masks.ndim - 2) + [(0, 1), (0, 1)], mode="edge")
    right, below = padded[..., :height, 1:], padded[..., 1:, :width]
    return (masks ^ right) | (masks ^ below) | (masks ^ padded[..., 1:, 1:])


def dilate(mask: Bool[np.ndarray, "h w"], radius_px: float | int) -> Bool[np.ndarray, "h w"]:
    """True within the disk x² + y² ≤ r² of a true pixel.

    From the disk's top to its middle its rows get wider: `wide` is widened along, and shifted to
    each height.
    """
    height, width = mask.shape
    covered, wide, half = np.zeros_like(mask), mask.copy(), 0
    for y in range(math.floor(radius_px), -1, -1):
        while (half + 1) ** 2 + y**2 <= radius_px**2:
            half += 1
            wide[:, half:] |= mask[:, : max(0, width - half)]
            wide[:, : max(0, width - half)] |= mask[:, half:]
        covered[y:] |= wide[: max(0, height - y)]
        covered[: max(0, height - y)] |= wide[y:]
    return covered
