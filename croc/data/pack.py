"""Decoding a data set once: pixels in large files, for machines whose GPU outruns their CPUs."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.utils.data import Dataset

from croc.data.decode import UndecodableImage
from croc.data.packed import DESCRIPTION, FORMAT_VERSION, INDEX, NAMES, pixels_file
from croc.data.reduce import reduce_image
from croc.data.sources import ImageSource
from croc.data.workers import iterate
from croc.errors import UserError
from croc.train.signals import notice_of_end

_BYTES_A_FILE = 1 << 30


@dataclass(frozen=True)
class PackReport:
    """What was written, and what was left out."""

    folder: Path
    count: int
    pixel_bytes: int
    failed: tuple[str, ...]


def pack(source: ImageSource, folder: str | Path, canvas_px: int, workers: int = 0) -> PackReport:
    """Write the source's readable images, in its order, to a new folder for `PackedSource`.

    All is written to a folder beside it and renamed at the end, so `folder` is whole or absent.
    """
    target = Path(folder).absolute()
    if os.path.lexists(target):
        raise UserError(f"{target} exists already: delete it or pack to another folder")
    partial = target.with_name(f".{target.name}-{os.getpid()}.partial")
    try:
        with notice_of_end() as notices:
            partial.mkdir(parents=True)
            report = _write(source, partial, target, canvas_px, workers, notices)
            partial.rename(target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return report


def _write(
    source: ImageSource,
    partial: Path,
    target: Path,
    canvas_px: int,
    workers: int,
    notices: list[int],
) -> PackReport:
    failed: list[str] = []
    names: list[str] = []
    planes_of = _Planes(source, canvas_px)
    decoded = iterate(planes_of, range(len(source)), workers=workers, ahead=8)
    with _PixelFiles(partial) as files:
        for index, planes in _progress(decoded, len(source)):
            if notices:
                raise KeyboardInterrupt
            (failed if planes is None else names).append(source.name(index))
            if planes is not None:
                files.append(planes)
    if not names:
        raise UserError(f"none of the {len(source)} images can be decoded: nothing to pack")
    np.save(partial / INDEX, np.array(files.index, np.int64))
    lines = "".join(json.dumps(name) + "\n" for name in names)
    (partial / NAMES).write_text(lines, encoding="ascii")
    description = {
        "format": FORMAT_VERSION,
        "canvas_px": canvas_px,
        "count": len(names),
        "failed": failed,
    }
    (partial / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return PackReport(target, len(names), files.total_bytes, tuple(failed))


class _PixelFiles:
    """Appends images to files of about one GiB, and remembers where each went."""

    def __init__(self, folder: Path) -> None:
        self.index: list[tuple[int, int, int, int]] = []
        self.total_bytes = 0
        self._folder = folder
        self._number = -1
        self._file: BufferedWriter | None = None

    def append(self, planes: UInt8[Tensor, "3 h w"]) -> None:
        if self._file is None or self._file.tell() >= _BYTES_A_FILE:
            self._file = self._next_file()
        _, height, width = planes.shape
        self.index.append((self._number, self._file.tell(), height, width))
        self.total_bytes += self._file.write(planes.numpy().data)

    def _next_file(self) -> BufferedWriter:
        self.__exit__()
        self._number += 1
        return open(self._folder / pixels_file(self._number), "wb")

    def __enter__(self) -> "_PixelFiles":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


_Decoded = tuple[int, UInt8[Tensor, "3 h w"] | None]


class _Planes(Dataset[_Decoded]):
    def __init__(self, source: ImageSource, canvas_px: int) -> None:
        self.source = source
        self.canvas_px = canvas_px

    def __getitem__(self, index: int) -> _Decoded:
        try:
            image = reduce_image(self.source.read(index), self.canvas_px)
        except UndecodableImage:
            return index, None
        return index, torch.from_numpy(image.transpose(2, 0, 1).copy())


def _progress(items: Iterator[_Decoded], count: int) -> Iterator[_Decoded]:
    columns = (TextColumn("packing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield from progress.track(items, total=count)
