"""A data set's files, in a folder or in a tar, and the pictures in them."""

import io
import os
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from croc.data.shards import OpenFiles
from croc.errors import UserError

_FORMATS = ("JPEG", "PNG")


class Missing(UserError):  # noqa: N818, a noun reads better where it is caught
    """A file or folder that should be there."""

    def __init__(self, path: str, advice: str = "restore it from the data set's archive") -> None:
        super().__init__(f"{path} is missing: {advice}")
        self.path = path


@runtime_checkable
class Files(Protocol):
    """Files by their names below a root, with / between the parts."""

    def path(self, name: str) -> str:
        """What to call it in a message."""
        ...

    def has(self, name: str) -> bool: ...

    def children(self, folder: str) -> list[str]:
        """Sorted names of what lies directly in a folder, hidden files left out."""
        ...

    def read(self, name: str) -> bytes: ...

    def below(self, folder: str) -> "Files":
        """The same files with another root."""
        ...


@dataclass(frozen=True)
class FolderFiles:
    """Files below a folder of the disk."""

    root: str

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def has(self, name: str) -> bool:
        return os.path.exists(self.path(name))

    def children(self, folder: str) -> list[str]:
        if not os.path.isdir(self.path(folder)):
            raise Missing(self.path(folder))
        return sorted(name for name in os.listdir(self.path(folder)) if not name.startswith("."))

    def read(self, name: str) -> bytes:
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise Missing(self.path(name)) from None
        except OSError as error:
            raise UserError(f"{self.path(name)} cannot be read: {error.strerror}") from error

    def below(self, folder: str) -> "FolderFiles":
        return FolderFiles(self.path(folder))


class TarFiles:
    """Members of a tar archive; their places are looked up once, then sought."""

    def __init__(self, archive: str) -> None:
        self.archive, self._base = archive, ""
        self._places = _places(archive)
        self._folders: dict[str, set[str]] = {"": set()}
        self._open = OpenFiles()
        for name in self._places:
            while name:
                folder, _, child = name.rpartition("/")
                self._folders.setdefault(folder, set()).add(child)
                name = folder

    def path(self, name: str) -> str:
        return f"{self.archive}:{self._base}{name}"

    def has(self, name: str) -> bool:
        return self._base + name in self._places or self._base + name in self._folders

    def children(self, folder: str) -> list[str]:
        if self._base + folder not in self._folders:
            raise Missing(self.path(folder))
        names = self._folders[self._base + folder]
        return sorted(name for name in names if not name.startswith("."))

    def read(self, name: str) -> bytes:
        if self._base + name not in self._places:
            raise Missing(self.path(name))
        try:
            return self._open.read(self.archive, *self._places[self._base + name])
        except OSError as error:
            raise UserError(f"{self.path(name)} cannot be read: {error.strerror}") from error

    def below(self, folder: str) -> "TarFiles":
        view = object.__new__(TarFiles)
        view.__dict__ = {**self.__dict__, "_base": f"{self._base}{folder}/"}
        return view


def _places(archive: str) -> dict[str, tuple[int, int]]:
    """Offset and size of each file in the archive."""
    places: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                if member.isreg():
                    places[member.name.removeprefix("./")] = (member.offset_data, member.size)
    except (OSError, tarfile.TarError) as error:
        raise UserError(
            f"{archive} is no whole tar archive ({error}): get it again, or unpack it if compressed"
        ) from error
    if any(sum(place) > os.path.getsize(archive) for place in places.values()):
        raise UserError(f"{archive} is cut off: get it again")
    return places


def open_files(path: str, within: Iterable[str] = (), probe: str = "") -> Files:
    """A folder or a .tar; `within` names folders to descend into if `probe` is there."""
    root = os.path.expanduser(path)
    if not os.path.exists(root):
        raise Missing(root)
    files = FolderFiles(root) if os.path.isdir(root) else TarFiles(root)
    for folder in within:
        if not files.has(probe) and files.has(f"{folder}/{probe}"):
            return files.below(folder)
    return files


def decode_rgb(files: Files, name: str) -> UInt8[np.ndarray, "h w 3"]:
    """The picture as it is stored: its labels were drawn so, whatever EXIF says of turning."""
    return np.array(_open_image(files, name).convert("RGB"))


def decode_indices(files: Files, name: str) -> UInt8[np.ndarray, "h w"]:
    """The numbers of a gray or palette PNG."""
    image = _open_image(files, name)
    if image.mode not in ("L", "P", "1"):
        raise UserError(
            f"{files.path(name)} is a picture of mode {image.mode}: labels need one channel of "
            f"8 bits, gray or with a palette"
        )
    return np.array(image).astype(np.uint8)


def same_size(image: np.ndarray, labels: np.ndarray, image_path: str, label_path: str) -> None:
    """Refuses a picture and labels of different sizes."""
    (height, width), (rows, columns) = image.shape[:2], labels.shape[:2]
    if (height, width) != (rows, columns):
        raise UserError(
            f"{image_path} is {width}×{height} but {label_path} is {columns}×{rows}: "
            f"they must have one size"
        )


def _open_image(files: Files, name: str) -> Image.Image:
    data = files.read(name)
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        image.load()
    except Exception as error:  # on broken files Pillow raises nearly every type there is
        said = "no picture of these kinds" if "BytesIO" in str(error) else error
        raise UserError(f"{files.path(name)} cannot be decoded: get it again ({said})") from error
    return image
