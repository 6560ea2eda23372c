"""Packs: round trip, several files, damage, and interruption that leaves nothing behind."""

import json
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from croc.data.decode import decode_image
from croc.data.pack import pack
from croc.data.sources import FolderSource, PackedSource
from croc.errors import UserError

from .pictures import MemorySource, encode, noise, write


@pytest.mark.parametrize("workers", [0, 2])
def test_round_trip_equals_decoding(tmp_path, workers):
    for number in range(5):
        data = encode(noise(20 + number, 50 - 3 * number, number), "JPEG")
        write(tmp_path / "photographs" / f"{number}.jpg", data)
    broken = write(tmp_path / "photographs" / "2b broken.jpg", b"no image")
    write(tmp_path / "photographs" / "3b\nnew line 東.png", encode(noise(5, 6)))
    source, folder = FolderSource([str(tmp_path / "photographs")], 40), tmp_path / "new" / "packed"
    assert pack(source, folder, 40, workers) == (6, [str(broken)])
    assert os.listdir(tmp_path / "new") == ["packed"]
    assert sorted(os.listdir(folder)) == ["index.npy", "names.txt", "pack.json", "pixels-00000.bin"]
    record = {"format": 1, "canvas_px": 40, "count": 6, "failed": [str(broken)]}
    assert json.loads((folder / "pack.json").read_text()) == record
    packed = PackedSource(str(folder))
    packed.read(0), packed.name(0)
    state = pickle.dumps(packed)
    assert len(state) < 5000, "the mapped pixels must not travel"
    for opened in (packed, pickle.loads(state)):
        readable = [index for index in range(7) if "broken" not in source.name(index)]
        assert len(opened) == 6
        for index, original in enumerate(readable):
            np.testing.assert_array_equal(opened.read(index), source.read(original))
            assert opened.name(index) == source.name(original)


def test_several_pixel_files(tmp_path, monkeypatch):
    monkeypatch.setattr("croc.data.pack._BYTES_PER_FILE", 300)
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


def test_nothing_is_written_if_nothing_can_be_decoded(tmp_path):
    with pytest.raises(UserError, match="no image can be decoded"):
        pack(MemorySource(2, broken=(0, 1)), tmp_path / "packed", 40)
    assert os.listdir(tmp_path) == []


SLOW_PACK = """
import sys, time
from croc.data.pack import pack
from tests.data.pictures import MemorySource
class Slow(MemorySource):
    def read(self, index):
        time.sleep(0.01)
        return super().read(index)
pack(Slow(1000), sys.argv[1], 40, workers=1)
"""


def test_stopped_leaves_nothing(tmp_path):
    """Neither files nor processes: workers keep the pipe open as long as they live."""
    command = [sys.executable, "-c", SLOW_PACK, str(tmp_path / "packed")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 30
    while not any(file.stat().st_size for file in tmp_path.glob(".packed-*/pixels-00000.bin")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    try:
        _, errors = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert b"KeyboardInterrupt" in errors
    assert process.returncode != 0
    assert os.listdir(tmp_path) == []


class Killed(MemorySource):
    def read(self, index: int) -> np.ndarray:
        if index == 900:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


class Full(MemorySource):
    def read(self, index: int) -> np.ndarray:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
        return super().read(index)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [(Killed, UserError, r"a worker was killed"), (Full, OSError, "too large")],
)
def test_a_worker_that_fails_leaves_nothing(tmp_path, source, error, message):
    with pytest.raises(error, match=message):
        pack(source(1000), tmp_path / "packed", 40, workers=2)
    assert os.listdir(tmp_path) == []
    assert not multiprocessing.active_children()


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def miscount(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"count": 7}))


@pytest.mark.parametrize(
    ("name", "damage"),
    [("pixels-00000.bin", shorten), ("index.npy", Path.unlink), ("pack.json", miscount)],
)
def test_damaged_pack(tmp_path, name, damage):
    pack(MemorySource(8), tmp_path / "packed", 40)
    damage(tmp_path / "packed" / name)
    with pytest.raises(UserError, match=r"damaged.*pack again"):
        PackedSource(str(tmp_path / "packed"))
