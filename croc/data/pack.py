"""Packing images: decoded once, for machines whose GPU is faster than their CPUs can decode.

A pack is a folder, which `PackedSource` reads:

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

import numpy as np
from jaxtyping import Int64
from rich.console import Console
from rich.progress import Progress

from croc.data.decode import UndecodableImage, downscale_image
from croc.data.loader import iterate
from croc.data.sources import PACK_FORMAT, ImageSource
from croc.errors import UserError
from croc.signals import catch_signals

_BYTES_PER_FILE = 1 << 30
# Several files per worker, so that all workers finish at about the same time, unless files would
# have too few images.
_FILES_PER_WORKER, _MIN_IMAGES = 8, 64
_BROKEN = -1


def pack(
    source: ImageSource, folder: str | Path, canvas_px: int, workers: int = 0
) -> tuple[int, list[str]]:
    """Write the source's readable images, in its order, to a new folder for `PackedSource`.

    Returns the number of these images, and the names of the others. Everything is written to a
    temporary folder that is renamed at the end, so that `folder` is complete or absent.
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
    images = min(  # per file
        max(1, _BYTES_PER_FILE // (3 * canvas_px**2)),
        max(_MIN_IMAGES, -(-len(source) // (_FILES_PER_WORKER * max(1, workers)))),
    )
    files, index = _Files(source, folder, canvas_px, images), []
    numbers = range(-(-len(source) // images))
    written = iterate(files, numbers, workers=min(workers, len(numbers)))
    with closing(written), Progress(console=Console(stderr=True)) as progress:
        try:
            for rows in progress.track(written, total=len(numbers), description="packing"):
                if isinstance(rows, Exception):
                    raise rows
                index.append(rows)
                if signals:
                    raise KeyboardInterrupt
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise UserError(
                "a worker was killed, perhaps out of memory: lower --workers"
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
    record = {"format": PACK_FORMAT, "canvas_px": canvas_px, "count": len(names), "failed": failed}
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
                        pixels = downscale_image(self.source.read(image), self.canvas_px)
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
