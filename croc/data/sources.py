"""Where photographs come from: the ImageSource protocol, folders, and `open_source`.

Tar shards are in shards.py, packed folders in pack.py.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8

from croc.config import DataConfig
from croc.data.decode import IMAGE_EXTENSIONS, UndecodableImage, decode_image
from croc.data.scenes import make_scene
from croc.errors import UserError

SCENE_PX = 96
_SUFFIXES = tuple(f".{extension}".encode() for extension in IMAGE_EXTENSIONS)


@runtime_checkable
class ImageSource(Protocol):
    """Images by number; must be picklable, to reach the loader's workers."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """How the log refers to the image."""
        ...

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        """The image, reduced; raises UndecodableImage and nothing else."""
        ...


def open_source(config: DataConfig, seed: int) -> ImageSource:
    """The images of all roots, in their order; neighbors of one kind are opened together."""
    if not config.root:
        raise UserError("no photographs given: pass --data.root FOLDER")
    # Both import this module.
    from croc.data.pack import PackedSource
    from croc.data.shards import ShardSource

    sources: list[ImageSource] = []
    for kind, group in groupby(map(os.path.expanduser, config.root), key=_kind):
        roots = list(group)
        if kind == "scenes":
            size_px = min(SCENE_PX, config.canvas_px)
            sources += [ScenesSource(config.scenes, size_px, seed) for _ in roots]
        elif kind == "shards":
            sources.append(ShardSource(roots, config.canvas_px))
        elif kind == "packed":
            sources += [PackedSource(root, config.canvas_px) for root in roots]
        else:
            folders = [folder for root in roots for folder in _subfolders(root, config.subfolders)]
            sources.append(FolderSource(folders, config.canvas_px))
    return sources[0] if len(sources) == 1 else ConcatSource(sources)


def _kind(root: str) -> str:
    if root == "scenes":
        return "scenes"
    if os.path.isdir(root):
        return "packed" if os.path.exists(os.path.join(root, "pack.json")) else "folder"
    if root.startswith("pipe:") or root.endswith((".tar", ".tar.gz", ".tgz")):
        return "shards"
    if os.path.exists(root):
        raise UserError(f"{root} is neither a folder nor a .tar shard: pass one as --data.root")
    raise UserError(f"{root} does not exist: pass a folder or .tar shards as --data.root")


def _subfolders(root: str, names: tuple[str, ...]) -> list[str]:
    """The recipe's subfolders if the root has any of them, else the root itself."""
    paths = [os.path.join(root, name) for name in names]
    missing = [path for path in paths if not os.path.isdir(path)]
    if len(missing) == len(paths):
        return [root]
    if missing:
        raise UserError(
            f"this recipe also needs {' and '.join(missing)}: put the photographs there, "
            f"or choose other folders with --data.subfolders"
        )
    return paths


class FolderSource:
    """The images under some folders: folder by folder, each sorted by the bytes of its paths.

    Hidden files and folders are left out.
    """

    def __init__(self, folders: Sequence[str], canvas_px: int) -> None:
        self.canvas_px = canvas_px
        self._paths = PackedNames(path for folder in folders for path in _list_images(folder))

    def __len__(self) -> int:
        return len(self._paths)

    def name(self, index: int) -> str:
        return printable(self._paths[index])

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        try:
            with open(self._paths[index], "rb") as stream:
                return decode_image(stream, self.canvas_px)
        except OSError as error:
            raise UndecodableImage(f"cannot be read: {error.strerror}") from error


class ScenesSource:
    """Synthetic scenes, made when first read and then kept."""

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


class PackedNames:
    """A list of byte strings in two arrays: a quarter of the memory of separate objects, and
    forked workers do not copy it by counting references."""

    def __init__(self, names: Iterable[bytes]) -> None:
        names = list(names)
        self._bytes = np.frombuffer(b"".join(names), np.uint8)
        self._ends = np.cumsum([0, *map(len, names)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        return self._bytes[self._ends[index] : self._ends[index + 1]].tobytes()


def printable(name: bytes) -> str:
    """On one line for logs: unprintable characters and bytes that are not UTF-8 are escaped.

    Backslashes are doubled, so that different names stay different.
    """

    def escape(char: str) -> str:
        if char.isprintable():
            return char
        if char.isascii():
            return char.encode("unicode_escape").decode()
        return "".join(f"\\x{byte:02x}" for byte in char.encode())

    text = name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(map(escape, text))


def is_image(name: bytes) -> bool:
    """By its name; `._photo.jpg` and the like are an operating system's metadata."""
    return name.lower().endswith(_SUFFIXES) and not name.startswith(b".")


def _list_images(folder: str) -> list[bytes]:
    if not os.path.isdir(folder):
        raise UserError(f"no such folder: {folder}")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise UserError(f"no permission to read {folder}")
    if paths := sorted(_walk(os.fsencode(folder))):
        return paths
    if any(name.endswith(".tar") for name in os.listdir(folder)):
        advice = f"to read its shards pass --data.root {folder}/*.tar"
    else:
        advice = "pass another --data.root"
    extensions = " ".join(IMAGE_EXTENSIONS)
    raise UserError(f"no images in {folder} (searched at any depth for {extensions}): {advice}")


def _walk(root: bytes) -> Iterator[bytes]:
    """Each real folder once, however many links point to it, so that cycles end."""
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
