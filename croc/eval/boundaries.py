"""Video object segmentation scores: region similarity J and boundary accuracy F, as DAVIS has them.

t frames, h × w pixels, O objects.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64, Integer

from croc.errors import UserError

Mask = Bool[np.ndarray, "h w"]
Masks = Bool[np.ndarray, "*t h w"]


@dataclass(frozen=True)
class VideoScores:
    """Means over the scored frames, an entry an object."""

    objects: Int64[np.ndarray, "O"]
    """Their ids in the truth."""
    region: Float64[np.ndarray, "O"]
    """J."""
    boundary: Float64[np.ndarray, "O"]
    """F."""

    @property
    def means(self) -> dict[str, float]:
        """J, F and J&F, each the mean over the objects."""
        region, boundary = float(self.region.mean()), float(self.boundary.mean())
        return {"J": region, "F": boundary, "J&F": (region + boundary) / 2}


def region_similarity(predicted: Masks, truth: Masks) -> Float64[np.ndarray, "*t"]:
    """J = intersection / union, a value a frame; 1 where both masks are empty."""
    intersection = (predicted & truth).sum(axis=(-2, -1))
    union = (predicted | truth).sum(axis=(-2, -1))
    return np.asarray(np.where(union == 0, 1.0, intersection / np.maximum(union, 1)))


def boundary_accuracy(
    predicted: Masks, truth: Masks, tolerance: float | int = 0.008
) -> Float64[np.ndarray, "*t"]:
    """F = 2 · precision · recall / (precision + recall) of the boundaries, a value a frame.

    A boundary pixel is matched if the other boundary, dilated by a disk x² + y² ≤ r², covers it.
    r = ceil(tolerance · image diagonal), or `tolerance` itself in pixels if it is 1 or more.
    Two masks without boundary agree (1); exactly one without gives 0.
    """
    *frames, height, width = predicted.shape
    radius_px = tolerance if tolerance >= 1 else math.ceil(tolerance * math.hypot(height, width))
    pairs = zip(
        boundary(predicted).reshape(-1, height, width), boundary(truth).reshape(-1, height, width)
    )
    return np.array([match_boundaries(*pair, radius_px) for pair in pairs]).reshape(frames)


def boundary(masks: Masks) -> Masks:
    """One-pixel boundaries: pixels that differ from the one right, below or diagonally below.

    Beyond the last row and column the mask goes on as it is, so the image's edge is no boundary.
    """
    height, width = masks.shape[-2:]
    padded = np.pad(masks, [(0, 0)] * (masks.ndim - 2) + [(0, 1), (0, 1)], mode="edge")
    right, below = padded[..., :height, 1:], padded[..., 1:, :width]
    return (masks ^ right) | (masks ^ below) | (masks ^ padded[..., 1:, 1:])


def match_boundaries(predicted: Mask, truth: Mask, radius_px: float | int) -> float:
    """F of two boundary maps of one frame."""
    if not predicted.any() or not truth.any():
        return float(predicted.any() == truth.any())
    window = bounding_box(predicted | truth)
    predicted, truth = predicted[window], truth[window]
    precision = dilate(truth, radius_px)[predicted].mean()
    recall = dilate(predicted, radius_px)[truth].mean()
    return float(2 * precision * recall / max(precision + recall, np.finfo(float).tiny))


def bounding_box(mask: Mask) -> tuple[slice, slice]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)


def dilate(mask: Mask, radius_px: float | int) -> Mask:
    """True within the disk x² + y² ≤ r² of a true pixel.

    From the disk's top to its middle rows widen: `wide` is widened alike, and laid at each height.
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


def video_scores(
    predicted: Integer[np.ndarray, "t h w"],
    truth: Integer[np.ndarray, "t h w"],
    tolerance: float | int = 0.008,
    void: int | None = 255,
) -> VideoScores:
    """J and F of every object of the first frame, over all frames but the first and the last.

    Label 0 is the background. Pixels whose truth is `void` are background on both sides; pass
    None where 255 is an object, as in DAVIS'16.
    """
    if predicted.shape != truth.shape or len(truth) < 3:
        raise UserError(
            f"a video needs equal shapes and 3 frames or more to be scored, "
            f"got predictions {predicted.shape} and truth {truth.shape}"
        )
    if void is not None:
        unknown = truth == void
        predicted, truth = np.where(unknown, 0, predicted), np.where(unknown, 0, truth)
    objects = np.unique(truth[0]).astype(np.int64)
    objects = objects[objects != 0]
    if len(objects) == 0:
        raise UserError("a video's first frame must show the objects to follow, it shows none")
    masks = [(predicted[1:-1] == i, truth[1:-1] == i) for i in objects]
    region = [region_similarity(*pair).mean() for pair in masks]
    contour = [boundary_accuracy(*pair, tolerance).mean() for pair in masks]
    return VideoScores(objects, np.array(region), np.array(contour))


def join_videos(videos: Sequence[VideoScores]) -> VideoScores:
    """The objects of all videos in one list: DAVIS' means weigh objects equally, not videos."""
    return VideoScores(
        np.concatenate([video.objects for video in videos]),
        np.concatenate([video.region for video in videos]),
        np.concatenate([video.boundary for video in videos]),
    )
