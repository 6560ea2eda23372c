"""Scenes follow from (seed, index) and never change; their labels are sound."""

import hashlib
import itertools

import numpy as np

from croc.data.scenes import CLASSES, STUFF, Scene, make_scene, make_video


def digest(scenes: list[Scene]) -> str:
    planes = (plane.tobytes() for scene in scenes for plane in vars(scene).values())
    return hashlib.sha256(b"".join(planes)).hexdigest()


def test_pixels_and_labels_never_change():
    """Runs, scores and goldens depend on them."""
    videos = [make_video(seed, 3 * seed, frames=3, size_px=64) for seed in range(8)]
    assert (
        digest(list(itertools.chain(*videos)))
        == "fe31380365a25230cb40ba92a7ee57821fb3ce035df0c4d0b765b6184e9be7a3"
    )
    assert digest([make_video(5, 0)[0]]) == digest([make_scene(5, 0)])
    for other in ((3, 1), (4, 0), (0, 3), (-3, 0)):
        assert digest([make_scene(*other)]) != digest([make_scene(3, 0)])


def test_every_class_is_present_and_labels_agree_with_instances():
    scenes = [make_scene(0, index) for index in range(100)]
    labels = np.stack([scene.labels for scene in scenes])
    assert min((labels == c).any((1, 2)).sum() for c in range(len(CLASSES))) >= 10
    for scene in scenes:
        assert np.array_equal(scene.instances > 0, scene.labels >= len(STUFF))
        numbers = np.unique(scene.instances)
        assert np.array_equal(numbers, np.arange(len(numbers)))
        assert 2 <= len(numbers) - 1 <= 6
        assert all(len(np.unique(scene.labels[scene.instances == n])) == 1 for n in numbers[1:])


def test_objects_that_leave_the_picture():
    assert len(make_video(0, 1, frames=100, size_px=16)) == 100
