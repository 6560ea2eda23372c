"""Confusion, IoU and matching against torchmetrics, scikit-learn, brute force and by hand."""

import math
from itertools import permutations

import pytest
import torch
from sklearn.metrics import confusion_matrix
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from croc.errors import UserError
from croc.eval.metrics import (
    apply_matching,
    confusion,
    iou,
    match_hungarian,
    match_majority,
    pairwise_iou,
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
    got = confusion(predicted, truth, CLASSES, clusters=clusters)
    assert got.tolist() == expected.T[:, :CLASSES].tolist()


@pytest.mark.parametrize("ignore", [255, 2])
def test_iou_and_accuracy_are_torchmetrics_over_added_batches(ignore):
    per_class = MulticlassJaccardIndex(CLASSES, average="none", ignore_index=ignore)
    accuracy = MulticlassAccuracy(CLASSES, average="micro", ignore_index=ignore)
    total = torch.zeros(CLASSES, CLASSES, dtype=torch.int64)
    for seed in range(4):
        predicted, truth = random_labels(seed)
        truth = torch.where(truth == 255, ignore, truth)
        per_class.update(predicted, truth)
        accuracy.update(predicted, truth)
        total += confusion(predicted, truth, CLASSES, ignore)
    report = iou(total)
    present = [c for c in range(CLASSES) if c != ignore]
    expected = per_class.compute().double()[present]
    torch.testing.assert_close(report.per_class[present], expected, atol=1e-6, rtol=0)
    assert report.mean == pytest.approx(expected.mean().item(), abs=1e-6)
    assert report.accuracy == pytest.approx(accuracy.compute().item(), abs=1e-6)
    assert report.per_class.isnan().sum() == CLASSES - len(present)


def test_mean_iou_is_torchmetrics_when_every_class_is_there():
    predicted, truth = random_labels(5)
    metric = MulticlassJaccardIndex(CLASSES, average="macro", ignore_index=255)
    report = iou(confusion(predicted, truth, CLASSES))
    assert report.mean == pytest.approx(metric(predicted, truth).item(), abs=1e-6)


def test_labels_of_every_integer_type_count_alike():
    predicted, truth = random_labels(6)
    expected = confusion(predicted, truth, CLASSES)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(confusion(predicted.to(dtype), truth.to(dtype), CLASSES), expected)
    negative = torch.where(truth == 255, -1, truth)
    assert torch.equal(confusion(predicted, negative, CLASSES, ignore=-1), expected)


def test_what_is_predicted_on_ignored_pixels_does_not_matter():
    predicted, truth = torch.tensor([0, 255, 99]), torch.tensor([1, 255, 255])
    assert confusion(predicted, truth, 2).tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize(
    ("predicted", "truth"),
    [([0, 2], [0, 1]), ([-1, 0], [0, 1]), ([0, 0], [0, 2]), ([0, 0], [-1, 0])],
)
def test_a_label_out_of_range_is_an_error(predicted, truth):
    with pytest.raises(UserError, match="out of range"):
        confusion(torch.tensor(predicted), torch.tensor(truth), 2)


def test_iou_by_hand():
    # Class 2 is never predicted; class 3 is absent, but predicted on one pixel of class 0.
    truth = torch.tensor([0, 0, 0, 1, 1, 2, 255, 255])
    predicted = torch.tensor([0, 0, 3, 1, 0, 1, 2, 3])
    report = iou(confusion(predicted, truth, 4))
    assert report.per_class[:3].tolist() == [2 / 4, 1 / 3, 0]
    assert report.per_class[3].isnan()
    assert report.mean == pytest.approx((1 / 2 + 1 / 3 + 0) / 3)
    assert report.accuracy == 3 / 6


def test_nothing_to_score_is_nan():
    ignored = torch.full((2, 4, 4), 255)
    counts = confusion(torch.zeros_like(ignored), ignored, 3)
    report = iou(counts)
    assert counts.sum() == 0
    assert report.per_class.isnan().all()
    assert math.isnan(report.mean)
    assert math.isnan(report.accuracy)


def test_no_pixels_at_all():
    empty = torch.zeros(0, 4, 4, dtype=torch.int64)
    assert torch.equal(confusion(empty, empty, 3), torch.zeros(3, 3, dtype=torch.int64))


def test_counts_past_float32_are_exact():
    counts = torch.tensor([[2**30 + 1, 0], [1, 2**30]])
    assert iou(counts).per_class.tolist() == [(2**30 + 1) / (2**30 + 2), 2**30 / (2**30 + 1)]


def test_iou_wants_a_row_for_every_class():
    with pytest.raises(ValueError, match="matching"):
        iou(torch.ones(1, 3, dtype=torch.int64))


def test_pairwise_iou_equals_the_pixels():
    predicted, truth = random_labels(7, clusters=9)
    got = pairwise_iou(confusion(predicted, truth, CLASSES, clusters=9))
    scored = truth != 255
    for k in range(9):
        for c in range(CLASSES):
            cluster, label = (predicted == k) & scored, truth == c
            expected = (cluster & label).sum().item() / (cluster | label).sum().item()
            assert got[k, c].item() == pytest.approx(expected)


@pytest.mark.parametrize("classes", [1, 2, 3, 4, 5, 6])
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


def test_hungarian_undoes_a_renaming():
    _, truth = random_labels(8)
    renaming = torch.tensor([3, 0, 6, 1, 2, 5, 4])
    predicted = renaming[truth.where(truth != 255, 0)]
    counts = confusion(predicted, truth, CLASSES)
    matching = match_hungarian(counts)
    assert torch.equal(matching[renaming], torch.arange(CLASSES))
    report = iou(apply_matching(counts, matching, CLASSES))
    assert report.mean == report.accuracy == 1


def test_hungarian_goes_by_iou_not_by_pixels():
    # By pixels the large class 0 would take cluster 0 (60 + 0 > 50 + 9).
    counts = torch.tensor([[60, 9], [50, 0]])
    scores = pairwise_iou(counts)
    assert scores[0, 0] + scores[1, 1] < scores[0, 1] + scores[1, 0]
    assert match_hungarian(counts).tolist() == [1, 0]


def test_clusters_left_over_by_hungarian_predict_nothing():
    counts = torch.tensor([[4, 0], [3, 1], [0, 5]])
    assert match_hungarian(counts).tolist() == [0, 255, 1]
    assert match_hungarian(counts, ignore=-1).tolist() == [0, -1, 1]
    matched = apply_matching(counts, match_hungarian(counts), 2)
    assert matched.tolist() == [[4, 0], [0, 5], [3, 1]]
    report = iou(matched)
    assert report.per_class.tolist() == [4 / 7, 5 / 6]
    assert report.accuracy == 9 / 13


def test_fewer_clusters_than_classes_leave_classes_unpredicted():
    counts = torch.tensor([[1, 8, 0]])
    matching = match_hungarian(counts)
    assert matching.tolist() == [1]
    report = iou(apply_matching(counts, matching, 3))
    assert report.per_class[:2].tolist() == [0, 8 / 9]
    assert report.per_class[2].isnan()


def test_majority_by_hand():
    counts = torch.tensor([[5, 1, 0], [0, 0, 0], [2, 3, 1], [9, 0, 2], [0, 4, 4]])
    matching = match_majority(counts)
    assert matching.tolist() == [0, 255, 1, 0, 1]
    matched = apply_matching(counts, matching, 3)
    assert matched.tolist() == [[14, 1, 2], [2, 7, 5], [0, 0, 0], [0, 0, 0]]
    assert iou(matched).per_class.tolist() == [14 / 19, 7 / 15, 0]


def test_matching_the_counts_is_matching_the_pixels():
    predicted, truth = random_labels(9, clusters=40)
    counts = confusion(predicted, truth, CLASSES, clusters=40)
    matching = match_majority(counts)
    relabelled = torch.where(matching == 255, CLASSES, matching)[predicted]
    expected = confusion(relabelled, truth, CLASSES, clusters=CLASSES + 1)
    assert torch.equal(apply_matching(counts, matching, CLASSES), expected)


def test_majority_gives_the_highest_accuracy_of_all_labellings():
    predicted, truth = random_labels(10, clusters=12)
    counts = confusion(predicted, truth, CLASSES, clusters=12)
    report = iou(apply_matching(counts, match_majority(counts), CLASSES))
    assert report.accuracy == pytest.approx((counts.amax(dim=1).sum() / counts.sum()).item())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_counts_the_same():
    predicted, truth = random_labels(11, clusters=12)
    here = confusion(predicted, truth, CLASSES, clusters=12)
    there = confusion(predicted.cuda(), truth.cuda(), CLASSES, clusters=12)
    assert torch.equal(there.cpu(), here)
    for match in (match_hungarian, match_majority):
        matched = apply_matching(there, match(there), CLASSES)
        assert torch.equal(matched.cpu(), apply_matching(here, match(here), CLASSES))
        assert iou(matched).mean == iou(matched.cpu()).mean
