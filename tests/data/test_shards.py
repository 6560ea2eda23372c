"""Tar shards: read at random; damaged, forged or odd ones give one line and write nothing."""

import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from croc.data.decode import UndecodableImage
from croc.data.sources import ShardSource, expand_braces

from .pictures import encode, noise, write_tar

BLOCK = tarfile.BLOCKSIZE


def header(name: str, data: bytes = b"", **fields) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def filled(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def member(name: str, data: bytes = b"", form: int = tarfile.GNU_FORMAT, **fields) -> bytes:
    return header(name, data, **fields).tobuf(form) + filled(data)


def picture(number: int) -> bytes:
    return encode(noise(6, 7, number))


def good(number: int) -> bytes:
    return member(f"{number}.png", picture(number))


END = bytes(2 * BLOCK)
ONE = len(good(0))
BEYOND = 1 << 40


def names(source: ShardSource) -> list[str]:
    return [source.name(index).rsplit(":", 1)[1] for index in range(len(source))]


def assert_pictures(source: ShardSource, *numbers: int) -> None:
    for index, number in enumerate(numbers):
        np.testing.assert_array_equal(source.read(index), noise(6, 7, number))


@pytest.fixture
def opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A shard of these bytes, and the lines printed about it; nothing else is written."""

    def open_shard(data: bytes) -> tuple[ShardSource, list[str]]:
        began = time.monotonic()
        path = tmp_path / "inside" / "x.tar"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        try:
            return ShardSource([str(path)], 32), capsys.readouterr().err.splitlines()
        finally:
            assert time.monotonic() - began < 10

    yield open_shard
    assert [path.name for path in tmp_path.rglob("*")] == ["inside", "x.tar"]
    assert not os.path.exists("/etc/x.png")


@pytest.mark.parametrize(
    "cut",
    [2 * ONE, 2 * ONE + 1, 2 * ONE + 300, 2 * ONE + BLOCK, 2 * ONE + BLOCK + 20, 3 * ONE - 500],
)
def test_truncated(opened: Callable, cut: int):
    """Before and in a header, after it, in an image and in its last block."""
    whole = good(0) + good(1) + good(2) + good(3)
    source, printed = opened(whole[:cut])
    assert names(source)[:2] == ["0.png", "1.png"]
    assert len(source) <= 3
    assert sum("is truncated or damaged" in line for line in printed) == 1
    assert_pictures(source, 0, 1)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_odd_names_are_just_names(opened: Callable, form: int):
    odd = ["../x.png", "/etc/x.png", "a/../../../x.png", "a.png", "a.png", "two\nlines 東.png"]
    odd.append("d/" * 400 + "x" * 200 + ".png")
    members = (member(name, picture(number), form) for number, name in enumerate(odd))
    source, printed = opened(b"".join(members) + END)
    assert names(source) == [name.replace("\n", r"\n") for name in odd]
    assert_pictures(source, *range(len(odd)))
    assert printed == []


def test_links_and_devices_are_left_out_and_counted(opened: Callable):
    kinds = [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
    links = b"".join(member("l.png", type=kind, linkname="/etc/passwd") for kind in kinds)
    folder = member("folder.png", type=tarfile.DIRTYPE)
    source, printed = opened(good(0) + links + folder + good(1) + END)
    assert names(source) == ["0.png", "1.png"]
    assert_pictures(source, 0, 1)
    assert len(printed) == 1
    assert "x.tar: 4 images left out" in printed[0]


def test_an_image_of_gigabytes_is_undecodable(tmp_path: Path):
    path, size = tmp_path / "x.tar", 1 << 32
    with open(path, "wb") as file:  # a hole: it takes no room on the disk
        file.write(header("x.bmp", size=size).tobuf(tarfile.GNU_FORMAT))
        file.seek(size, os.SEEK_CUR)
        file.write(good(0) + END)
    source = ShardSource([str(path)], 32)
    assert names(source) == ["x.bmp", "0.png"]
    with pytest.raises(UndecodableImage, match="too large"):
        source.read(0)


def extended(size: str) -> bytes:
    info = header("x.png", picture(1))
    info.pax_headers = {"size": size}
    return info.tobuf(tarfile.PAX_FORMAT) + filled(picture(1))


@pytest.mark.parametrize(
    "forged",
    [
        # Beyond the file, beyond all files, and back to where it began.
        *(
            header("x.png", size=size).tobuf(tarfile.GNU_FORMAT)
            for size in (BEYOND, 1 << 87, -1, -BLOCK, -BLOCK - ONE, -(1 << 40))
        ),
        *map(extended, ("-1024", "-99999999", "9" * 30)),
        # Claims all memory.
        header("././@LongLink", size=BEYOND, type=b"L").tobuf(tarfile.GNU_FORMAT),
        header("././@LongLink", size=BEYOND, type=b"x").tobuf(tarfile.GNU_FORMAT),
        # Each waits for the one after it.
        member("././@LongLink", b"x", type=b"L") * 5000,
    ],
)
def test_forged_sizes(opened: Callable, forged: bytes):
    source, printed = opened(good(0) + forged + good(1) + END)
    assert names(source)[0] == "0.png"
    assert set(names(source)) <= {"0.png", "1.png"}
    assert_pictures(source, 0)
    assert printed


def test_only_images_are_read_in_any_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    members = {
        "k1.png": picture(1),
        "k1.txt": b"a caption",
        "sub/k2.JPG": picture(2),
        "sub/._k2.jpg": b"metadata",
        "empty.png": b"",
    }
    source = ShardSource([str(write_tar(tmp_path / "x.tar", members))], 32)
    assert names(source) == ["k1.png", "sub/k2.JPG", "empty.png"]
    assert capsys.readouterr().err == ""
    for index in (1, 0):
        np.testing.assert_array_equal(source.read(index), noise(6, 7, index + 1))
    with pytest.raises(UndecodableImage):
        source.read(2)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("x.tar", "x.tar"),
        ("y-{009..011}.tar", "y-009.tar y-010.tar y-011.tar"),
        ("{8..10}-{0..1}", "8-0 8-1 9-0 9-1 10-0 10-1"),
        ("{a,b}{000..009", "{a,b}{000..009"),
    ],
)
def test_braces_expand_as_in_bash(pattern: str, expected: str):
    assert expand_braces(pattern) == expected.split()


def test_several_shards_and_one_whose_name_has_braces(tmp_path: Path):
    for number in range(3):
        (tmp_path / f"{number}.tar").write_bytes(good(number) + END)
    literal = tmp_path / "{a,b}.tar"
    literal.write_bytes(good(9) + END)
    source = ShardSource([f"{tmp_path}/{{0..2}}.tar", str(literal)], 32)
    assert_pictures(source, 0, 1, 2, 9)
