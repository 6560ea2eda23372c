"""J and F against slow loops over pixels, against dilation by a disk, and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.ndimage import binary_dilation

from croc.errors import UserError
from croc.eval.boundaries import (
    boundary,
    boundary_accuracy,
    dilate,
    join_videos,
    region_similarity,
    video_scores,
)

HEIGHT, WIDTH = 24, 31


def blank() -> np.ndarray:
    return np.zeros((HEIGHT, WIDTH), dtype=bool)


def square(top: int, left: int, side: int = 8) -> np.ndarray:
    mask = blank()
    mask[top : top + side, left : left + side] = True
    return mask


def line(row: int) -> np.ndarray:
    mask = blank()
    mask[row] = True
    return mask


def slow_boundary(mask):
    """(y, x) of the pixels that differ from a neighbour right, below or diagonally below."""
    height, width = mask.shape
    points = []
    for y in range(height):
        for x in range(width):
            neighbours = [(y, x + 1), (y + 1, x), (y + 1, x + 1)]
            inside = [mask[v, u] for v, u in neighbours if v < height and u < width]
            if any(value != mask[y, x] for value in inside):
                points.append((y, x))
    return points


def slow_part_matched(points, others, radius):
    hits = [any((y - v) ** 2 + (x - u) ** 2 <= radius**2 for v, u in others) for y, x in points]
    return sum(hits) / len(hits)


def slow_boundary_accuracy(predicted, truth, tolerance):
    height, width = predicted.shape
    radius = tolerance
    if tolerance < 1:
        radius = math.ceil(tolerance * math.sqrt(height**2 + width**2))
    found, wanted = slow_boundary(predicted), slow_boundary(truth)
    if not found and not wanted:
        return 1.0
    if not found or not wanted:
        return 0.0
    precision = slow_part_matched(found, wanted, radius)
    recall = slow_part_matched(wanted, found, radius)
    return 0.0 if precision + recall == 0 else 2 * precision * recall / (precision + recall)


def slow_region_similarity(predicted, truth):
    pairs = [(bool(a), bool(b)) for a, b in zip(predicted.flat, truth.flat, strict=True)]
    union = sum(a or b for a, b in pairs)
    return sum(a and b for a, b in pairs) / union if union else 1.0


def random_masks(frames: int, seed: int) -> np.ndarray:
    """A disk a frame, with ragged edges."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    center = rng.uniform(5, 20, (frames, 2, 1, 1))
    distance = np.hypot(y - center[:, 0], x - center[:, 1])
    return distance + rng.normal(0, 1, (frames, HEIGHT, WIDTH)) < rng.uniform(2, 9, (frames, 1, 1))


MASKS = {
    "empty": blank(),
    "full": ~blank(),
    "square": square(5, 6),
    "shifted": square(7, 9),
    "far": square(15, 20),
    "corner": square(0, 0),
    "far corner": square(HEIGHT - 8, WIDTH - 8),
    "pixel": square(9, 9, 1),
    "line": line(10),
    "last line": line(HEIGHT - 1),
}


@pytest.mark.parametrize("predicted", MASKS)
@pytest.mark.parametrize("truth", MASKS)
def test_hand_made_masks_equal_the_loops(predicted, truth):
    one, other = MASKS[predicted], MASKS[truth]
    assert region_similarity(one, other) == slow_region_similarity(one, other)
    for tolerance in (0.008, 0.06, 1, 2.5, 4):
        expected = slow_boundary_accuracy(one, other, tolerance)
        assert boundary_accuracy(one, other, tolerance) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(
    arrays(bool, (2, 6, 7), elements=st.booleans(), fill=st.booleans()),
    st.sampled_from([0.008, 0.2, 1, 1.5, 3]),
)
def test_any_masks_equal_the_loops(masks, tolerance):
    assert np.argwhere(boundary(masks[0])).tolist() == [list(p) for p in slow_boundary(masks[0])]
    expected = slow_boundary_accuracy(*masks, tolerance)
    assert boundary_accuracy(*masks, tolerance) == pytest.approx(expected)
    assert region_similarity(*masks) == slow_region_similarity(*masks)


@pytest.mark.parametrize("radius", [0, 1, 2, 5, 8, 9.5, 27, 60])
def test_dilation_is_by_a_disk(radius):
    reach = math.ceil(radius)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = y**2 + x**2 <= radius**2
    for edges in boundary(random_masks(3, seed=0)):
        assert np.array_equal(dilate(edges, radius), binary_dilation(edges, disk))


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_agrees_with_itself(name):
    assert region_similarity(MASKS[name], MASKS[name]) == 1
    assert boundary_accuracy(MASKS[name], MASKS[name]) == 1


def test_disjoint_masks_share_nothing():
    assert region_similarity(square(1, 1), square(14, 20)) == 0
    assert boundary_accuracy(square(1, 1), square(14, 20)) == 0


def test_masks_without_boundary():
    empty, full = blank(), ~blank()
    assert boundary_accuracy(empty, full) == 1  # neither has one: DAVIS counts them as equal
    assert region_similarity(empty, full) == 0
    assert boundary_accuracy(empty, square(5, 5)) == boundary_accuracy(square(5, 5), full) == 0


def test_the_boundary_of_a_pixel_and_of_the_images_corners():
    assert np.argwhere(boundary(square(9, 9, 1))).tolist() == [[8, 8], [8, 9], [9, 8], [9, 9]]
    assert np.argwhere(boundary(square(0, 0, 1))).tolist() == [[0, 0]]
    end = [HEIGHT - 1, WIDTH - 1]
    last = np.argwhere(boundary(square(*end, 1))).tolist()
    assert last == [[end[0] - 1, end[1] - 1], [end[0] - 1, end[1]], [end[0], end[1] - 1]]


def test_thin_lines_by_hand():
    # The boundary of row 5 is rows 4 and 5, that of row 7 rows 6 and 7: within 1 px, 5 meets 6.
    assert region_similarity(line(5), line(7)) == 0
    assert boundary_accuracy(line(5), line(7), 1) == 0.5
    assert boundary_accuracy(line(5), line(7), 2) == 1
    # Row 20 besides: precision 2/4, recall 2/2.
    assert boundary_accuracy(line(5) | line(20), line(5), 1) == pytest.approx(2 / 3)


def test_a_shift_within_the_tolerance_costs_only_j():
    one, other = square(5, 5), square(5, 7)
    assert region_similarity(one, other) == 6 / 10
    assert boundary_accuracy(one, other, 2) == 1
    assert boundary_accuracy(one, other, 1) < 1


def test_the_default_tolerance_is_eight_pixels_at_480p():
    left, right, further = (np.zeros((480, 854), dtype=bool) for _ in range(3))
    left[:, :100], right[:, :108], further[:, :109] = True, True, True
    assert boundary_accuracy(left, right) == 1
    assert boundary_accuracy(left, further) == 0


def test_f_is_symmetric_and_batches_equal_singles():
    predicted, truth = random_masks(6, seed=1), random_masks(6, seed=2)
    for score in (region_similarity, boundary_accuracy):
        together = score(predicted, truth)
        assert together.shape == (6,)
        assert together.tolist() == [score(*pair).item() for pair in zip(predicted, truth)]
        assert score(truth, predicted) == pytest.approx(together)
        nested = score(predicted.reshape(2, 3, HEIGHT, WIDTH), truth.reshape(2, 3, HEIGHT, WIDTH))
        assert np.array_equal(nested, together.reshape(2, 3))


def two_objects(seed: int, frames: int = 6) -> np.ndarray:
    first, second = random_masks(frames, seed), random_masks(frames, seed + 100)
    return np.where(first, 1, np.where(second, 4, 0)).astype(np.uint8)


def test_a_video_is_the_mean_over_inner_frames_an_object():
    predicted, truth = two_objects(3), two_objects(4)
    scores = video_scores(predicted, truth)
    assert scores.objects.tolist() == [1, 4]
    for i, label in enumerate((1, 4)):
        frames = [(predicted[t] == label, truth[t] == label) for t in range(1, 5)]
        region = [slow_region_similarity(*pair) for pair in frames]
        contour = [slow_boundary_accuracy(*pair, 0.008) for pair in frames]
        assert scores.region[i] == pytest.approx(np.mean(region))
        assert scores.boundary[i] == pytest.approx(np.mean(contour))
    means = scores.means
    assert means["J&F"] == pytest.approx((scores.region.mean() + scores.boundary.mean()) / 2)
    assert means["J"] == pytest.approx(scores.region.mean())
    assert means["F"] == pytest.approx(scores.boundary.mean())


def test_first_and_last_frames_do_not_count():
    truth = two_objects(5)
    predicted = truth.copy()
    predicted[[0, -1]] = 0
    assert video_scores(predicted, truth).means == {"J": 1, "F": 1, "J&F": 1}


def test_an_object_that_is_not_predicted_and_one_that_is_not_in_the_first_frame():
    truth = np.stack([square(2, 2) * 1 + square(14, 14) * 2] * 4)
    truth[1:, 0, 0] = 3
    scores = video_scores(np.where(truth == 1, 1, 0), truth)
    assert scores.objects.tolist() == [1, 2]
    assert scores.region.tolist() == scores.boundary.tolist() == [1, 0]


def test_void_pixels_are_left_out():
    truth = np.stack([square(5, 5).astype(np.uint8)] * 3)
    predicted = truth.copy()
    predicted[:, 20:] = 1
    assert video_scores(predicted, truth).means["J"] < 1
    truth[:, 20:] = 255
    assert video_scores(predicted, truth).means == {"J": 1, "F": 1, "J&F": 1}


def test_255_can_be_an_object():
    truth = np.stack([square(5, 5) * 255] * 3)
    assert video_scores(truth, truth, void=None).objects.tolist() == [255]


def test_joined_videos_weigh_objects_equally():
    both = video_scores(two_objects(6), two_objects(7))
    one = np.where(two_objects(8) == 1, 1, 0)
    single = video_scores(one, one)
    joined = join_videos([both, single])
    assert joined.objects.tolist() == [1, 4, 1]
    assert joined.means["J"] == pytest.approx((both.region.sum() + 1) / 3)


@pytest.mark.parametrize(
    ("predicted", "truth", "message"),
    [
        (np.ones((2, 4, 4), int), np.ones((2, 4, 4), int), "3 frames"),
        (np.ones((3, 4, 4), int), np.zeros((3, 4, 4), int), "first frame"),
    ],
)
def test_a_video_that_cannot_be_scored_is_an_error(predicted, truth, message):
    with pytest.raises(UserError, match=message):
        video_scores(predicted, truth)
