"""Sources of images: folders, tar shards, packs and synthetic scenes."""

import contextlib
import json
import os
import re
import sys
import tarfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from croc.config import DataConfig
from croc.data.decode import (
    IMAGE_EXTENSIONS,
    STORAGE_ERRORS,
    UndecodableImage,
    decode_image,
    downscale_image,
)
from croc.data.scenes import make_scene
from croc.errors import UserError
from croc.signals import is_first_process

Item = TypeVar("Item")
SCENE_PX = 96
PAUSES_S = (1, 5, 25)
"""Before an image is read again after a fault of the storage."""
PACK_FORMAT = 1
_SUFFIXES = tuple(f".{extension}".encode() for extension in IMAGE_EXTENSIONS)
# A member is read in one piece; the largest image that is decoded has about this size uncompressed.
_MAX_MEMBER_BYTES = 1 << 29


@runtime_checkable
class ImageSource(Protocol):
    """Images by number. Picklable, because the loader's workers get a copy."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """How the log refers to the image."""
        ...

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        """The image, downscaled; raises UndecodableImage and nothing else."""
        ...


def open_source(config: DataConfig, seed: int) -> ImageSource:
    """The images of all roots, in this order; consecutive roots of one kind are opened together."""
    if not config.root:
        raise UserError("no images given: pass --data.root FOLDER")
    sources: list[ImageSource] = []
    for kind, group in groupby(map(os.path.expanduser, config.root), key=_kind):
        roots = list(group)
        if kind == "scenes":
            size_px = min(SCENE_PX, config.max_side_px)
            sources += [ScenesSource(config.scenes, size_px, seed) for _ in roots]
        elif kind == "shards":
            sources.append(ShardSource(roots, config.max_side_px))
        elif kind == "packed":
            sources += [PackedSource(root, config.max_side_px) for root in roots]
        else:
            folders = [folder for root in roots for folder in _subfolders(root, config.subfolders)]
            sources.append(FolderSource(folders, config.max_side_px))
    return sources[0] if len(sources) == 1 else ConcatSource(sources)


def _kind(root: str) -> str:
    if root == "scenes":
        return "scenes"
    if os.path.isdir(root):
        return "packed" if os.path.exists(os.path.join(root, "pack.json")) else "folder"
    if root.endswith((".tar", ".tar.gz", ".tgz")):
        return "shards"
    problem = "is neither a folder nor a .tar shard" if os.path.exists(root) else "does not exist"
    raise UserError(f"{root} {problem}: pass a folder or .tar shards as --data.root")


def _subfolders(root: str, names: tuple[str, ...]) -> list[str]:
    """The recipe's subfolders of a root, or the root itself if it has none of them."""
    paths = [os.path.join(root, name) for name in names]
    missing = [path for path in paths if not os.path.isdir(path)]
    if len(missing) == len(paths):
        return [root]
    if missing:
        raise UserError(
            f"this recipe also needs {' and '.join(missing)}: put the images there, "
            f"or choose other folders with --data.subfolders"
        )
    return paths


def printable(name: bytes) -> str:
    """On one line, for logs, with other characters escaped; different names stay different."""
    text = name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def is_image(name: bytes) -> bool:
    """By its name; `._photo.jpg` and the like are metadata of an operating system."""
    return name.lower().endswith(_SUFFIXES) and not name.startswith(b".")


class FolderSource:
    """The images under some folders: folder by folder, each sorted by the bytes of its paths.

    Hidden files and folders are left out.
    """

    def __init__(self, folders: Sequence[str], canvas_px: int) -> None:
        self.canvas_px = canvas_px
        # An array: counting references to the items of a list would copy it in each forked worker.
        self._paths = np.array([path for folder in folders for path in _list_images(folder)])

    def __len__(self) -> int:
        return len(self._paths)

    def name(self, index: int) -> str:
        return printable(self._paths[index])

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        def read() -> UInt8[np.ndarray, "h w 3"]:
            with open(self._paths[index], "rb") as stream:
                return decode_image(stream, self.canvas_px)

        return _patiently(read)


def _patiently(read: Callable[[], Item]) -> Item:
    """Read again after a fault of the storage, such as a stale handle of a network file system:
    else good files would be taken for broken ones."""
    pauses = iter(PAUSES_S)
    while True:
        try:
            return read()
        except OSError as error:
            pause = next(pauses, None) if error.errno in STORAGE_ERRORS else None
            if pause is None:
                raise UndecodableImage(f"cannot be read: {error.strerror}") from error
            time.sleep(pause)


def _list_images(folder: str) -> list[bytes]:
    names = os.listdir(folder)  # which raises without permission
    if paths := sorted(walk_images(os.fsencode(folder))):
        return paths
    if any(name.endswith(".tar") for name in names):
        advice = f"to read its shards pass --data.root {folder}/*.tar"
    else:
        advice = "pass another --data.root"
    extensions = " ".join(IMAGE_EXTENSIONS)
    raise UserError(f"no images in {folder} (searched at any depth for {extensions}): {advice}")


def read_images(
    source: ImageSource, order: Iterable[int]
) -> Iterator[tuple[int, UInt8[np.ndarray, "h w 3"]]]:
    """Indices and images in this order, without those that cannot be decoded."""
    for index in order:
        with contextlib.suppress(UndecodableImage):
            yield index, source.read(index)


def walk_images(root: bytes) -> Iterator[bytes]:
    """Each folder is visited once, however many links lead to it, so that cycles end."""
    visited: set[tuple[int, int]] = set()
    pending = [root]
    while pending:
        folder = pending.pop()
        try:
            status = os.stat(folder)
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name, reverse=True)
        except OSError:  # no permission, or deleted since it was listed
            continue
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        for entry in entries:
            try:
                if is_image(entry.name) and entry.is_file():
                    yield entry.path
                elif not entry.name.startswith(b".") and entry.is_dir():
                    pending.append(entry.path)
            except OSError:  # a link to itself
                continue


class ShardSource:
    """The images in tar shards (WebDataset), shard by shard: indexed once, then read by offset."""

    def __init__(self, shards: Sequence[str], canvas_px: int) -> None:
        self.canvas_px = canvas_px
        self._shards: list[str] = []
        for pattern in shards:  # the name of an existing file may contain braces
            self._shards += [pattern] if os.path.exists(pattern) else expand_braces(pattern)
        indexed = enumerate(map(_index_shard, self._shards))
        members = [(number, *image) for number, images in indexed for image in images]
        if not members:
            raise UserError(f"no images in {', '.join(shards)}: pass another --data.root")
        self._names = np.array([name for _, name, _, _ in members])
        self._places = np.array([(number, at, size) for number, _, at, size in members], np.int64)

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        shard = os.fsencode(self._shards[self._places[index, 0]])
        return f"{printable(shard)}:{printable(self._names[index])}"

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        shard, offset, size = self._places[index].tolist()
        if size > _MAX_MEMBER_BYTES:
            raise UndecodableImage(f"too large: {size:,} bytes")

        def read() -> bytes:
            with open(self._shards[shard], "rb") as file:
                file.seek(offset)
                return file.read(size)

        return decode_image(_patiently(read), self.canvas_px)


def expand_braces(text: str) -> list[str]:
    """As bash does: 'x-{000..009}.tar' becomes ten names."""
    braces = re.search(r"\{(\d+)\.\.(\d+)\}", text)
    if not braces:
        return [text]
    first, last = braces.groups()
    numbers = (f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1))
    starts = (text[: braces.start()] + number for number in numbers)
    rests = expand_braces(text[braces.end() :])
    return [start + rest for start in starts for rest in rests]


def _index_shard(path: str) -> list[tuple[bytes, int, int]]:
    """Name, offset and size of each complete image; prints what is left out.

    Nothing is unpacked, so a name that points elsewhere (../x.jpg) is just a name.
    """
    if not os.path.isfile(path):  # opening a named pipe would block forever
        raise UserError(f"no such shard: {path}")
    try:
        archive = tarfile.open(path, "r:")  # noqa: SIM115, closed below
    except Exception as error:  # on forged headers tarfile raises more than its own errors
        raise UserError(
            f"{path} is not a readable tar archive ({error}): if it is compressed, unpack it first "
            f"(gzip -d {path})"
        ) from error
    images: list[tuple[bytes, int, int]] = []
    left_out, last, is_complete, length = 0, -1, False, os.path.getsize(path)
    with archive, open(path, "rb") as file:
        try:  # up to the end or the first damage; a negative size would lead back, endlessly
            while (member := archive.next()) is not None and member.offset > last:
                last, name = member.offset, os.fsencode(member.name)
                if not is_image(os.path.basename(name)) or member.isdir():
                    continue
                is_whole = 0 <= member.size <= length - member.offset_data
                if is_whole and member.isreg():
                    images.append((name, member.offset_data, member.size))
                else:
                    left_out += 1
            file.seek(archive.offset)
            end = file.read(tarfile.BLOCKSIZE)
            is_complete = member is None and end == bytes(tarfile.BLOCKSIZE)
        except Exception:  # the images before it are good
            is_complete = False
    if not is_complete:
        _warn(f"{path} is truncated or damaged: only images before byte {archive.offset:,} used")
    if left_out:
        _warn(f"{path}: {left_out} images left out (links, special or incomplete files)")
    return images


def _warn(line: str) -> None:
    if is_first_process():
        print(f"croc: {line}", file=sys.stderr)


class PackedSource:
    """The images of a pack, memory-mapped and shared by all processes."""

    def __init__(self, folder: str, canvas_px: int | None = None) -> None:
        self.folder = Path(folder)
        self._files: dict[int, np.memmap] = {}
        self._names: list[str] = []
        try:
            record = json.loads((self.folder / "pack.json").read_text(encoding="utf-8"))
            self._index = np.load(self.folder / "index.npy", allow_pickle=False)
            self.canvas_px = canvas_px or int(record["canvas_px"])
            if record["format"] != PACK_FORMAT or self._index.shape != (record["count"], 4):
                raise ValueError("pack.json does not fit")
            for number in np.unique(self._index[:, 0]).tolist():  # an incomplete copy
                _, offset, height, width = self._index[self._index[:, 0] == number].T
                if self._path(number).stat().st_size != (offset + 3 * height * width).max():
                    raise ValueError(f"{self._path(number).name} is incomplete")
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise UserError(
                f"the pack in {folder} is damaged or of another version "
                f"({type(error).__name__}: {error}): delete and pack again"
            ) from error

    def _path(self, number: int) -> Path:
        return self.folder / f"pixels-{number:05d}.bin"

    def __len__(self) -> int:
        return len(self._index)

    def name(self, index: int) -> str:
        if not self._names:
            lines = (self.folder / "names.txt").read_text(encoding="ascii").splitlines()
            self._names = [json.loads(line) for line in lines]
        return self._names[index]

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        number, offset, height, width = self._index[index].tolist()
        if number not in self._files:
            self._files[number] = np.memmap(self._path(number), np.uint8, "r")
        planes = np.asarray(self._files[number][offset : offset + 3 * height * width])
        return downscale_image(planes.reshape(3, height, width).transpose(1, 2, 0), self.canvas_px)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}, "_names": []}


class ScenesSource:
    """Synthetic scenes, drawn when they are first read and then kept in memory."""

    def __init__(self, count: int, size_px: int = SCENE_PX, seed: int = 0) -> None:
        self.size_px, self.seed = size_px, seed
        self._images: list[UInt8[np.ndarray, "h w 3"] | None] = [None] * count

    def __len__(self) -> int:
        return len(self._images)

    def name(self, index: int) -> str:
        return f"scene {index}"

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        image = self._images[index]
        if image is None:
            image = self._images[index] = make_scene(self.seed, index, self.size_px).image
        return image


class ConcatSource:
    """Several sources, one after the other."""

    def __init__(self, sources: Sequence[ImageSource]) -> None:
        self.sources = tuple(sources)
        self._starts = [0, *accumulate(len(source) for source in self.sources)]

    def __len__(self) -> int:
        return self._starts[-1]

    def name(self, index: int) -> str:
        source, local = self._locate(index)
        return source.name(local)

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        source, local = self._locate(index)
        return source.read(local)

    def _locate(self, index: int) -> tuple[ImageSource, int]:
        number = bisect_right(self._starts, index) - 1
        return self.sources[number], index - self._starts[number]
