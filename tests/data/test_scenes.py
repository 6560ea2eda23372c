"""Scenes follow from (seed, index), their labels are sound, and colour does not give them away."""

import itertools
import time

import numpy as np
import pytest

from croc.data.scene_textures import STUFF
from croc.data.scenes import CLASSES, Scene, make_scene, make_video

PATCH_PX = 8


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [make_scene(0, index) for index in range(200)]


def same(one: Scene, other: Scene) -> bool:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def patches(image: np.ndarray) -> np.ndarray:
    """[h, w, ...] to [patches, pixels of a patch, ...]."""
    side = image.shape[0] // PATCH_PX
    cut = image.reshape(side, PATCH_PX, side, PATCH_PX, -1).swapaxes(1, 2)
    return cut.reshape(side * side, PATCH_PX * PATCH_PX, -1)


def patch_labels(scene: Scene) -> np.ndarray:
    votes = patches(np.eye(len(CLASSES), dtype=np.float32)[scene.labels])
    return votes.sum(1).argmax(1)


def patch_colours(scene: Scene) -> np.ndarray:
    return patches(scene.image.astype(np.float32)).mean(1)


def patch_textures(scene: Scene) -> np.ndarray:
    """Strength of the brightness's differences, across and down, at one and three pixels."""
    grey = scene.image.astype(np.float32).mean(-1)
    steps = [(axis, lag) for axis in (0, 1) for lag in (1, 3)]
    maps = [np.abs(grey - np.roll(grey, lag, axis)) for axis, lag in steps]
    return np.log1p(patches(np.stack(maps, -1)).mean(1))


def mean_iou(truth: np.ndarray, guess: np.ndarray) -> float:
    both = np.bincount(truth * len(CLASSES) + guess, minlength=len(CLASSES) ** 2)
    table = both.reshape(len(CLASSES), -1)
    union = table.sum(0) + table.sum(1) - np.diag(table)
    return float((np.diag(table) / np.maximum(union, 1)).mean())


def nearest_mean(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    means = np.stack([features[labels == c].mean(0) for c in range(len(CLASSES))])
    return ((features[:, None] - means) ** 2).sum(-1).argmin(1)


def test_equal_calls_give_equal_scenes() -> None:
    first = [make_scene(3, index) for index in range(4)]
    again = [make_scene(3, index) for index in reversed(range(4))][::-1]
    assert all(same(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("other", [(3, 1), (4, 0), (0, 3), (-3, 0)])
def test_other_seeds_and_indices_give_other_scenes(other: tuple[int, int]) -> None:
    one, two = make_scene(3, 0), make_scene(*other)
    assert np.abs(one.image.astype(int) - two.image).mean() > 10
    assert (one.labels != two.labels).mean() > 0.05


@pytest.mark.parametrize("size_px", [32, 96, 200, 512])
def test_shapes_and_types(size_px: int) -> None:
    for index in range(3):
        scene = make_scene(1, index, size_px)
        assert scene.image.shape == (size_px, size_px, 3)
        assert scene.labels.shape == scene.instances.shape == (size_px, size_px)
        assert {array.dtype for array in vars(scene).values()} == {np.dtype(np.uint8)}
        assert scene.labels.max() < len(CLASSES)
        assert scene.image.flags.c_contiguous
        assert scene.image.std() > 15


def test_a_scene_is_the_same_at_any_size() -> None:
    for index in range(10):
        small, large = make_scene(2, index, 64), make_scene(2, index, 192)
        assert (large.labels[1::3, 1::3] == small.labels).mean() > 0.98


def test_exposure_neither_clips_nor_darkens(scenes: list[Scene]) -> None:
    images = np.stack([scene.image for scene in scenes])
    assert 80 < images.mean() < 175
    assert (images == 255).mean() < 0.08
    assert (images == 0).mean() < 0.03


def test_classes_are_all_present_and_none_dominates(scenes: list[Scene]) -> None:
    labels = np.stack([scene.labels for scene in scenes])
    shares = np.bincount(labels.ravel(), minlength=len(CLASSES)) / labels.size
    assert len(shares) == len(CLASSES)
    assert shares.min() > 0.005
    assert shares.max() < 0.6
    seen_in = [(labels == c).any((1, 2)).sum() for c in range(len(CLASSES))]
    assert min(seen_in) >= 20


def test_labels_agree_with_instances(scenes: list[Scene]) -> None:
    for scene in scenes:
        assert np.array_equal(scene.instances > 0, scene.labels >= len(STUFF))
        numbers = np.unique(scene.instances)
        assert np.array_equal(numbers, np.arange(len(numbers)))
        assert 2 <= len(numbers) - 1 <= 6
        assert all(len(np.unique(scene.labels[scene.instances == n])) == 1 for n in numbers[1:])


def test_objects_overlap_and_vary_in_size(scenes: list[Scene]) -> None:
    areas = [np.bincount(scene.instances.ravel())[1:] / scene.labels.size for scene in scenes]
    smallest, largest = np.quantile(np.concatenate(areas), [0.05, 0.95])
    assert largest > 4 * smallest
    touching = [
        (a != b)[(a > 0) & (b > 0)].any()
        for a, b in ((s.instances[1:], s.instances[:-1]) for s in scenes)
    ]
    assert np.mean(touching) > 0.2


def test_colour_alone_does_not_give_the_class_but_texture_helps(scenes: list[Scene]) -> None:
    labels = np.concatenate([patch_labels(scene) for scene in scenes[:100]])
    colours = np.concatenate([patch_colours(scene) for scene in scenes[:100]])
    textures = np.concatenate([patch_textures(scene) for scene in scenes[:100]])
    joined = np.concatenate([colours, textures], 1)
    by_colour = mean_iou(labels, nearest_mean(colours / colours.std(0), labels))
    by_both = mean_iou(labels, nearest_mean(joined / joined.std(0), labels))
    assert by_colour < 0.35
    assert by_both > 1.3 * by_colour


def test_pixel_colours_do_not_give_the_class(scenes: list[Scene]) -> None:
    labels = np.concatenate([scene.labels[::3, ::3].ravel() for scene in scenes[:100]])
    pixels = np.concatenate([scene.image[::3, ::3].reshape(-1, 3) for scene in scenes[:100]])
    assert mean_iou(labels, nearest_mean(pixels.astype(np.float32), labels)) < 0.35


@pytest.mark.parametrize("index", range(6))
def test_video_starts_with_the_scene_and_moves_smoothly(index: int) -> None:
    video = make_video(5, index)
    assert len(video) == 12
    assert same(video[0], make_scene(5, index))
    changes = [(a.labels != b.labels).mean() for a, b in itertools.pairwise(video)]
    assert max(changes) < 0.12
    assert min(changes) > 0
    jumps = [np.abs(a.image.astype(int) - b.image).mean() for a, b in itertools.pairwise(video)]
    assert 0 < max(jumps) < 40
    assert (video[0].labels != video[-1].labels).mean() > 0.02


def test_video_keeps_the_numbers_of_its_objects() -> None:
    travelled = []
    for index in range(8):
        video = make_video(6, index, frames=8, size_px=64)
        classes = {n: video[0].labels[video[0].instances == n][0] for n in ids(video[0])}
        assert sorted(classes) == list(range(1, len(classes) + 1))
        for frame in video:
            assert all(set(frame.labels[frame.instances == n]) == {classes[n]} for n in ids(frame))
        travelled += [distance(video[0], video[-1], n) for n in ids(video[-1])]
    assert np.median(travelled) > 1.5


def ids(scene: Scene) -> list[int]:
    return [int(n) for n in np.unique(scene.instances) if n]


def distance(first: Scene, last: Scene, number: int) -> float:
    """Pixels between an object's centres in two frames."""
    centres = [np.argwhere(scene.instances == number).mean(0) for scene in (first, last)]
    return float(np.linalg.norm(centres[1] - centres[0]))


def test_longer_videos_begin_alike() -> None:
    short, long = make_video(7, 0, frames=3, size_px=32), make_video(7, 0, frames=40, size_px=32)
    assert all(same(a, b) for a, b in zip(short, long[:3], strict=True))


def test_scenes_are_fast() -> None:
    took = []
    for index in range(20):
        start = time.process_time()
        make_scene(8, index)
        took.append(time.process_time() - start)
    assert np.median(took) < 0.02
