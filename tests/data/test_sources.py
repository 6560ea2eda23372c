import multiprocessing
import os
import pickle
import tempfile
import time

import numpy as np
import pytest

from croc.config import DataConfig
from croc.data.decode import UndecodableImage, decode_image
from croc.data.pack import pack
from croc.data.sources import (
    ConcatSource,
    FolderSource,
    ImageSource,
    PackedSource,
    ScenesSource,
    ShardSource,
    open_source,
)
from croc.errors import UserError

from .pictures import MemorySource, encode, noise, write, write_tar


def names(source: ImageSource) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def opened(*roots, **options) -> ImageSource:
    return open_source(DataConfig(root=tuple(map(str, roots)), **options), seed=3)


@pytest.fixture
def tree(tmp_path):
    for number, name in enumerate(["b/x.JPG", "a/deep/er/y.png", "a/z.tiff", "c.webp", "B.Bmp"]):
        file_format = {"g": "PNG", "f": "TIFF", "p": "BMP"}[name[-1].lower()]
        write(tmp_path / "tree" / name, encode(noise(6 + number, 9, number), file_format))
    for name in ["notes.txt", ".hidden.png", "a/._z.tiff", ".cache/q.png", "jpg", "b/x.jpg.part"]:
        write(tmp_path / "tree" / name, encode(noise(3, 3)))
    return tmp_path / "tree"


class TestFolders:
    def test_any_depth_in_sorted_order(self, tree):
        source = FolderSource([str(tree)], 32)
        expected = ["B.Bmp", "a/deep/er/y.png", "a/z.tiff", "b/x.JPG", "c.webp"]
        assert names(source) == [f"{tree}/{name}" for name in expected]
        np.testing.assert_array_equal(source.read(1), noise(7, 9, 1))
        np.testing.assert_array_equal(source.read(4), noise(9, 9, 3))

    def test_reduces(self, tree):
        assert FolderSource([str(tree)], 3).read(0).shape == (3, 3, 3)

    def test_several_folders_keep_their_order(self, tree):
        source = FolderSource([str(tree / "b"), str(tree / "a")], 32)
        assert [name[len(str(tree)) :] for name in names(source)] == [
            "/b/x.JPG",
            "/a/deep/er/y.png",
            "/a/z.tiff",
        ]

    def test_links_are_followed_once(self, tree):
        elsewhere = write(tree.parent / "elsewhere" / "p.png", encode(noise(2, 2)))
        (tree / "a" / "loop").symlink_to(tree)
        (tree / "a" / "itself").symlink_to(tree / "a" / "itself")
        (tree / "link").symlink_to(elsewhere.parent)
        (tree / "broken.png").symlink_to(tree / "nothing")
        (tree / "linked.png").symlink_to(elsewhere)
        source = FolderSource([str(tree)], 32)
        assert len(source) == 7
        assert f"{tree}/link/p.png" in names(source)
        assert f"{tree}/linked.png" in names(source)

    def test_odd_names(self, tmp_path):
        odd = ["naïve 東京.png", "a b'\".png", "two\nlines.png", r"two\nlines.png", "\xa0\x1b.png"]
        shown = [*odd[:2], r"two\nlines.png", r"two\\nlines.png", r"\xc2\xa0\x1b.png"]
        for number, name in enumerate(odd):
            write(tmp_path / name, encode(noise(2, 2, number)))
        raw = os.path.join(os.fsencode(tmp_path), b"latin-\xe9.png")
        with open(raw, "wb") as file:
            file.write(encode(noise(2, 2, 9)))
        source = FolderSource([str(tmp_path)], 32)
        listed = names(source)
        assert {name.removeprefix(f"{tmp_path}/") for name in listed} == {*shown, r"latin-\xe9.png"}
        assert all(name.encode() for name in listed)
        for number, name in enumerate(shown):
            image = source.read(listed.index(f"{tmp_path}/{name}"))
            np.testing.assert_array_equal(image, noise(2, 2, number))
        latin = listed.index(rf"{tmp_path}/latin-\xe9.png")
        np.testing.assert_array_equal(source.read(latin), noise(2, 2, 9))

    def test_unreadable_subfolder_is_left_out(self, tree, monkeypatch):
        scandir = os.scandir

        def refusing(path):
            if os.fsdecode(path).endswith("/a"):
                raise PermissionError(13, "Permission denied")
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refusing)
        assert len(FolderSource([str(tree)], 32)) == 3

    def test_file_that_vanished(self, tree):
        source = FolderSource([str(tree)], 32)
        (tree / "B.Bmp").unlink()
        with pytest.raises(UndecodableImage, match="No such file"):
            source.read(0)

    def test_pickles(self, tree):
        source = FolderSource([str(tree)], 32)
        copy = pickle.loads(pickle.dumps(source))
        assert names(copy) == names(source)
        np.testing.assert_array_equal(copy.read(1), source.read(1))

    def test_many_files_list_fast(self, tmp_path):
        for number in range(3000):
            (tmp_path / f"{number:05d}.jpg").touch()
        start = time.process_time()
        assert len(FolderSource([str(tmp_path)], 32)) == 3000
        assert time.process_time() - start < 1


@pytest.fixture
def shard(tmp_path):
    members = {
        "k1.png": encode(noise(5, 6, 1)),
        "k1.txt": b"a caption",
        "k1.json": b"{}",
        "sub/k2.JPG": encode(noise(7, 8, 2)),
        "sub/._k2.jpg": b"system's notes",
        "東.png": encode(noise(9, 4, 3)),
    }
    return write_tar(tmp_path / "x-000.tar", members)


def read_both(source: ImageSource, answers) -> None:
    answers.put([source.read(0).sum(), source.read(2).sum()])


class TestShards:
    def test_images_only(self, shard):
        source = ShardSource([str(shard)], 32)
        assert names(source) == [f"{shard}:k1.png", f"{shard}:sub/k2.JPG", f"{shard}:東.png"]
        for index, shape in ((2, (9, 4)), (0, (5, 6)), (1, (7, 8))):
            np.testing.assert_array_equal(source.read(index), noise(*shape, index + 1))

    def test_truncated_keeps_what_is_whole(self, shard):
        whole = shard.read_bytes()
        last = whole.index(encode(noise(9, 4, 3)))
        for cut in (last + 20, last - 100, last - 512 - 300):
            shard.write_bytes(whole[:cut])
            source = ShardSource([str(shard)], 32)
            assert len(source) == 2
            np.testing.assert_array_equal(source.read(1), noise(7, 8, 2))

    def test_broken_member(self, tmp_path):
        shard = write_tar(tmp_path / "x.tar", {"a.png": b"", "b.png": encode(noise(2, 2))})
        source = ShardSource([str(shard)], 32)
        with pytest.raises(UndecodableImage):
            source.read(0)
        assert source.read(1).shape == (2, 2, 3)

    def test_braces(self, tmp_path):
        for number in range(8, 12):
            data = encode(noise(2, 2, number))
            write_tar(tmp_path / f"y-{number:03d}.tar", {f"{number}.png": data})
        source = ShardSource([f"{tmp_path}/y-{{009..011}}.tar", f"{tmp_path}/y-008.tar"], 32)
        assert [name.rsplit(":")[-1] for name in names(source)] == [
            "9.png",
            "10.png",
            "11.png",
            "8.png",
        ]
        np.testing.assert_array_equal(source.read(1), noise(2, 2, 10))

    def test_a_name_with_braces_that_exists(self, tmp_path):
        shard = write_tar(tmp_path / "{a,b}.tar", {"1.png": encode(noise(2, 2))})
        assert len(ShardSource([str(shard)], 32)) == 1

    def test_more_shards_than_open_files(self, tmp_path, monkeypatch):
        monkeypatch.setattr("croc.data.shards._OPEN_AT_ONCE", 2)
        shards = [
            str(write_tar(tmp_path / f"{number}.tar", {"x.png": encode(noise(2, 2, number))}))
            for number in range(5)
        ]
        source = ShardSource(shards, 32)
        for number in (0, 1, 2, 3, 4, 0, 3):
            np.testing.assert_array_equal(source.read(number), noise(2, 2, number))

    def test_pipes_are_spooled_and_removed(self, shard, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spool"))
        (tmp_path / "spool").mkdir()
        source = ShardSource([f"pipe:cat '{shard}'", str(shard)], 32)
        assert len(source) == 6
        assert source.name(0) == f"pipe:cat '{shard}':k1.png"
        np.testing.assert_array_equal(source.read(2), source.read(5))
        copy = pickle.loads(pickle.dumps(source))
        np.testing.assert_array_equal(copy.read(2), source.read(2))
        del copy
        assert len(os.listdir(tmp_path / "spool")) == 1
        del source
        assert os.listdir(tmp_path / "spool") == []

    @pytest.mark.parametrize("command", ["cat /no/such.tar", "false", "no-such-command-at-all"])
    def test_failing_pipe(self, command):
        with pytest.raises(UserError, match=f"pipe:{command}"):
            ShardSource([f"pipe:{command}"], 32)

    def test_missing_shard_is_named(self, shard):
        pattern = str(shard).replace("x-000", "x-{000..001}")
        with pytest.raises(UserError, match=r"no such shard: .*x-001\.tar"):
            ShardSource([pattern], 32)

    @pytest.mark.parametrize("data", [b"", b"no tar" * 500])
    def test_no_tar(self, tmp_path, data):
        with pytest.raises(UserError, match="no readable tar"):
            ShardSource([str(write(tmp_path / "z.tar", data))], 32)

    def test_tar_without_images(self, tmp_path):
        with pytest.raises(UserError, match="no images in"):
            ShardSource([str(write_tar(tmp_path / "z.tar", {"a.txt": b"a"}))], 32)

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_other_processes(self, shard, method):
        source = ShardSource([str(shard)], 32)
        expected = [source.read(0).sum(), source.read(2).sum()]
        context = multiprocessing.get_context(method)
        answers = context.SimpleQueue()
        process = context.Process(target=read_both, args=(source, answers))
        process.start()
        assert answers.get() == expected
        process.join()


def test_scenes():
    source = ScenesSource(5, 48, seed=7)
    assert len(source) == 5
    first = source.read(3)
    assert first.shape == (48, 48, 3)
    assert first.dtype == np.uint8
    assert source.read(3) is first
    again = ScenesSource(9, 48, seed=7)
    np.testing.assert_array_equal(again.read(3), first)
    assert not np.array_equal(again.read(4), first)
    assert not np.array_equal(ScenesSource(9, 48, seed=8).read(3), first)


def test_concatenation():
    source = ConcatSource([MemorySource(2), MemorySource(0), MemorySource(3)])
    assert names(source) == ["image 0", "image 1", "image 0", "image 1", "image 2"]
    assert [source.read(index)[0, 0, 0] for index in range(5)] == [0, 1, 0, 1, 2]


class TestOpen:
    def test_folder(self, tree):
        assert isinstance(opened(tree), FolderSource)
        assert len(opened(tree)) == 5

    def test_home(self, tree, monkeypatch):
        monkeypatch.setenv("HOME", str(tree))
        assert len(opened("~/a")) == 2

    def test_shards(self, shard):
        source = opened(f"pipe:cat {shard}", shard)
        assert isinstance(source, ShardSource)
        assert len(source) == 6

    def test_packed(self, tree, tmp_path):
        pack(FolderSource([str(tree)], 32), tmp_path / "packed", 32)
        source = opened(tmp_path / "packed", canvas_px=16)
        assert isinstance(source, PackedSource)
        assert len(source) == 5

    def test_scenes(self):
        source = opened("scenes", scenes=6)
        assert isinstance(source, ScenesSource)
        assert len(source) == 6
        assert source.read(0).shape == (96, 96, 3)
        assert opened("scenes", canvas_px=64).read(0).shape == (64, 64, 3)
        np.testing.assert_array_equal(source.read(1), ScenesSource(6, 96, seed=3).read(1))

    def test_mixed(self, tree, shard):
        source = opened(tree, shard, "scenes", tree, scenes=2)
        assert len(source) == 5 + 3 + 2 + 5
        assert names(source)[5] == f"{shard}:k1.png"
        assert names(source)[-1] == f"{tree}/c.webp"
        np.testing.assert_array_equal(source.read(5), noise(5, 6, 1))

    def test_subfolders(self, tree):
        assert len(opened(tree, subfolders=("b",))) == 1
        assert [name[-5:] for name in names(opened(tree, subfolders=("b", "a")))] == [
            "x.JPG",
            "y.png",
            ".tiff",
        ]
        assert len(opened(tree, subfolders=("train2017", "unlabeled2017"))) == 5

    def test_missing_subfolder_is_named(self, tree):
        with pytest.raises(UserError, match=f"{tree}/unlabeled2017"):
            opened(tree, subfolders=("a", "unlabeled2017"))

    def test_nothing_given(self):
        with pytest.raises(UserError, match=r"say where the photographs are: --data\.root FOLDER"):
            opened()

    def test_missing(self, tmp_path):
        with pytest.raises(UserError, match=r"nowhere does not exist"):
            opened(tmp_path / "nowhere")

    def test_neither(self, tmp_path):
        path = write(tmp_path / "x.zip", b"")
        with pytest.raises(UserError, match=r"x\.zip is neither a folder nor"):
            opened(path)

    def test_compressed_shard_says_how(self, tmp_path):
        path = write(tmp_path / "x.tar.gz", b"\x1f\x8b")
        with pytest.raises(UserError, match="pipe:gzip -dc"):
            opened(path)

    def test_empty_folder(self, tmp_path):
        with pytest.raises(UserError, match=r"no images in .*jpg jpeg png"):
            opened(tmp_path)

    def test_folder_of_shards_says_how(self, shard):
        with pytest.raises(UserError, match=r"\*\.tar"):
            opened(shard.parent)

    def test_messages_are_one_line(self, tmp_path):
        with pytest.raises(UserError) as caught:
            opened(tmp_path)
        assert "\n" not in str(caught.value)


def test_decoding_is_the_same_from_everywhere(tmp_path):
    data = encode(noise(30, 50), "JPEG")
    write(tmp_path / "folder" / "a.jpg", data)
    shard = write_tar(tmp_path / "s.tar", {"a.jpg": data})
    expected = decode_image(data, 20)
    np.testing.assert_array_equal(FolderSource([str(tmp_path / "folder")], 20).read(0), expected)
    np.testing.assert_array_equal(ShardSource([str(shard)], 20).read(0), expected)
