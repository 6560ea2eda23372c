"""Tar shards that are cut, forged or odd: a line each, and nothing is written anywhere."""

import gzip
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from croc.data.decode import UndecodableImage
from croc.data.shards import ShardSource
from croc.errors import UserError
from tests.data.pictures import encode, noise

BLOCK = tarfile.BLOCKSIZE


def header(name: str, data: bytes = b"", **fields) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def member(name: str, data: bytes = b"", form: int = tarfile.GNU_FORMAT, **fields) -> bytes:
    """A header, its data and what fills the last block."""
    return header(name, data, **fields).tobuf(form) + data + bytes(-len(data) % BLOCK)


def picture(number: int) -> bytes:
    return encode(noise(6, 7, number))


def good(number: int) -> bytes:
    return member(f"{number}.png", picture(number))


END = bytes(2 * BLOCK)
ONE = len(good(0))
BEYOND = 1 << 40


def shard_of(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def names(source: ShardSource) -> list[str]:
    return [source.name(index).rsplit(":", 1)[1] for index in range(len(source))]


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path: Path):
    """But the shards themselves, which lie in a folder inside a folder."""
    inside = tmp_path / "inside"
    inside.mkdir()
    yield
    assert os.listdir(tmp_path) == ["inside"]
    assert all(name.endswith(".tar") for name in os.listdir(inside))
    assert not os.path.exists("/etc/x.png")


@pytest.fixture
def opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A shard of such bytes, and the lines that were said about it."""

    def open_shard(data: bytes) -> tuple[ShardSource, list[str]]:
        began = time.monotonic()
        path = shard_of(tmp_path / "inside" / "x.tar", data)
        try:
            return ShardSource([str(path)], 32), capsys.readouterr().err.splitlines()
        finally:
            assert time.monotonic() - began < 10

    return open_shard


def test_a_whole_shard_has_nothing_to_say(opened: Callable):
    source, said = opened(good(0) + good(1) + END)
    assert names(source) == ["0.png", "1.png"]
    assert said == []


@pytest.mark.parametrize(
    "cut",
    [2 * ONE, 2 * ONE + 1, 2 * ONE + 300, 2 * ONE + BLOCK, 2 * ONE + BLOCK + 20, 3 * ONE - 500],
    ids=[
        "before a header",
        "a byte",
        "in a header",
        "after it",
        "in an image",
        "in its last block",
    ],
)
def test_cut_off(opened: Callable, cut: int):
    whole = good(0) + good(1) + good(2) + good(3)
    source, said = opened(whole[:cut])
    assert names(source)[:2] == ["0.png", "1.png"]
    assert len(source) <= 3
    assert sum("is cut off or damaged" in line for line in said) == 1
    for number in range(2):
        np.testing.assert_array_equal(source.read(number), noise(6, 7, number))


def test_a_damaged_header_in_the_midst(opened: Callable):
    whole = bytearray(good(0) + good(1) + good(2) + END)
    whole[ONE + 120] ^= 1
    source, said = opened(bytes(whole))
    assert names(source) == ["0.png"]
    assert len(said) == 1
    assert f"before byte {ONE:,} are used" in said[0]


def test_names_that_lead_elsewhere_are_but_names(opened: Callable):
    odd = ["../x.png", "/etc/x.png", "a/../../../x.png", "./x.png"]
    source, said = opened(b"".join(member(name, picture(at)) for at, name in enumerate(odd)) + END)
    assert names(source) == odd
    for number in range(4):
        np.testing.assert_array_equal(source.read(number), noise(6, 7, number))
    assert said == []


def test_links_and_devices_are_left_out_and_counted(opened: Callable):
    kinds = [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
    links = [
        member(f"l{at}.png", type=kind, linkname="/etc/passwd") for at, kind in enumerate(kinds)
    ]
    folder = member("folder.png", type=tarfile.DIRTYPE)
    source, said = opened(good(0) + b"".join(links) + folder + good(1) + END)
    assert names(source) == ["0.png", "1.png"]
    assert len(said) == 1
    assert said[0].endswith("x.tar: images left out: 2 links, 2 no files")


def test_sparse_members_are_left_out_and_counted(opened: Callable):
    """Of the old kind, in the header, and of the new, in an extended header."""
    data = picture(5)
    old = bytearray(header("old.png", data, type=tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    old[386:410] = b"00000000000\0" + f"{len(data):011o}\0".encode()
    old[483:495] = b"00000010000\0"
    old[148:156] = b" " * 8
    old[148:156] = f"{sum(old):06o}\0 ".encode()
    new = header("new.png", data)
    new.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,9"}
    new.pax_headers |= {"GNU.sparse.size": "4096", "GNU.sparse.name": "new.png"}
    filled = data + bytes(-len(data) % BLOCK)
    both = bytes(old) + filled + new.tobuf(tarfile.PAX_FORMAT) + filled
    source, said = opened(good(0) + both + good(1) + END)
    assert names(source) == ["0.png", "1.png"]
    np.testing.assert_array_equal(source.read(1), noise(6, 7, 1))
    assert said[0].endswith("images left out: 2 sparse")


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_odd_names(opened: Callable, form: int):
    long, odd = "d/" * 400 + "x" * 200 + ".png", "two\nlines 東.png"
    both = member(long, picture(0), form) + member(odd, picture(1), form)
    source, said = opened(both + END)
    assert names(source) == [long, r"two\nlines 東.png"]
    np.testing.assert_array_equal(source.read(0), noise(6, 7, 0))
    assert said == []


def test_names_that_occur_twice_are_two_images(opened: Callable):
    source, _ = opened(member("a.png", picture(0)) + member("a.png", picture(1)) + END)
    assert names(source) == ["a.png", "a.png"]
    for number in range(2):
        np.testing.assert_array_equal(source.read(number), noise(6, 7, number))


def test_an_empty_member_is_a_broken_file(opened: Callable):
    source, _ = opened(member("a.png") + good(0) + END)
    with pytest.raises(UndecodableImage):
        source.read(0)


def test_an_image_of_gigabytes_is_a_broken_file(tmp_path: Path):
    path, size = tmp_path / "inside" / "x.tar", 1 << 32
    with open(path, "wb") as file:  # a hole: it takes no room on the disk
        file.write(header("x.bmp", size=size).tobuf(tarfile.GNU_FORMAT))
        file.seek(size, os.SEEK_CUR)
        file.write(good(0) + END)
    source = ShardSource([str(path)], 32)
    assert names(source) == ["x.bmp", "0.png"]
    with pytest.raises(UndecodableImage, match="too large"):
        source.read(0)


@pytest.mark.parametrize("size", [BEYOND, 1 << 87, -1, -BLOCK, -BLOCK - ONE, -(1 << 40)])
def test_a_size_that_cannot_be(opened: Callable, size: int):
    """Beyond the file, beyond all files, and back to where it began."""
    forged = header("x.png", size=size).tobuf(tarfile.GNU_FORMAT)
    source, said = opened(good(0) + forged + good(1) + END)
    assert "x.png" not in names(source)
    assert names(source)[0] == "0.png"
    assert sum("is cut off or damaged" in line for line in said) <= 1
    assert any("left out: 1 not whole" in line for line in said)


@pytest.mark.parametrize("size", ["-1024", "-99999999", "9" * 30, "1e9"])
def test_a_size_that_cannot_be_in_an_extended_header(opened: Callable, size: str):
    extended = header("x.png", picture(1))
    extended.pax_headers = {"size": size}
    forged = extended.tobuf(tarfile.PAX_FORMAT) + picture(1) + bytes(-len(picture(1)) % BLOCK)
    source, said = opened(good(0) + forged + good(1) + END)
    assert names(source)[0] == "0.png"
    assert said


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"X"])
def test_a_long_name_that_claims_all_memory(opened: Callable, kind: bytes):
    forged = header("././@LongLink", size=BEYOND, type=kind).tobuf(tarfile.GNU_FORMAT)
    source, said = opened(good(0) + forged + good(1) + END)
    assert names(source) == ["0.png"]
    assert len(said) == 1


def test_headers_without_end(opened: Callable):
    """Each of them waits for the one after it."""
    source, said = opened(good(0) + member("././@LongLink", b"x", type=b"L") * 5000 + good(1) + END)
    assert names(source) == ["0.png"]
    assert len(said) == 1


@pytest.mark.parametrize(
    "data",
    [b"", b"x", good(0)[:300], gzip.compress(good(0) + END), b"no tar" * 500, bytes(BLOCK * 3)],
    ids=["empty", "a byte", "cut in its first header", "gzip", "text", "zeros"],
)
def test_no_tar_at_all(opened: Callable, data: bytes):
    with pytest.raises(UserError, match=r"no readable tar|no images in") as caught:
        opened(data)
    assert "\n" not in str(caught.value)


def test_a_named_pipe_does_not_hang(tmp_path: Path):
    os.mkfifo(tmp_path / "inside" / "x.tar")
    with pytest.raises(UserError, match="is no file: pass 'pipe:cat"):
        ShardSource([str(tmp_path / "inside" / "x.tar")], 32)


def test_any_flipped_bits(opened: Callable):
    """Whatever is read of it are pictures; else it is refused in a line."""
    whole = good(0) + member("d/" * 90 + "1.png", picture(1)) + good(2) + END
    draw, refused = np.random.default_rng(0), []
    for _ in range(300):
        data = bytearray(whole)
        for at in draw.integers(0, len(data), 6):
            data[at] ^= 1 << int(draw.integers(8))
        try:
            source, said = opened(bytes(data))
        except UserError as error:
            refused += str(error).splitlines()[1:]
            continue
        assert all(line.startswith("croc: ") for line in said)
        for index in range(len(source)):
            assert "\n" not in source.name(index)
            try:
                source.read(index)
            except UndecodableImage:
                continue
    assert refused == []


def test_a_pipe_that_is_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = shard_of(tmp_path / "inside" / "x.tar", good(0) + good(1) + END)
    source = ShardSource([f"pipe:head -c {ONE + 700} '{path}'"], 32)
    assert names(source) == ["0.png"]
    assert "is cut off or damaged" in capsys.readouterr().err
