"""Sources of images; scenes follow from (seed, index) and never change."""

import errno
import hashlib
import io
import itertools
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croc.config import DataConfig
from croc.data.decode import UndecodableImage, decode_image
from croc.data.pack import pack
from croc.data.scenes import CLASSES, STUFF, Scene, make_scene, make_video
from croc.data.sources import (
    FolderSource,
    ImageSource,
    PackedSource,
    ScenesSource,
    ShardSource,
    open_source,
)

from .pictures import encode, noise, write, write_tar

STALE = OSError(errno.ESTALE, "Stale file handle")


def names(source: ImageSource) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def opened(*roots, **options) -> ImageSource:
    return open_source(DataConfig(root=tuple(map(str, roots)), **options), seed=3)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for number, name in enumerate(["b/x.JPG", "a/deep/er/y.png", "a/z.tiff", "c.webp", "B.Bmp"]):
        file_format = {"g": "PNG", "f": "TIFF", "p": "BMP"}[name[-1].lower()]
        write(tmp_path / "tree" / name, encode(noise(6 + number, 9, number), file_format))
    for name in ["notes.txt", ".hidden.png", "a/._z.tiff", ".cache/q.png", "jpg", "b/x.jpg.part"]:
        write(tmp_path / "tree" / name, encode(noise(3, 3)))
    return tmp_path / "tree"


def test_folder_is_read_at_any_depth_in_sorted_order(tree):
    source = FolderSource([str(tree)], 32)
    expected = ["B.Bmp", "a/deep/er/y.png", "a/z.tiff", "b/x.JPG", "c.webp"]
    assert names(source) == [f"{tree}/{name}" for name in expected]
    np.testing.assert_array_equal(source.read(1), noise(7, 9, 1))
    copy = pickle.loads(pickle.dumps(source))
    assert names(copy) == names(source)
    np.testing.assert_array_equal(copy.read(4), noise(9, 9, 3))
    assert FolderSource([str(tree)], 3).read(0).shape == (3, 3, 3)


def test_links_are_followed_once(tree):
    elsewhere = write(tree.parent / "elsewhere" / "p.png", encode(noise(2, 2)))
    (tree / "a" / "loop").symlink_to(tree)
    (tree / "a" / "itself").symlink_to(tree / "a" / "itself")
    (tree / "link").symlink_to(elsewhere.parent)
    (tree / "broken.png").symlink_to(tree / "nothing")
    (tree / "linked.png").symlink_to(elsewhere)
    os.mkfifo(tree / "pipe.png")  # opening it would block forever
    source = FolderSource([str(tree)], 32)
    assert len(source) == 7
    assert {f"{tree}/link/p.png", f"{tree}/linked.png"} <= set(names(source))


def test_odd_names_stay_distinct_and_on_one_line(tmp_path):
    odd = ["naïve 東京.png", "a b'\".png", "two\nlines.png", r"two\nlines.png", "\xa0\x1b.png"]
    shown = [*odd[:2], r"two\nlines.png", r"two\\nlines.png", r"\u00a0\u001b.png"]
    for number, name in enumerate(odd):
        write(tmp_path / name, encode(noise(2, 2, number)))
    with open(os.path.join(os.fsencode(tmp_path), b"latin-\xe9.png"), "wb") as file:
        file.write(encode(noise(2, 2, len(odd))))
    shown.append(r"latin-\xe9.png")
    source = FolderSource([str(tmp_path)], 32)
    listed = [name.removeprefix(f"{tmp_path}/") for name in names(source)]
    assert set(listed) == set(shown)
    for number, name in enumerate(shown):
        np.testing.assert_array_equal(source.read(listed.index(name)), noise(2, 2, number))


def test_unreadable_subfolder_is_left_out_and_deleted_file_undecodable(tree, monkeypatch):
    scandir = os.scandir

    def refusing(path):
        if os.fsdecode(path).endswith("/a"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    source = FolderSource([str(tree)], 32)
    assert len(source) == 3
    (tree / "B.Bmp").unlink()
    with pytest.raises(UndecodableImage, match="No such file"):
        source.read(0)


def test_images_are_read_again_after_a_fault_of_the_storage(tree, tmp_path, monkeypatch):
    """A stale handle of a network file system, when a file is opened or read."""
    write_tar(tmp_path / "s.tar", {"a.png": encode(noise(3, 3))})
    monkeypatch.setattr("croc.data.sources.PAUSES_S", (0, 0))
    faults: list[OSError] = []

    def faulty(*arguments, **_):
        if faults:
            raise faults.pop()
        return open(*arguments)

    for source in (FolderSource([str(tree)], 32), ShardSource([str(tmp_path / "s.tar")], 32)):
        expected = source.read(0)
        with monkeypatch.context() as patch:
            patch.setattr("croc.data.sources.open", faulty, raising=False)
            faults += [STALE] * 2
            np.testing.assert_array_equal(source.read(0), expected)
            faults += [STALE] * 3
            with pytest.raises(UndecodableImage, match="Stale file handle"):
                source.read(0)
    faults.append(STALE)
    stream = io.BytesIO(encode(noise(3, 3)))
    monkeypatch.setattr(Image, "open", faulty)
    with pytest.raises(OSError, match="Stale"):
        decode_image(stream, 32)


def test_every_kind_of_root_can_be_opened_and_mixed(tree, tmp_path, monkeypatch):
    shard = write_tar(tmp_path / "x.tar", {"k.png": encode(noise(5, 6, 1))})
    pack(FolderSource([str(tree)], 32), tmp_path / "packed", 32)
    monkeypatch.setenv("HOME", str(tree))
    kinds = {tree: FolderSource, shard: ShardSource, "~/a": FolderSource}
    kinds |= {tmp_path / "packed": PackedSource, "scenes": ScenesSource}
    for root, kind in kinds.items():
        assert isinstance(opened(root), kind)
    source = opened(tree, shard, "scenes", tmp_path / "packed", tree, scenes=2)
    assert len(source) == 5 + 1 + 2 + 5 + 5
    assert names(source)[5] == f"{shard}:k.png"
    assert names(source)[-1] == f"{tree}/c.webp"
    np.testing.assert_array_equal(source.read(5), noise(5, 6, 1))
    np.testing.assert_array_equal(source.read(7), ScenesSource(6, 96, seed=3).read(1))
    assert opened("scenes", max_side_px=64).read(0).shape == (64, 64, 3)


def test_subfolders_of_a_recipe(tree):
    assert len(opened(tree, subfolders=("b",))) == 1
    assert [name[-5:] for name in names(opened(tree, subfolders=("b", "a")))] == [
        *("x.JPG", "y.png", ".tiff")
    ]
    assert len(opened(tree, subfolders=("train2017", "unlabeled2017"))) == 5


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
