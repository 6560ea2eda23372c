"""Packed folders: photographs decoded once, for machines whose GPU outruns their CPUs.

pixels-00000.bin …   uint8 pixels, channels first, at most 1 GiB per file
index.npy            int64 [images, 4]: file, offset, height, width
names.txt            the original names, one JSON string per line
pack.json            format, canvas_px, count, names of broken files
"""

import json
import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from rich.console import Console
from rich.progress import Progress

from croc.data.decode import UndecodableImage, reduce_image
from croc.data.loader import iterate
from croc.data.sources import ImageSource
from croc.errors import UserError
from croc.signals import catch_signals

FORMAT = 1
_BYTES_PER_FILE = 1 << 30
# Files per worker, so that all workers finish at about the same time, and the fewest images for
# which another file is begun.
_FILES_PER_WORKER, _MIN_IMAGES = 8, 64
_BROKEN = -1


class PackedSource:
    """The images of a packed folder, memory-mapped and shared by all processes; read-only."""

    def __init__(self, folder: str, canvas_px: int | None = None) -> None:
        self.folder = Path(folder)
        self._files: dict[int, np.memmap] = {}
        self._names: list[str] = []
        try:
            record = json.loads((self.folder / "pack.json").read_text(encoding="utf-8"))
            self._index = np.load(self.folder / "index.npy", allow_pickle=False)
            self.canvas_px = canvas_px or int(record["canvas_px"])
            if record["format"] != FORMAT or self._index.shape != (record["count"], 4):
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
        return reduce_image(planes.reshape(3, height, width).transpose(1, 2, 0), self.canvas_px)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}, "_names": []}


def pack(
    source: ImageSource, folder: str | Path, canvas_px: int, workers: int = 0
) -> tuple[int, list[str]]:
    """Write the source's readable images, in its order, to a new folder for `PackedSource`.

    Returns how many there are, and the names of the others. Everything is written to a folder
    beside it and renamed at the end, so that `folder` is complete or absent.
    """
    target = Path(folder).absolute()
    if os.path.lexists(target):
        raise UserError(f"{target} exists already: delete it or pack to another folder")
    partial = target.with_name(f".{target.name}-{os.getpid()}.partial")
    try:
        with catch_signals() as signals:
            partial.mkdir(parents=True)
            names, failed = _write(source, partial, canvas_px, workers, signals)
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return len(names), failed


def _write(
    source: ImageSource, folder: Path, canvas_px: int, workers: int, signals: list[int]
) -> tuple[list[str], list[str]]:
    images = min(
        max(1, _BYTES_PER_FILE // (3 * canvas_px**2)),
        max(_MIN_IMAGES, -(-len(source) // (_FILES_PER_WORKER * max(1, workers)))),
    )
    files, index = _Files(source, folder, canvas_px, images), []
    order = range(-(-len(source) // images))
    written = iterate(files, order, workers=min(workers, len(order)))
    with closing(written), Progress(console=Console(stderr=True)) as progress:
        try:
            for rows in progress.track(written, total=len(order), description="packing"):
                if isinstance(rows, Exception):
                    raise rows
                index.append(rows)
                if signals:
                    raise KeyboardInterrupt
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise UserError(
                "a worker was killed, perhaps out of memory: pass fewer --workers"
            ) from error
    rows = np.concatenate(index)
    (readable,) = np.nonzero(rows[:, 1] != _BROKEN)
    if not len(readable):
        raise UserError("no image can be decoded: nothing to pack")
    failed = [source.name(image) for image in np.nonzero(rows[:, 1] == _BROKEN)[0].tolist()]
    np.save(folder / "index.npy", np.column_stack([readable // images, rows[readable]]))
    names = [source.name(image) for image in readable.tolist()]
    lines = "".join(json.dumps(name) + "\n" for name in names)
    (folder / "names.txt").write_text(lines, encoding="ascii")
    record = {"format": FORMAT, "canvas_px": canvas_px, "count": len(names), "failed": failed}
    (folder / "pack.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return names, failed


@dataclass(frozen=True)
class _Files:
    """Item n decodes and writes file n, a contiguous part of the source."""

    source: ImageSource
    folder: Path
    canvas_px: int
    images: int
    """Per file."""

    def __getitem__(self, number: int) -> Int64[np.ndarray, "images 3"] | Exception:
        """Offset, height and width of each image; or the error to raise: raised in a worker, it
        would arrive wrapped in a traceback."""
        path, offset, rows = self.folder / f"pixels-{number:05d}.bin", 0, []
        first = number * self.images
        try:
            with path.open("wb") as file:
                for image in range(first, min(first + self.images, len(self.source))):
                    try:
                        pixels = reduce_image(self.source.read(image), self.canvas_px)
                    except UndecodableImage:
                        rows.append((0, _BROKEN, 0))
                        continue
                    rows.append((offset, *pixels.shape[:2]))
                    offset += file.write(np.ascontiguousarray(pixels.transpose(2, 0, 1)).data)
        except (OSError, UserError) as error:
            return error
        if not offset:
            path.unlink()
        return np.array(rows, np.int64)
