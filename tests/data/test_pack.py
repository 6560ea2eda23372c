import json
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from croc.data.decode import decode_image
from croc.data.pack import pack
from croc.data.packed import PackedSource
from croc.data.sources import FolderSource
from croc.errors import UserError

from .pictures import MemorySource, encode, noise, write


@pytest.fixture
def photographs(tmp_path):
    folder = tmp_path / "photographs"
    for number in range(7):
        data = encode(noise(20 + number, 50 - 3 * number, number), "JPEG")
        write(folder / f"{number}.jpg", data)
    write(folder / "2b broken.jpg", b"no image")
    write(folder / "3b\nnew line 東.png", encode(noise(5, 6)))
    return FolderSource([str(folder)], 40)


@pytest.mark.parametrize("workers", [0, 2])
def test_round_trip_equals_decoding(photographs, tmp_path, workers):
    report = pack(photographs, tmp_path / "packed", 40, workers)
    packed = PackedSource(str(tmp_path / "packed"))
    readable = [index for index in range(9) if "broken" not in photographs.name(index)]
    assert len(packed) == report.count == 8
    for index, original in enumerate(readable):
        np.testing.assert_array_equal(packed.read(index), photographs.read(original))
        assert packed.name(index) == photographs.name(original)
    assert report.failed == (f"{tmp_path}/photographs/2b broken.jpg",)
    assert report.folder == tmp_path / "packed"


def test_what_is_written(photographs, tmp_path):
    report = pack(photographs, tmp_path / "new" / "packed", 40)
    folder = tmp_path / "new" / "packed"
    assert sorted(os.listdir(folder)) == ["index.npy", "names.txt", "pack.json", "pixels-00000.bin"]
    assert os.listdir(tmp_path / "new") == ["packed"]
    description = json.loads((folder / "pack.json").read_text())
    assert description == {
        "format": 1,
        "canvas_px": 40,
        "count": 8,
        "failed": [f"{tmp_path}/photographs/2b broken.jpg"],
    }
    assert len((folder / "names.txt").read_text().splitlines()) == 8
    sizes = [PackedSource(str(folder)).read(index).size for index in range(8)]
    assert (folder / "pixels-00000.bin").stat().st_size == sum(sizes) == report.pixel_bytes


def test_several_pixel_files(tmp_path, monkeypatch):
    monkeypatch.setattr("croc.data.pack._BYTES_A_FILE", 300)
    source = MemorySource(20)
    pack(source, tmp_path / "packed", 16)
    assert len(list((tmp_path / "packed").glob("pixels-*.bin"))) > 3
    packed = PackedSource(str(tmp_path / "packed"))
    for index in range(20):
        np.testing.assert_array_equal(packed.read(index), source.read(index))


def test_reduces_while_packing_and_while_reading(tmp_path):
    data = encode(noise(60, 90))
    write(tmp_path / "in" / "a.png", data)
    pack(FolderSource([str(tmp_path / "in")], 90), tmp_path / "packed", 60)
    packed = PackedSource(str(tmp_path / "packed"))
    np.testing.assert_array_equal(packed.read(0), decode_image(data, 60))
    assert PackedSource(str(tmp_path / "packed"), 30).read(0).shape == (20, 30, 3)
    assert PackedSource(str(tmp_path / "packed"), 600).read(0).shape == (40, 60, 3)


def test_pickles_after_use(photographs, tmp_path):
    pack(photographs, tmp_path / "packed", 40)
    packed = PackedSource(str(tmp_path / "packed"))
    first, name = packed.read(0), packed.name(0)
    state = pickle.dumps(packed)
    assert len(state) < 5000, "the mapped pixels must not travel"
    copy = pickle.loads(state)
    np.testing.assert_array_equal(copy.read(0), first)
    assert copy.name(0) == name


def test_nothing_is_overwritten(photographs, tmp_path):
    (tmp_path / "there").mkdir()
    write(tmp_path / "file", b"mine")
    for target in ("there", "file"):
        with pytest.raises(UserError, match="exists already"):
            pack(photographs, tmp_path / target, 40)
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert os.listdir(tmp_path / "there") == []


def test_all_broken(tmp_path):
    with pytest.raises(UserError, match="none of the 3 images"):
        pack(MemorySource(3, broken=(0, 1, 2)), tmp_path / "packed", 40)
    assert os.listdir(tmp_path) == []


class Interrupting(MemorySource):
    def read(self, index: int) -> np.ndarray:
        if index == 5:
            raise KeyboardInterrupt
        return super().read(index)


def test_interrupted_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        pack(Interrupting(9), tmp_path / "packed", 40)
    assert os.listdir(tmp_path) == []


SLOW_PACK = """
import sys, time
from croc.data.pack import pack
from tests.data.pictures import MemorySource
class Slow(MemorySource):
    def read(self, index):
        time.sleep(0.05)
        return super().read(index)
pack(Slow(10_000), sys.argv[1], 40, workers=1)
"""


@pytest.mark.parametrize("notice", [signal.SIGINT, signal.SIGTERM])
def test_stopped_leaves_nothing(tmp_path, notice):
    """Neither files nor processes: the workers hold the pipe open as long as one lives."""
    command = [sys.executable, "-c", SLOW_PACK, str(tmp_path / "packed")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(".packed-*/pixels-00000.bin")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, notice)
    try:
        _, errors = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert b"KeyboardInterrupt" in errors
    assert process.returncode != 0
    assert os.listdir(tmp_path) == []


def test_cannot_write(photographs, tmp_path):
    write(tmp_path / "file", b"")
    with pytest.raises(UserError, match="cannot write"):
        pack(photographs, tmp_path / "file" / "packed", 40)


def damage(folder, how: str) -> None:
    pixels = folder / "pixels-00000.bin"
    if how.startswith("no "):
        (folder / how[3:]).unlink()
    elif how == "short":
        pixels.write_bytes(pixels.read_bytes()[:-1])
    elif how == "long":
        pixels.write_bytes(pixels.read_bytes() + b"\0")
    elif how == "json":
        (folder / "pack.json").write_text("{")
    elif how == "count":
        description = json.loads((folder / "pack.json").read_text())
        (folder / "pack.json").write_text(json.dumps(description | {"count": 7}))
    elif how == "index":
        (folder / "index.npy").write_bytes(b"garbage")
    elif how == "negative":
        index = np.load(folder / "index.npy")
        index[3, 1] = -1
        np.save(folder / "index.npy", index)


@pytest.mark.parametrize(
    "how",
    [
        "no pixels-00000.bin",
        "no names.txt",
        "no index.npy",
        "no pack.json",
        "short",
        "long",
        "json",
        "count",
        "index",
        "negative",
    ],
)
def test_damaged_pack(photographs, tmp_path, how):
    pack(photographs, tmp_path / "packed", 40)
    damage(tmp_path / "packed", how)
    with pytest.raises(UserError, match=r"damaged.*pack again"):
        PackedSource(str(tmp_path / "packed"))


def test_future_format(photographs, tmp_path):
    pack(photographs, tmp_path / "packed", 40)
    path = tmp_path / "packed" / "pack.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(UserError, match="pack format 2"):
        PackedSource(str(tmp_path / "packed"))
