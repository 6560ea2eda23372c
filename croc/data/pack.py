"""Packed folders: photographs decoded once, for machines whose GPU outruns their CPUs.

pixels-00000.bin …   uint8 pixels, channels first, about 1 GiB per file
index.npy            int64 [images, 4]: file, offset, height, width
names.txt            the original names, one JSON string per line
pack.json            format, canvas_px, count, names of broken files
"""

import json
import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from croc.data.decode import UndecodableImage, reduce_image
from croc.data.loader import iterate
from croc.data.sources import ImageSource
from croc.errors import UserError
from croc.signals import notice_of_end

FORMAT = 1
_BYTES_PER_FILE = 1 << 30


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
        with notice_of_end() as signals:
            partial.mkdir(parents=True)
            names, failed = _write(source, partial, canvas_px, workers, signals)
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return len(names), failed


def _write(
    source: ImageSource, folder: Path, canvas_px: int, workers: int, signals: list[int]
) -> tuple[list[str], list[str]]:
    names: list[str] = []
    failed: list[str] = []
    index: list[tuple[int, int, int, int]] = []
    number, offset = 0, 0
    decoded = iterate(_Planes(source, canvas_px), range(len(source)), workers=workers, ahead=8)
    columns = (TextColumn("packing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ExitStack() as files, Progress(*columns, console=Console(stderr=True)) as progress:
        file = files.enter_context((folder / "pixels-00000.bin").open("wb"))
        for image, planes in progress.track(decoded, total=len(source)):
            if signals:
                raise KeyboardInterrupt
            if planes is None:
                failed.append(source.name(image))
                continue
            if offset >= _BYTES_PER_FILE:
                file.close()
                number, offset = number + 1, 0
                file = files.enter_context((folder / f"pixels-{number:05d}.bin").open("wb"))
            names.append(source.name(image))
            index.append((number, offset, *planes.shape[1:]))
            offset += file.write(planes.numpy().data)
    if not names:
        raise UserError(f"none of the {len(source)} images can be decoded: nothing to pack")
    np.save(folder / "index.npy", np.array(index, np.int64))
    lines = "".join(json.dumps(name) + "\n" for name in names)
    (folder / "names.txt").write_text(lines, encoding="ascii")
    record = {"format": FORMAT, "canvas_px": canvas_px, "count": len(names), "failed": failed}
    (folder / "pack.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return names, failed


@dataclass(eq=False)
class _Planes:
    """The images of a source, each with its number; None for one that cannot be decoded."""

    source: ImageSource
    canvas_px: int

    def __getitem__(self, index: int) -> tuple[int, UInt8[Tensor, "3 h w"] | None]:
        try:
            image = reduce_image(self.source.read(index), self.canvas_px)
        except UndecodableImage:
            return index, None
        return index, torch.from_numpy(image.transpose(2, 0, 1).copy())
