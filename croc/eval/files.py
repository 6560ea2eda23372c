"""A dataset's files, in a folder or a .tar, and the images and lists in them."""

import io
import json
import os
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from croc.data.decode import to_rgb
from croc.errors import UserError

PHOTOS = (".jpg", ".jpeg", ".png")


class Files:
    """Files of a folder or of a .tar by their names, with / between the parts.

    A tar is indexed once; files are then read by their offset. Names are relative to the first of
    the `folders` that exists, if there is one.
    """

    def __init__(self, path: str, folders: Iterable[str] = ()) -> None:
        self._root, self._base = Path(path).expanduser(), ""
        self._members: dict[str, tuple[int, int]] | None = None
        if not self._root.exists():
            raise self.missing("")
        if self._root.is_file():
            self._members = _index_tar(self._root)
        self._base = next((f"{name}/" for name in folders if self.has(name)), "")

    def path(self, name: str) -> str:
        """For messages."""
        name = self._base + name
        return str(self._root / name) if self._members is None else f"{self._root}:{name}"

    def missing(self, name: str) -> UserError:
        return UserError(f"{self.path(name)} is missing: see the layouts in docs/evaluate.md, Data")

    def has(self, name: str) -> bool:
        if self._members is None:
            return os.path.exists(self.path(name))
        full = self._base + name
        return full in self._members or any(x.startswith(f"{full}/") for x in self._members)

    def children(self, folder: str) -> list[str]:
        """Sorted names in a folder, without hidden files."""
        if not self.has(folder):
            raise self.missing(folder)
        if self._members is None:
            names = set(os.listdir(self.path(folder)))
        else:
            start = f"{self._base}{folder}/"
            inside = (name for name in self._members if name.startswith(start))
            names = {name.removeprefix(start).partition("/")[0] for name in inside}
        return sorted(name for name in names if not name.startswith("."))

    def read(self, name: str) -> bytes:
        try:
            if self._members is None:
                return Path(self.path(name)).read_bytes()
            offset, size = self._members[self._base + name]
        except (KeyError, FileNotFoundError):
            raise self.missing(name) from None
        with self._root.open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def read_text(self, name: str) -> str:
        try:
            return self.read(name).decode()
        except UnicodeDecodeError:
            raise UserError(f"{self.path(name)} is not UTF-8 text: save it as UTF-8") from None

    def read_lines(self, name: str) -> list[str]:
        """The lines of a text that are not empty."""
        return [line for line in self.read_text(name).splitlines() if line.strip()]

    def read_json(self, name: str) -> Any:
        try:
            return json.loads(self.read_text(name))
        except ValueError as error:
            raise UserError(f"{self.path(name)} is not complete JSON ({error})") from None

    def read_rgb(self, name: str) -> UInt8[np.ndarray, "h w 3"]:
        """The photograph as in training, but as it is stored: labels were drawn that way, EXIF
        rotation is not applied."""
        image = self._open_image(name)
        return np.array(to_rgb(image)(image))

    def read_colors(self, name: str) -> UInt8[np.ndarray, "h w 3"]:
        """The colors of a label map."""
        return np.array(self._open_image(name).convert("RGB"))

    def read_indices(self, name: str) -> UInt8[np.ndarray, "h w"]:
        """The values of a gray or palette PNG."""
        image = self._open_image(name)
        if image.mode not in ("L", "P", "1"):
            raise UserError(
                f"{self.path(name)} is an image of mode {image.mode}: labels need one 8-bit "
                "channel, gray or with a palette"
            )
        return np.array(image).astype(np.uint8)

    def _open_image(self, name: str) -> Image.Image:
        data = self.read(name)
        try:
            image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
            image.load()
        except Exception as error:  # on broken files Pillow raises nearly every type there is
            reason = "neither JPEG nor PNG" if "BytesIO" in str(error) else error
            raise UserError(f"{self.path(name)} cannot be decoded ({reason})") from error
        return image

    def images(self, folder: str, suffixes: tuple[str, ...] = PHOTOS) -> dict[str, str]:
        """The files of images in a folder, in order, by their names without suffix."""
        files: dict[str, str] = {}
        for file in self.children(folder):
            if file.lower().endswith(suffixes):
                same = files.setdefault(PurePosixPath(file).stem, file)
                if same != file:
                    both = f"{self.path(folder)} has {same} and {file}"
                    raise UserError(f"{both}: rename or remove one")
        return files

    def pair(
        self, images: str, labels: str, names: Sequence[str] | None = None
    ) -> list[tuple[str, str]]:
        """Images and label maps, paired by name: those named, or all. In one folder for both, PNGs
        are label maps."""
        suffixes = PHOTOS[: 2 if images == labels else 3]
        photos, maps = self.images(images, suffixes), self.images(labels, (".png",))
        names = sorted(photos.keys() | maps.keys()) if names is None else names
        if not names:
            raise self.missing(f"{images}/*.jpg")
        for name in names:
            if name not in photos:
                raise self.missing(f"{images}/{name}.jpg")
            if name not in maps:
                raise self.missing(f"{labels}/{name}.png")
        return [(f"{images}/{photos[name]}", f"{labels}/{maps[name]}") for name in names]


def _index_tar(archive: Path) -> dict[str, tuple[int, int]]:
    """Offset and size of each file in the archive."""
    try:
        with tarfile.open(archive, "r:") as tar:
            files = [member for member in tar if member.isreg()]
    except (OSError, tarfile.TarError) as error:
        raise UserError(
            f"{archive} is not a complete tar archive ({error}): download it again, or unpack it "
            "if it is compressed"
        ) from error
    return {file.name.removeprefix("./"): (file.offset_data, file.size) for file in files}


def split_spec(spec: str, kinds: Iterable[str]) -> tuple[str, str]:
    """KIND and PATH of KIND:PATH; only "scenes" needs no path."""
    kind, _, path = spec.partition(":")
    if kind not in kinds:
        known = ", ".join(name if name == "scenes" else f"{name}:PATH" for name in kinds)
        hint = f"folder:{spec} for your own images, or " * os.path.isdir(spec)
        raise UserError(f"no dataset is called {spec}: pass {hint}one of {known}")
    if not path and kind != "scenes":
        raise UserError(f"{kind} needs a path: {kind}:PATH")
    return kind, path


def scene_count(text: str, default: int) -> int:
    """The COUNT of "scenes:COUNT"."""
    if text and (not text.isdecimal() or int(text) < 1):
        raise UserError(f"scenes:{text} is not a number of scenes: pass scenes or scenes:64")
    return int(text or default)
