"""Confusion, IoU and matching against torchmetrics, scikit-learn and brute force; J against
scikit-learn, F against dilation by a disk."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.ndimage import binary_dilation
from sklearn.metrics import confusion_matrix, jaccard_score
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from croc.eval.metrics import (
    apply_matching,
    boundary,
    boundary_accuracy,
    confusion,
    iou,
    match_hungarian,
    match_majority,
    pairwise_iou,
    region_similarity,
    video_means,
    video_scores,
)

CLASSES = 7


def random_labels(seed: int, clusters: int = CLASSES, size: tuple[int, ...] = (3, 16, 20)):
    """Predictions that are right now and then, and truth of which a fifth is ignored."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(CLASSES, size, generator=generator)
    predicted = torch.randint(clusters, size, generator=generator)
    predicted = torch.where(torch.rand(size, generator=generator) < 0.4, truth, predicted)
    return predicted, torch.where(torch.rand(size, generator=generator) < 0.2, 255, truth)


@pytest.mark.parametrize("clusters", [CLASSES, 19])
def test_confusion_is_scikit_learns_transposed(clusters):
    predicted, truth = random_labels(0, clusters)
    scored = truth != 255
    expected = confusion_matrix(truth[scored], predicted[scored], labels=range(clusters))
    counts = confusion(predicted, truth, CLASSES, clusters=clusters)
    assert counts.tolist() == expected.T[:, :CLASSES].tolist()


def test_iou_and_accuracy_are_torchmetrics_over_added_batches():
    per_class = MulticlassJaccardIndex(CLASSES, average="none", ignore_index=255)
    accuracy = MulticlassAccuracy(CLASSES, average="micro", ignore_index=255)
    total = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)
    for seed in range(4):
        predicted, truth = random_labels(seed)
        per_class.update(predicted, truth)
        accuracy.update(predicted, truth)
        total += confusion(predicted, truth, CLASSES)
    report = iou(total)
    expected = per_class.compute().double()
    torch.testing.assert_close(report.per_class, expected, atol=1e-6, rtol=0)
    assert report.mean == pytest.approx(expected.mean().item(), abs=1e-6)
    assert report.accuracy == pytest.approx(accuracy.compute().item(), abs=1e-6)


def test_iou_by_hand():
    # Class 2 is never predicted; class 3 is absent, but predicted on one pixel of class 0.
    truth = torch.tensor([0, 0, 0, 1, 1, 2, 255, 255])
    predicted = torch.tensor([0, 0, 3, 1, 0, 1, 2, 3])
    report = iou(confusion(predicted, truth, 4))
    assert report.per_class[:3].tolist() == [2 / 4, 1 / 3, 0]
    assert report.per_class[3].isnan()
    assert report.mean == pytest.approx((1 / 2 + 1 / 3 + 0) / 3)
    assert report.accuracy == 3 / 6


@pytest.mark.parametrize("classes", [1, 3, 5])
def test_hungarian_is_the_best_of_all_permutations(classes):
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        counts = torch.randint(50, (classes, classes), generator=generator)
        counts[:, seed % classes] *= seed % 3  # a class is absent now and then
        matching = match_hungarian(counts)
        assert sorted(matching.tolist()) == list(range(classes))
        scores = pairwise_iou(counts)
        rows = torch.arange(classes)
        best = max(scores[rows, torch.tensor(p)].sum() for p in permutations(range(classes)))
        torch.testing.assert_close(scores[rows, matching].sum(), best)
        # The matched confusion says the same: absent classes add 0 to the sum.
        matched = iou(apply_matching(counts, matching, classes))
        torch.testing.assert_close(matched.per_class.nansum(), best)


def test_clusters_left_over_by_hungarian_predict_nothing():
    counts = torch.tensor([[4, 0], [3, 1], [0, 5]])
    assert match_hungarian(counts).tolist() == [0, 255, 1]
    matched = apply_matching(counts, match_hungarian(counts), 2)
    assert matched.tolist() == [[4, 0], [0, 5], [3, 1]]
    report = iou(matched)
    assert report.per_class.tolist() == [4 / 7, 5 / 6]
    assert report.accuracy == 9 / 13


def test_majority_by_hand():
    counts = torch.tensor([[5, 1, 0], [0, 0, 0], [2, 3, 1], [9, 0, 2], [0, 4, 4]])
    matching = match_majority(counts)
    assert matching.tolist() == [0, 255, 1, 0, 1]
    matched = apply_matching(counts, matching, 3)
    assert matched.tolist() == [[14, 1, 2], [2, 7, 5], [0, 0, 0], [0, 0, 0]]
    assert iou(matched).per_class.tolist() == [14 / 19, 7 / 15, 0]


@pytest.mark.cuda
def test_a_gpu_counts_the_same():
    predicted, truth = random_labels(11, clusters=12)
    here = confusion(predicted, truth, CLASSES, clusters=12)
    there = confusion(predicted.cuda(), truth.cuda(), CLASSES, clusters=12)
    assert torch.equal(there.cpu(), here)
    for match in (match_hungarian, match_majority):
        matched = apply_matching(there, match(there), CLASSES)
        assert torch.equal(matched.cpu(), apply_matching(here, match(here), CLASSES))
        assert iou(matched).mean == iou(matched.cpu()).mean


HEIGHT, WIDTH = 24, 31


def square(top: int, left: int, side: int = 8) -> np.ndarray:
    mask = np.zeros((HEIGHT, WIDTH), dtype=bool)
    mask[top : top + side, left : left + side] = True
    return mask


def slow_boundary(mask):
    """Pixels that differ from a neighbor right, below or diagonally below."""
    height, width = mask.shape
    found = np.zeros_like(mask)
    for y, x in np.ndindex(height, width):
        neighbors = [(v, u) for v, u in ((y, x + 1), (y + 1, x), (y + 1, x + 1))]
        found[y, x] = any(
            mask[v, u] != mask[y, x] for v, u in neighbors if v < height and u < width
        )
    return found


def dilated_boundary_accuracy(predicted, truth, tolerance):
    """By dilation with a disk, as DAVIS defines it."""
    one, other = slow_boundary(predicted), slow_boundary(truth)
    if not one.any() or not other.any():
        return float(one.any() == other.any())
    radius = math.ceil(tolerance * math.hypot(*truth.shape))
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    disk = x**2 + y**2 <= radius**2
    precision = binary_dilation(other, disk)[one].mean()
    recall = binary_dilation(one, disk)[other].mean()
    return 0.0 if precision + recall == 0 else 2 * precision * recall / (precision + recall)


def jaccard(predicted, truth):
    return jaccard_score(truth.ravel(), predicted.ravel(), zero_division=1.0)


def random_masks(frames: int, seed: int) -> np.ndarray:
    """One disk per frame, with ragged edges."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    center = rng.uniform(5, 20, (frames, 2, 1, 1))
    distance = np.hypot(y - center[:, 0], x - center[:, 1])
    return distance + rng.normal(0, 1, (frames, HEIGHT, WIDTH)) < rng.uniform(2, 9, (frames, 1, 1))


@settings(max_examples=100, deadline=None)
@given(
    arrays(bool, (2, 6, 7), elements=st.booleans(), fill=st.booleans()),
    st.sampled_from([0.008, 0.1, 0.3]),
)
def test_any_masks_equal_the_loops(masks, tolerance):
    assert np.array_equal(boundary(masks[0]), slow_boundary(masks[0]))
    expected = dilated_boundary_accuracy(*masks, tolerance)
    assert boundary_accuracy(*masks, tolerance) == pytest.approx(expected)
    assert region_similarity(*masks) == pytest.approx(jaccard(*masks))


def test_the_default_tolerance_is_eight_pixels_at_480p():
    left, right, further = (np.zeros((480, 854), dtype=bool) for _ in range(3))
    left[:, :100], right[:, :108], further[:, :109] = True, True, True
    assert boundary_accuracy(left, right) == 1
    assert boundary_accuracy(left, further) == 0


def two_objects(seed: int, frames: int = 6) -> np.ndarray:
    first, second = random_masks(frames, seed), random_masks(frames, seed + 100)
    return np.where(first, 1, np.where(second, 4, 0)).astype(np.uint8)


def test_a_video_is_the_mean_over_inner_frames_per_object():
    predicted, truth = two_objects(3), two_objects(4)
    scores = video_scores(predicted, truth)
    for i, label in enumerate((1, 4)):
        frames = [(predicted[t] == label, truth[t] == label) for t in range(1, 5)]
        region = [jaccard(*pair) for pair in frames]
        contour = [dilated_boundary_accuracy(*pair, 0.008) for pair in frames]
        assert scores[:, i] == pytest.approx([np.mean(region), np.mean(contour)])
    region, contour = 100 * scores.mean(axis=1)
    expected = {"J&F": (region + contour) / 2, "J": region, "F": contour}
    assert video_means(scores) == pytest.approx(expected)


def test_an_object_that_is_not_predicted_and_one_that_is_not_in_the_first_frame():
    truth = np.stack([square(2, 2) * 1 + square(14, 14) * 2] * 4)
    truth[1:, 0, 0] = 3
    scores = video_scores(np.where(truth == 1, 1, 0), truth)
    assert scores.tolist() == [[1, 0], [1, 0]]


def test_void_pixels_are_left_out():
    truth = np.stack([square(5, 5).astype(np.uint8)] * 3)
    predicted = truth.copy()
    predicted[:, 20:] = 1
    assert video_scores(predicted, truth)[0] < 1
    truth[:, 20:] = 255
    assert video_scores(predicted, truth).tolist() == [[1], [1]]
