"""Reading what `croc data pack` wrote: pixels that need no decoding."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from croc.data.reduce import reduce_image
from croc.errors import UserError

FORMAT_VERSION = 1
DESCRIPTION = "pack.json"
INDEX = "index.npy"
NAMES = "names.txt"


def pixels_file(number: int) -> str:
    """The name of a pack's file of pixels."""
    return f"pixels-{number:05d}.bin"


class PackedSource:
    """The images of a packed folder, mapped into memory and shared by all processes.

    A row of the index is (file, offset, height, width). Channels come first on disk, since
    that is how they are placed on a canvas; `read` gives a read-only view of them.
    """

    def __init__(self, folder: str, canvas_px: int | None = None) -> None:
        self.folder = Path(folder)
        self.packed_px, count = _described(self.folder)
        self.canvas_px = canvas_px or self.packed_px
        self._index = _load_index(self.folder, count)
        self._files: dict[int, np.memmap] = {}
        self._names: list[str] | None = None
        _check_files(self.folder, self._index)

    def __len__(self) -> int:
        return len(self._index)

    def name(self, index: int) -> str:
        if self._names is None:
            lines = (self.folder / NAMES).read_text(encoding="ascii").splitlines()
            self._names = [json.loads(line) for line in lines]
        return self._names[index]

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        number, offset, height, width = self._index[index].tolist()
        flat = self._mapped(number)[offset : offset + 3 * height * width]
        image = np.asarray(flat).reshape(3, height, width).transpose(1, 2, 0)
        return reduce_image(image, self.canvas_px)

    def _mapped(self, number: int) -> np.memmap:
        if number not in self._files:
            self._files[number] = np.memmap(self.folder / pixels_file(number), np.uint8, "r")
        return self._files[number]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}, "_names": None}


def _corrupt(folder: Path, what: str) -> UserError:
    return UserError(f"the pack in {folder} is damaged ({what}): delete it and pack again")


def _described(folder: Path) -> tuple[int, int]:
    """The size of the canvas and the number of images."""
    try:
        description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        version = description["format"]
        canvas_px, count = int(description["canvas_px"]), int(description["count"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _corrupt(folder, f"{DESCRIPTION}: {error}") from error
    if version != FORMAT_VERSION:
        raise UserError(
            f"{folder} has pack format {version}, this version reads {FORMAT_VERSION}: pack again"
        )
    return canvas_px, count


def _load_index(folder: Path, count: int) -> Int64[np.ndarray, "count 4"]:
    try:
        with (folder / INDEX).open("rb") as file:  # np.load would take a zip for an archive of many
            index = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _corrupt(folder, f"{INDEX}: {error}") from error
    if index.shape != (count, 4) or index.dtype != np.int64 or index.min(initial=0) < 0:
        raise _corrupt(folder, f"{INDEX} does not fit {DESCRIPTION}")
    return index


def _check_files(folder: Path, index: Int64[np.ndarray, "count 4"]) -> None:
    if not (folder / NAMES).is_file():
        raise _corrupt(folder, f"{NAMES} is missing")
    file, offset, height, width = index.T
    ends = np.zeros(file.max(initial=-1) + 1, np.int64)
    np.maximum.at(ends, file, offset + 3 * height * width)
    for number, end in enumerate(ends.tolist()):
        path = folder / pixels_file(number)
        if not path.is_file():
            raise _corrupt(folder, f"{path.name} is missing")
        if os.path.getsize(path) != end:
            raise _corrupt(folder, f"{path.name} has not {end} bytes")
