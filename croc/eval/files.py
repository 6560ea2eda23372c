"""A data set's files, in a folder or a .tar, and the images and lists in them."""

import io
import os
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from croc.errors import UserError


class Missing(UserError):  # noqa: N818, a noun reads better where it is caught
    """A file or folder that should be there."""

    def __init__(self, path: str, advice: str = "restore it from the data set's archive") -> None:
        super().__init__(f"{path} is missing: {advice}")
        self.path = path


class Files:
    """Files of a folder or of a .tar by their names, with / between the parts.

    A tar is indexed once; files are then read by their offset. If only one of the folders `within`
    has `probe`, names are relative to that folder.
    """

    def __init__(self, path: str, within: Iterable[str] = (), probe: str = "") -> None:
        self._root, self._base = os.path.expanduser(path), ""
        if not os.path.exists(self._root):
            raise Missing(self._root)
        self._members: dict[str, tuple[int, int]] | None = None
        if not os.path.isdir(self._root):
            self._members = _index_tar(self._root)
            self._folders: dict[str, set[str]] = {"": set()}
            for name in self._members:
                while name:
                    folder, _, child = name.rpartition("/")
                    self._folders.setdefault(folder, set()).add(child)
                    name = folder
        if not self.has(probe):
            folder = next((each for each in within if self.has(f"{each}/{probe}")), "")
            self._base = f"{folder}/" if folder else ""

    def path(self, name: str) -> str:
        """For messages."""
        if self._members is not None:
            return f"{self._root}:{self._base}{name}"
        return os.path.join(self._root, self._base + name)

    def has(self, name: str) -> bool:
        if self._members is not None:
            return self._base + name in self._members or self._base + name in self._folders
        return os.path.exists(self.path(name))

    def children(self, folder: str) -> list[str]:
        """Sorted names in a folder, without hidden files."""
        if self._members is not None:
            names = self._folders.get(self._base + folder)
        else:
            names = os.listdir(self.path(folder)) if os.path.isdir(self.path(folder)) else None
        if names is None:
            raise Missing(self.path(folder))
        return sorted(name for name in names if not name.startswith("."))

    def read(self, name: str) -> bytes:
        try:
            if self._members is None:
                with open(self.path(name), "rb") as file:
                    return file.read()
            offset, size = self._members[self._base + name]
            with open(self._root, "rb") as file:
                file.seek(offset)
                return file.read(size)
        except (KeyError, FileNotFoundError):
            raise Missing(self.path(name)) from None
        except OSError as error:
            raise UserError(f"{self.path(name)} cannot be read: {error.strerror}") from error

    def read_lines(self, name: str) -> list[str]:
        try:
            return self.read(name).decode().splitlines()
        except UnicodeDecodeError:
            raise UserError(f"{self.path(name)} is not UTF-8 text: save it as UTF-8") from None

    def open_image(self, name: str, load: bool = True) -> Image.Image:
        """Without `load` only its header is read, which takes a fiftieth of the time."""
        data = self.read(name)
        try:
            image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
            if load:
                image.load()
        except Exception as error:  # on broken files Pillow raises nearly every type there is
            reason = "neither JPEG nor PNG" if "BytesIO" in str(error) else error
            raise UserError(
                f"{self.path(name)} cannot be decoded: download it again ({reason})"
            ) from error
        return image

    def read_rgb(self, name: str) -> UInt8[np.ndarray, "h w 3"]:
        """The image as it is stored: labels were drawn that way, EXIF rotation is not applied."""
        return np.array(self.open_image(name).convert("RGB"))

    def read_indices(self, name: str) -> UInt8[np.ndarray, "h w"]:
        """The values of a gray or palette PNG."""
        image = self.open_image(name)
        if image.mode not in ("L", "P", "1"):
            raise UserError(
                f"{self.path(name)} is an image of mode {image.mode}: labels need one 8-bit "
                "channel, gray or with a palette"
            )
        return np.array(image).astype(np.uint8)

    def check_same_size(
        self, image: str, size: Sequence[int], labels: str, label_size: Sequence[int]
    ) -> None:
        """Heights and widths of an image and its labels."""
        if tuple(size) != tuple(label_size):
            raise UserError(
                f"{self.path(image)} is {size[1]}×{size[0]} but {self.path(labels)} is "
                f"{label_size[1]}×{label_size[0]}: they must have the same size"
            )


def _index_tar(archive: str) -> dict[str, tuple[int, int]]:
    """Offset and size of each file in the archive."""
    try:
        with tarfile.open(archive, "r:") as tar:
            members = {
                member.name.removeprefix("./"): (member.offset_data, member.size)
                for member in tar
                if member.isreg()
            }
    except (OSError, tarfile.TarError) as error:
        raise UserError(
            f"{archive} is not a complete tar archive ({error}): download it again, or unpack it "
            "if it is compressed"
        ) from error
    if any(offset + size > os.path.getsize(archive) for offset, size in members.values()):
        raise UserError(f"{archive} is truncated: download it again")
    return members


def pair_named(
    files: Files, names: Sequence[str], images: str, labels: str
) -> list[tuple[str, str]]:
    """Images and label maps of the given names; all must exist."""
    for folder, suffix in ((images, ".jpg"), (labels, ".png")):
        present = set(files.children(folder))
        for name in names:
            if name + suffix not in present:
                raise Missing(files.path(f"{folder}/{name}{suffix}"))
    return [(f"{images}/{name}.jpg", f"{labels}/{name}.png") for name in names]


def pair_listed(
    files: Files, images: str, labels: str, suffixes: tuple[str, ...] = (".jpg", ".jpeg", ".png")
) -> list[tuple[str, str]]:
    """All images of a folder with their label maps, paired by name."""
    stems: list[dict[str, str]] = [{}, {}]
    for by_stem, folder, allowed in zip(stems, (images, labels), (suffixes, (".png",))):
        for name in files.children(folder):
            if name.lower().endswith(allowed):
                other = by_stem.setdefault(PurePosixPath(name).stem, name)
                if other != name:
                    where = files.path(folder)
                    raise UserError(f"{where} has both {other} and {name}: remove one of them")
    photos, maps = stems
    if not photos:
        raise Missing(files.path(f"{images}/*.jpg"))
    for stem in sorted(photos.keys() ^ maps.keys()):
        raise Missing(
            files.path(f"{labels}/{stem}.png" if stem in photos else f"{images}/{stem}.jpg")
        )
    return [(f"{images}/{photos[stem]}", f"{labels}/{maps[stem]}") for stem in sorted(photos)]
