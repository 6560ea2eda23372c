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
from torch.utils.data import Dataset

from croc.data.decode import UndecodableImage, reduce_image
from croc.data.sources import ImageSource
from croc.data.workers import iterate
from croc.errors import UserError
from croc.signals import notice_of_end

FORMAT = 1
_BYTES_PER_FILE = 1 << 30


class PackedSource:
    """The images of a packed folder, memory-mapped and shared by all processes; read-only."""

    def __init__(self, folder: str, canvas_px: int | None = None) -> None:
        self.folder = Path(folder)
        self._files: dict[int, np.memmap] = {}
        self._names: list[str] | None = None
        try:
            record = json.loads((self.folder / "pack.json").read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise UserError(
                    f"{folder} has pack format {record['format']}, not {FORMAT}: pack again"
                )
            with (self.folder / "index.npy").open("rb") as file:  # np.load would also take a zip
                self._index = np.lib.format.read_array(file, allow_pickle=False)
            self.canvas_px = canvas_px or int(record["canvas_px"])
            self._check(record["count"])
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise UserError(
                f"the pack in {folder} is damaged ({type(error).__name__}: {error}): "
                "delete and pack again"
            ) from error

    def _check(self, count: int) -> None:
        """An incomplete copy is noticed here, not in the middle of an epoch."""
        if self._index.shape != (count, 4):
            raise ValueError("index.npy does not fit pack.json")
        (self.folder / "names.txt").stat()
        for number in np.unique(self._index[:, 0]).tolist():
            _, offset, height, width = self._index[self._index[:, 0] == number].T
            path, size = _pixels_file(self.folder, number), (offset + 3 * height * width).max()
            if path.stat().st_size != size:
                raise ValueError(f"{path.name} does not have {size} bytes")

    def __len__(self) -> int:
        return len(self._index)

    def name(self, index: int) -> str:
        if self._names is None:
            lines = (self.folder / "names.txt").read_text(encoding="ascii").splitlines()
            self._names = [json.loads(line) for line in lines]
        return self._names[index]

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        number, offset, height, width = self._index[index].tolist()
        if number not in self._files:
            self._files[number] = np.memmap(_pixels_file(self.folder, number), np.uint8, "r")
        planes = np.asarray(self._files[number][offset : offset + 3 * height * width])
        return reduce_image(planes.reshape(3, height, width).transpose(1, 2, 0), self.canvas_px)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_files": {}, "_names": None}


def _pixels_file(folder: Path, number: int) -> Path:
    return folder / f"pixels-{number:05d}.bin"


@dataclass(frozen=True)
class PackReport:
    """How many images were written, and which files were left out."""

    count: int
    failed: tuple[str, ...]


def pack(source: ImageSource, folder: str | Path, canvas_px: int, workers: int = 0) -> PackReport:
    """Write the source's readable images, in its order, to a new folder for `PackedSource`.

    Everything is written to a folder beside it and renamed at the end, so that `folder` is
    complete or absent.
    """
    target = Path(folder).absolute()
    if os.path.lexists(target):
        raise UserError(f"{target} exists already: delete it or pack to another folder")
    partial = target.with_name(f".{target.name}-{os.getpid()}.partial")
    try:
        with notice_of_end() as signals:
            partial.mkdir(parents=True)
            report = _write(source, partial, canvas_px, workers, signals)
            partial.rename(target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return report


def _write(
    source: ImageSource, folder: Path, canvas_px: int, workers: int, signals: list[int]
) -> PackReport:
    names: list[str] = []
    failed: list[str] = []
    index: list[tuple[int, int, int, int]] = []
    number, offset = 0, 0
    decoded = iterate(_Planes(source, canvas_px), range(len(source)), workers=workers, ahead=8)
    columns = (TextColumn("packing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(*columns, console=Console(stderr=True)))
        file = stack.enter_context(_pixels_file(folder, number).open("wb"))
        for image, planes in progress.track(decoded, total=len(source)):
            if signals:
                raise KeyboardInterrupt
            if planes is None:
                failed.append(source.name(image))
                continue
            if offset >= _BYTES_PER_FILE:
                file.close()
                number, offset = number + 1, 0
                file = stack.enter_context(_pixels_file(folder, number).open("wb"))
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
    return PackReport(len(names), tuple(failed))


_Decoded = tuple[int, UInt8[Tensor, "3 h w"] | None]


@dataclass(eq=False)
class _Planes(Dataset[_Decoded]):
    source: ImageSource
    canvas_px: int

    def __getitem__(self, index: int) -> _Decoded:
        try:
            image = reduce_image(self.source.read(index), self.canvas_px)
        except UndecodableImage:
            return index, None
        return index, torch.from_numpy(image.transpose(2, 0, 1).copy())
