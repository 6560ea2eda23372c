"""A real loader and `croc data pack` over a folder of good, odd and hostile files.

python -m tests.data.fuzz FOLDER: one epoch over a folder, as a run would read it.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from croc.config import DataConfig
from croc.data.loader import make_loader
from croc.data.sources import open_source
from tests.data.pictures import encode, jpeg_claiming, noise, png_chunk, png_header
from tests.train.kills import environment

CANVAS_PX, BATCH, WORKERS = 64, 8, 2
MEMORY_MB = 2048
"""Bound for the process and its workers together: they have to fit two large pictures at once."""


class File(NamedTuple):
    """What is written, and whether a loader must read it."""

    kind: str
    extension: str
    data: bytes
    is_good: bool


GOOD: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "jpeg": ("jpg", "JPEG", "RGB", {}),
    "CMYK jpeg": ("jpeg", "JPEG", "CMYK", {"quality": 95}),
    "progressive jpeg": ("jpg", "JPEG", "RGB", {"progressive": True}),
    "jpeg named png": ("png", "JPEG", "RGB", {}),
    "png": ("png", "PNG", "RGB", {}),
    "palette png": ("png", "PNG", "P", {}),
    "webp": ("webp", "WEBP", "RGB", {}),
    "gif": ("gif", "GIF", "P", {}),
    "bmp": ("bmp", "BMP", "RGB", {}),
    "tiff": ("tiff", "TIFF", "CMYK", {}),
}


def good(kind: str, draw: random.Random) -> File:
    extension, file_format, mode, options = GOOD[kind]
    picture = Image.fromarray(noise(draw.randint(24, 64), 50, draw.randrange(1 << 32)))
    return File(kind, extension, encode(picture.convert(mode), file_format, **options), True)


def cut(kind: str, share: float, draw: random.Random) -> File:
    whole = good(kind, draw)
    end = max(1, int(len(whole.data) * draw.uniform(share - 0.05, share)))
    return File(f"{kind}, cut at {share:.0%}", whole.extension, whole.data[:end], False)


def inflating(gigabytes: int = 2) -> bytes:
    """Deflated zeros: 64 MiB of them, repeated."""
    deflate = zlib.compressobj(9, wbits=-15)
    block = deflate.compress(bytes(1 << 26)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\x9c" + block * (16 * gigabytes)


def text_bomb() -> bytes:
    return png_header(1, 1, bytes(4), png_chunk(b"zTXt", b"Comment\0\0" + inflating()))


def pixel_bomb() -> bytes:
    whole = png_header(30_000, 24_000)
    start = whole.index(b"IDAT") - 4
    return whole[:start] + png_chunk(b"IDAT", inflating()) + png_chunk(b"IEND", b"")


HUGE = 60_000
BAD: dict[str, tuple[str, Callable[[], bytes]]] = {
    "empty": ("jpg", bytes),
    "zeros": ("png", lambda: bytes(4096)),
    "html": ("jpg", lambda: b"<!doctype html><title>404</title><h1>Not found</h1>"),
    "eps": ("jpg", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n"),
    "huge png": ("png", lambda: png_header(HUGE, HUGE)),
    "huge jpeg": ("jpg", lambda: jpeg_claiming(encode(Image.new("L", (8, 8)), "JPEG"), HUGE, HUGE)),
    "png of gigabytes": ("png", pixel_bomb),
    "zTXt of gigabytes": ("png", text_bomb),
}
# Black pictures of a permitted size that are small files; a small folder has the first two.
LARGE: list[tuple[str, str, int, dict[str, Any]]] = [
    ("GIF", "P", 11_000, {}),
    ("WEBP", "RGB", 6_900, {"lossless": True, "quality": 0, "method": 0}),
    ("JPEG", "RGB", 13_000, {}),
    ("PNG", "I;16", 11_000, {}),
]


def kinds() -> Iterator[Callable[[random.Random], File]]:
    """Every other one is good, so that there are never a hundred bad ones in a row."""
    formats = ("jpeg", "progressive jpeg", "png", "webp", "gif", "bmp", "tiff")
    bad: list[Callable[[random.Random], File]] = [
        *(lambda _, kind=kind: File(kind, BAD[kind][0], bad_content(kind), False) for kind in BAD),
        *(partial(cut, kind, share) for kind in formats for share in (0.05, 0.3, 0.6, 0.9)),
    ]
    while True:
        for number, make in enumerate(bad):
            yield make
            yield partial(good, list(GOOD)[number % len(GOOD)])


@cache
def bad_content(kind: str) -> bytes:
    return BAD[kind][1]()


def make_files(folder: Path, count: int, seed: int) -> dict[str, File]:
    """Fill a new folder; what each file must count as, by the name a source should give it."""
    draw = random.Random(seed)
    count += -count % BATCH  # an epoch has whole batches
    files = [make(draw) for _, make in zip(range(count), kinds())]
    for file_format, mode, side, options in LARGE[: 2 if count < 1000 else None]:
        data = encode(Image.new(mode, (side, side)), file_format, **options)
        kind = f"{mode} {file_format} of {side**2 // 10**6} megapixels"
        files[draw.randrange(len(files))] = File(kind, file_format.lower(), data, True)
    expected = {}
    folder.mkdir()
    for number, file in enumerate(files):
        path = folder / f"{draw.randrange(1 << 24):06x}-{number}.{file.extension}"
        path.write_bytes(file.data)
        expected[str(path)] = file
    return expected


def read_epoch(folder: str) -> list[str]:
    """The names of the files that fail in one epoch by a real loader."""
    source = open_source(DataConfig(root=(folder,), max_side_px=CANVAS_PX), seed=0)
    steps: dict[str, Any] = {"first_step": 0, "last_step": len(source) // BATCH}
    loader = make_loader(source, canvas_px=CANVAS_PX, batch=BATCH, seed=0, workers=WORKERS, **steps)
    return list(dict.fromkeys(name for canvases in loader for name in canvases.failed))


def watch(command: list[str], timeout_s: float) -> tuple[str, float]:
    """The last line that it prints, and the most memory in MB of it and its workers together."""
    peak = 0.0
    with tempfile.TemporaryFile("w+") as out:
        limited = ["timeout", str(timeout_s), *command]
        process = subprocess.Popen(limited, env=environment(), stdout=out, stderr=out)
        while process.poll() is None:
            peak = max(peak, sum(map(memory_mb, with_children(process.pid))))
            time.sleep(0.05)
        out.seek(0)
        printed = out.read()
    assert process.returncode == 0, printed
    return printed.splitlines()[-1], peak


def with_children(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has just ended
        return []
    return [pid, *(pid for child in children for pid in with_children(int(child)))]


def memory_mb(pid: int) -> float:
    """Resident; a page that some processes share counts once among them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0.0


def fuzz_loader(scratch: Path, count: int, seed: int, timeout_s: float) -> dict[str, Any]:
    """Make the files, read them, pack them; raises if anything is wrong."""
    expected = make_files(scratch / "files", count, seed)
    began = time.monotonic()
    module = [sys.executable, "-m", "tests.data.fuzz", str(scratch / "files")]
    line, peak_mb = watch(module, timeout_s)
    options = ("--max-side-px", str(CANVAS_PX), "--workers", str(WORKERS))
    pack = [sys.executable, "-m", "croc", "data", "pack", str(scratch / "files"), *options]
    _, pack_peak_mb = watch([*pack, "--to", str(scratch / "packed")], timeout_s)
    assert max(peak_mb, pack_peak_mb) < MEMORY_MB, (peak_mb, pack_peak_mb)
    bad, failed = {name for name, file in expected.items() if not file.is_good}, json.loads(line)
    wrong = [f"{expected[name].kind}: {name}" for name in bad ^ set(failed)]
    assert not wrong, "\n".join([f"{len(wrong)} wrong", *wrong[:50]])
    record = json.loads((scratch / "packed" / "pack.json").read_text())
    assert sorted(record["failed"]) == sorted(failed)
    assert record["count"] == len(expected) - len(failed)
    return {
        "good": record["count"],
        "failed": len(failed),
        "kinds": len({file.kind for file in expected.values()}),
        "seconds": round(time.monotonic() - began, 1),
        "peak_mb": round(peak_mb),
        "pack_peak_mb": round(pack_peak_mb),
    }


if __name__ == "__main__":
    print(json.dumps(read_epoch(sys.argv[1])))
