"""Folders of photographs, at any depth."""

import os
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import UInt8

from croc.data.decode import IMAGE_EXTENSIONS, UndecodableImage, decode_image
from croc.data.names import PackedNames, printable
from croc.errors import UserError

_SUFFIXES = tuple(f".{extension}".encode() for extension in IMAGE_EXTENSIONS)


class FolderSource:
    """The images under some folders: one folder after the other, each in the order of the
    bytes of its paths. Hidden files and folders are left out."""

    def __init__(self, folders: Sequence[str], canvas_px: int) -> None:
        self.canvas_px = canvas_px
        self._paths = PackedNames(path for folder in folders for path in _images_in(folder))

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


def is_image(name: bytes) -> bool:
    """By its name; `._photo.jpg` and the like are a system's notes, not photographs."""
    return name.lower().endswith(_SUFFIXES) and not name.startswith(b".")


def _images_in(folder: str) -> list[bytes]:
    if not os.path.isdir(folder):
        raise UserError(f"no such folder: {folder}")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise UserError(f"{folder} may not be read: change its permissions")
    paths = sorted(_walk(os.fsencode(folder)))
    if not paths:
        raise UserError(_nothing_found(folder))
    return paths


def _nothing_found(folder: str) -> str:
    looked_for = " ".join(IMAGE_EXTENSIONS)
    if any(name.endswith(".tar") for name in os.listdir(folder)):
        return f"no images in {folder}; for its tar shards, pass --data.root {folder}/*.tar"
    return f"no images in {folder} (looked at any depth for {looked_for}): pass another --data.root"


def _walk(root: bytes) -> Iterator[bytes]:
    """Each real folder once, however many links lead to it: so loops end."""
    visited: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            status = os.stat(folder)
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name, reverse=True)
        except OSError:  # no permission, or gone since it was listed
            continue
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        yield from (entry.path for entry in listed if is_image(entry.name) and _is_file(entry))
        waiting += [entry.path for entry in listed if _is_folder(entry)]


def _is_file(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return not entry.name.startswith(b".") and entry.is_dir()
    except OSError:
        return False
