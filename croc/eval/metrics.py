"""Segmentation scores from counts: confusion, IoU, and matching of clusters to classes.

C classes of the truth; K predicted values (rows), the classes themselves or free clusters. Rows
past the C-th stand for no class: their pixels are missed by the class they belong to, and nothing
is predicted wrongly for them.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64, Integer
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from croc.errors import UserError

IGNORED = 255
"""The label of a pixel that is not scored, and of a cluster that predicts nothing."""


@dataclass(frozen=True)
class IouReport:
    """Scores in [0, 1]; nan where nothing was there to score."""

    per_class: Float64[Tensor, "C"]
    """nan for a class absent from the truth, 0 for one never predicted."""
    mean: float
    """Over the classes present in the truth."""
    accuracy: float
    """Part of the scored pixels that carry their own class."""


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

    `clusters` is the number of values predicted, the number of classes if not given.
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
    """Intersection over union a class; row c predicts class c, rows from the C-th on none.

    A class absent from the truth is left out of the mean, even if it is predicted somewhere.
    """
    counts = confusion.cpu().double()
    clusters, classes = counts.shape
    if clusters < classes:
        raise ValueError(f"{clusters} clusters for {classes} classes: apply a matching first")
    hits = counts.diagonal()
    true, predicted = counts.sum(dim=0), counts[:classes].sum(dim=1)
    # 0/0 is nan, and a class absent but predicted is made nan too.
    per_class = torch.where(true > 0, hits / (true + predicted - hits), torch.nan)
    return IouReport(per_class, float(per_class.nanmean()), float(hits.sum() / counts.sum()))


def pairwise_iou(confusion: Int64[Tensor, "K C"]) -> Float64[Tensor, "K C"]:
    """IoU between every cluster and every class; 0 where both are empty."""
    counts = confusion.cpu().double()
    union = counts.sum(dim=1, keepdim=True) + counts.sum(dim=0, keepdim=True) - counts
    return counts / union.clamp_min(1)


def match_hungarian(confusion: Int64[Tensor, "K C"], ignore: int = IGNORED) -> Int64[Tensor, "K"]:
    """The class of each cluster, one to one, that makes the sum of IoU largest.

    A permutation if K = C; with more clusters than classes, those left over get `ignore`.
    """
    clusters, labels = linear_sum_assignment(pairwise_iou(confusion).numpy(), maximize=True)
    matching = torch.full((len(confusion),), ignore)
    matching[torch.from_numpy(clusters)] = torch.from_numpy(labels)
    return matching.to(confusion.device)


def match_majority(confusion: Int64[Tensor, "K C"], ignore: int = IGNORED) -> Int64[Tensor, "K"]:
    """The class that makes up most of each cluster, many to one; an empty cluster gets `ignore`."""
    # NumPy promises the first of equals on ties; torch does not.
    labels = torch.from_numpy(confusion.cpu().numpy().argmax(axis=1)).to(confusion.device)
    return torch.where(confusion.sum(dim=1) > 0, labels, ignore)


def apply_matching(
    confusion: Int64[Tensor, "K C"],
    matching: Int64[Tensor, "K"],
    classes: int,
    ignore: int = IGNORED,
) -> Int64[Tensor, "rows C"]:
    """The confusion after every cluster took its class: C rows, and one more for no class.

    The last row keeps the pixels of the clusters labelled `ignore`, so that `iou` counts them as
    missed.
    """
    rows = torch.where(matching == ignore, classes, matching)
    return confusion.new_zeros(classes + 1, classes).index_add_(0, rows, confusion)
