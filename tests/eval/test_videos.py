"""DAVIS's layout on small trees, synthetic videos, and the real sequences if they are available."""

import os
from pathlib import Path

import numpy as np
import pytest

from croc.errors import UserError
from croc.eval.videos import open_videos
from tests.eval import trees

# A folder with the real small sets; without it the test on them is skipped.
REAL = Path(os.environ.get("CROC_DATA", "no-data")) / "davis2016-six.tar"


def names_of(spec: str) -> list[str]:
    videos = open_videos(spec)
    return [videos[index].name for index in range(len(videos))]


@pytest.mark.parametrize("root", ["", "DAVIS"])
def test_several_objects(tmp_path, root):
    trees.write(tmp_path / root, trees.davis())
    assert names_of(f"davis17:{tmp_path}") == ["drift", "camel"]
    drift, camel = open_videos(f"davis17:{tmp_path}")
    assert len(camel) == 3
    assert camel.read_frame(2).shape == (trees.HEIGHT, trees.WIDTH, 3)
    assert camel.read_mask(0)[0, :4].tolist() == [0, 1, 2, 5]
    assert camel.read_mask(1)[0, :4].tolist() == [0, 1, 2, 0]
    assert (camel.has_all_masks, drift.has_all_masks) == (True, False)


def test_one_object_in_2016(tmp_path):
    trees.write(tmp_path, trees.davis())
    videos = open_videos(f"davis16:{tmp_path}")
    assert names_of(f"davis16:{tmp_path}") == ["camel", "drift", "unlisted"]
    assert videos[0].read_mask(0)[0, :4].tolist() == [0, 1, 1, 1]
    assert videos[2].read_mask(0)[0, :4].tolist() == [0, 1, 0, 1]


FRAMES = b"/JPEGImages/480p/drift/%05d.jpg /Annotations/480p/drift/%05d.png\n"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("ImageSets/2016/val.txt", b"drift\n"),
        ("ImageSets/480p/val.txt", FRAMES % (0, 0) + FRAMES % (1, 1)),
    ],
)
def test_lists_of_2016(tmp_path, name, lines):
    trees.write(tmp_path, trees.davis() | {name: lines})
    assert names_of(f"davis16:{tmp_path}") == ["drift"]


def test_binary_masks_of_three_channels(tmp_path):
    mask = trees.panoptic_png(trees.label_map(0, 255).astype(np.int64))
    trees.write(tmp_path, trees.davis() | {"Annotations/480p/camel/00000.png": mask})
    assert open_videos(f"davis16:{tmp_path}")[0].read_mask(0)[0, :2].tolist() == [0, 1]
    with pytest.raises(UserError, match="mode RGB"):
        open_videos(f"davis17:{tmp_path}")[1].read_mask(0)


def test_scenes():
    videos = open_videos("scenes")
    assert len(videos) == 8
    assert len(open_videos("scenes:2")) == 2
    assert len(videos[1]) == 12
    assert videos[1].read_frame(11).shape == (96, 96, 3)
    assert len(np.unique(videos[1].read_mask(0))) >= 3


def test_real_data():
    if not REAL.exists():
        pytest.skip("the real data is not available")
    videos = open_videos(f"davis16:{REAL}")
    assert len(videos) == 6
    for index in range(6):
        video = videos[index]
        assert video.has_all_masks
        assert video.read_frame(0).shape == (480, 854, 3)
        assert np.unique(video.read_mask(len(video) - 1)).tolist() == [0, 1]
