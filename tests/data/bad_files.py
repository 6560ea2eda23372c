"""Folders of every kind of bad file, and what a loader must make of each."""

import io
import os
import random
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from croc.data.sources import printable
from tests.data.pictures import encode, jpeg_claiming, png_chunk, png_header
from tests.data.test_decode import STORED

CANVAS_PX, BATCH = 64, 8


class Verdict(StrEnum):
    """What a file must count as."""

    GOOD = "good"
    FAILED = "failed"
    NO_IMAGE = "no image"


@dataclass(frozen=True)
class Expected:
    """Of one file; of a good one also its size on the canvas and mean colour, where known."""

    kind: str
    verdict: Verdict
    size: tuple[int, int] | None = None
    colour: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Drawn:
    """A file to be written."""

    data: bytes
    extension: str
    expected: Expected


# Good files: from a picture to a file, and the picture that it should show.

Maker = Callable[[Image.Image, random.Random], tuple[bytes, Image.Image]]


def _plain(file_format: str, mode: str = "RGB", **options: Any) -> Maker:
    def make(picture: Image.Image, _: random.Random) -> tuple[bytes, Image.Image]:
        converted = picture.convert(mode)
        return encode(converted, file_format, **options), converted.convert("RGB")

    return make


def _see_through(file_format: str, mode: str, **options: Any) -> Maker:
    def make(picture: Image.Image, draw: random.Random) -> tuple[bytes, Image.Image]:
        opaque = draw.randrange(256)
        page = Image.new("RGB", picture.size, "white")
        shown = Image.blend(page, picture.convert(mode[:-1]).convert("RGB"), opaque / 255)
        picture = picture.convert(mode)
        picture.putalpha(opaque)
        return encode(picture, file_format, **options), shown

    return make


def _wide(file_format: str) -> Maker:
    def make(picture: Image.Image, _: random.Random) -> tuple[bytes, Image.Image]:
        grey = picture.convert("L")
        values = np.asarray(grey).astype(np.uint16) * 257
        return encode(values, file_format), grey.convert("RGB")

    return make


def _animated(file_format: str, **options: Any) -> Maker:
    def make(picture: Image.Image, draw: random.Random) -> tuple[bytes, Image.Image]:
        others = [Image.new("RGB", picture.size, (draw.randrange(256), 0, 0)) for _ in range(2)]
        return encode(picture, file_format, save_all=True, append_images=others, **options), picture

    return make


def _turned(file_format: str) -> Maker:
    def make(picture: Image.Image, draw: random.Random) -> tuple[bytes, Image.Image]:
        exif, orientation = Image.Exif(), draw.randint(1, 8)
        exif[0x0112] = orientation
        stored = np.ascontiguousarray(STORED[orientation](np.asarray(picture)))
        return encode(stored, file_format, exif=exif), picture

    return make


GOOD: dict[str, tuple[str, Maker]] = {
    "jpeg": ("jpg", _plain("JPEG")),
    "grey jpeg": ("JPG", _plain("JPEG", "L")),
    "CMYK jpeg": ("jpeg", _plain("JPEG", "CMYK", quality=95)),
    "progressive jpeg": ("jpg", _plain("JPEG", progressive=True)),
    "turned jpeg": ("jpg", _turned("JPEG")),
    "jpeg named png": ("png", _plain("JPEG")),
    "png": ("png", _plain("PNG")),
    "grey png": ("png", _plain("PNG", "L")),
    "palette png": ("png", _plain("PNG", "P")),
    "1 bit png": ("png", _plain("PNG", "1")),
    "16 bit png": ("png", _wide("PNG")),
    "RGBA png": ("png", _see_through("PNG", "RGBA")),
    "LA png": ("png", _see_through("PNG", "LA")),
    "turned png": ("png", _turned("PNG")),
    "png named jpg": ("jpg", _plain("PNG")),
    "webp": ("webp", _plain("WEBP")),
    "lossless webp": ("webp", _plain("WEBP", lossless=True)),
    "RGBA webp": ("webp", _see_through("WEBP", "RGBA", lossless=True, exact=True)),
    "animated webp": ("webp", _animated("WEBP", lossless=True)),
    "gif": ("gif", _plain("GIF", "P")),
    "animated gif": ("gif", _animated("GIF")),
    "bmp": ("bmp", _plain("BMP")),
    "grey bmp": ("bmp", _plain("BMP", "L")),
    "palette bmp": ("bmp", _plain("BMP", "P")),
    "tiff": ("tif", _plain("TIFF")),
    "16 bit tiff": ("tiff", _wide("TIFF")),
    "CMYK tiff": ("tiff", _plain("TIFF", "CMYK")),
    "ppm": ("ppm", _plain("PPM")),
}


def draw_picture(draw: random.Random) -> Image.Image:
    """One colour and some noise: its mean tells it apart from its neighbours in any format."""
    height, width = draw.randint(24, CANVAS_PX), draw.randint(24, CANVAS_PX)
    colour = [draw.randint(30, 225) for _ in range(3)]
    grain = np.random.default_rng(draw.randrange(1 << 32)).integers(-20, 21, (height, width, 3))
    return Image.fromarray((np.array(colour) + grain).astype(np.uint8))


def _good(kind: str) -> Callable[[random.Random], Drawn]:
    extension, make = GOOD[kind]

    def drawn(draw: random.Random) -> Drawn:
        data, shown = make(draw_picture(draw), draw)
        colour = tuple(np.asarray(shown).mean((0, 1)).tolist())
        size = (shown.height, shown.width)
        return Drawn(data, extension, Expected(kind, Verdict.GOOD, size, colour))

    return drawn


# Bad files.


def _bad(kind: str, extension: str, data: Callable[[], bytes]) -> Callable[[random.Random], Drawn]:
    return lambda _: Drawn(data(), extension, Expected(kind, Verdict.FAILED))


def _cut(kind: str, share: float) -> Callable[[random.Random], Drawn]:
    def drawn(draw: random.Random) -> Drawn:
        whole = _good(kind)(draw)
        end = max(1, int(len(whole.data) * draw.uniform(share - 0.05, share)))
        return replace(
            whole,
            data=whole.data[:end],
            expected=Expected(f"{kind}, cut at {share:.0%}", Verdict.FAILED),
        )

    return drawn


def _flipped(kind: str, part: str) -> Callable[[random.Random], Drawn]:
    """Some are still pictures: then they are used as they are, if Pillow alone can read them."""

    def drawn(draw: random.Random) -> Drawn:
        whole = _good(kind)(draw)
        data = bytearray(whole.data)
        area = range(64) if part == "header" else range(64, len(data))
        for _ in range(draw.randint(1, 4)):
            data[draw.choice(area) % len(data)] ^= 1 << draw.randrange(8)
        verdict = Verdict.GOOD if _pillow_reads(bytes(data)) else Verdict.FAILED
        return replace(
            whole, data=bytes(data), expected=Expected(f"{kind}, bits of its {part}", verdict)
        )

    return drawn


def _pillow_reads(data: bytes) -> bool:
    formats = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data), formats=formats) as image:
                if image.width * image.height > 1e8:
                    return False
                image.convert("RGB")
        except Exception:
            return False
    return True


def _inflating(gigabytes: int = 2) -> bytes:
    """Deflated zeros: 64 MiB of them, said again and again."""
    deflate = zlib.compressobj(9, wbits=-15)
    block = deflate.compress(bytes(1 << 26)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\x9c" + block * (16 * gigabytes)


def _text_bomb(kind: bytes, before: bytes) -> Callable[[], bytes]:
    return lambda: png_header(1, 1, bytes(4), png_chunk(kind, before + _inflating()))


def _pixel_bomb(width: int, height: int) -> bytes:
    whole = png_header(width, height)
    start = whole.index(b"IDAT") - 4
    return whole[:start] + png_chunk(b"IDAT", _inflating()) + png_chunk(b"IEND", b"")


def _gif_claiming(side: int) -> bytes:
    data = encode(Image.new("P", (8, 8)), "GIF")
    return data[:6] + struct.pack("<HH", side, side) + data[10:]


def _bmp_claiming(side: int) -> bytes:
    data = encode(Image.new("RGB", (8, 8)), "BMP")
    return data[:18] + struct.pack("<ii", side, side) + data[26:]


HUGE = 60_000
BAD: dict[str, tuple[str, Callable[[], bytes]]] = {
    "empty": ("jpg", lambda: b""),
    "one byte": ("jpg", lambda: b"\xff"),
    "zeros": ("png", lambda: bytes(4096)),
    "text": ("jpg", lambda: b"These are not the pixels.\n" * 20),
    "html": ("jpg", lambda: b"<!doctype html><title>404</title><h1>Not found</h1>"),
    "svg": ("png", lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
    "eps": ("jpg", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 5\n"),
    "huge png": ("png", lambda: png_header(HUGE, HUGE)),
    "huge jpeg": ("jpg", lambda: jpeg_claiming(encode(Image.new("L", (8, 8)), "JPEG"), HUGE, HUGE)),
    "huge gif": ("gif", lambda: _gif_claiming(HUGE)),
    "huge bmp": ("bmp", lambda: _bmp_claiming(HUGE)),
    "wide png": ("png", lambda: png_header(2**31 - 1, 1)),
    "no pixels": ("png", lambda: png_header(0, 0)),
    "png of gigabytes": ("png", lambda: _pixel_bomb(30_000, 24_000)),
    "zTXt of gigabytes": ("png", _text_bomb(b"zTXt", b"Comment\0\0")),
    "iTXt of gigabytes": ("png", _text_bomb(b"iTXt", b"Comment\0\1\0\0\0")),
    "iCCP of gigabytes": ("png", _text_bomb(b"iCCP", b"profile\0\0")),
}

CUTS = [
    (kind, share)
    for kind in ("jpeg", "progressive jpeg", "png", "webp", "gif", "bmp", "tiff")
    for share in (0.05, 0.3, 0.6, 0.9)
]
FLIPS = [
    (kind, part)
    for kind in ("jpeg", "progressive jpeg", "png", "webp", "gif", "bmp", "tiff", "ppm")
    for part in ("header", "body")
]

# Pictures of a permitted size that are small files: good, and heavy. Each once; the first two are
# also in a small folder.
LARGE: dict[str, tuple[str, Callable[[], bytes]]] = {
    "gif of 121 megapixels": ("gif", lambda: _one_colour("P", 11_000, "GIF")),
    "webp of 47 megapixels": (
        "webp",
        lambda: _one_colour("RGB", 6_900, "WEBP", lossless=True, quality=0, method=0),
    ),
    "jpeg of 169 megapixels": ("jpg", lambda: _one_colour("RGB", 13_000, "JPEG")),
    "png of 121 megapixels": ("png", lambda: _one_colour("RGBA", 11_000, "PNG", compress_level=1)),
    "16 bit png of 121 megapixels": ("png", lambda: _one_colour("I;16", 11_000, "PNG")),
    "progressive jpeg of 121 megapixels": (
        "jpg",
        lambda: _one_colour("RGB", 11_000, "JPEG", progressive=True),
    ),
}


def _one_colour(mode: str, side: int, file_format: str, **options: Any) -> bytes:
    colour = {"RGBA": (0, 0, 0, 255)}.get(mode, 0)
    return encode(Image.new(mode, (side, side), colour), file_format, **options)


# Names, for good files and bad.

NAMES: dict[str, Callable[[str], bytes]] = {
    "unicode": lambda own: f"naïve 東京 🐊 {own}".encode(),
    "new line": lambda own: f"two\nlines\r{own}".encode(),
    "quotes": lambda own: f"'a' \"b\" `c` $(d) {own}".encode(),
    "dash": lambda own: f"--{own}".encode(),
    "255 bytes": lambda own: own.encode().ljust(255, b"x"),
    "no utf-8": lambda own: b"latin-\xe9 " + own.encode(),
    "terminal": lambda own: f"\x1b[2J\x07{own}".encode(),
    "backslash": lambda own: rf"back\nslash {own}".encode(),
}


def make_files(folder: Path, count: int, seed: int) -> dict[str, Expected]:
    """Fill a new folder; what each file must count as, by the name a source should give it."""
    draw, kinds = random.Random(seed), _kinds()
    expected = dict(_make_special(folder, draw))
    drawn = [kinds[number % len(kinds)](draw) for number in range(count - len(expected))]
    for kind, (extension, make) in list(LARGE.items())[: 2 if count < 1000 else None]:
        made = Expected(kind, Verdict.GOOD, (CANVAS_PX, CANVAS_PX), (0, 0, 0))
        drawn[draw.randrange(len(drawn))] = Drawn(make(), extension, made)
    others = sum(each.verdict is Verdict.NO_IMAGE for each in expected.values())
    images = len(expected) - others + len(drawn)
    drawn += [_good("jpeg")(draw) for _ in range(-images % BATCH)]  # an epoch shows whole batches
    for number, each in enumerate(drawn):
        own = f"{draw.randrange(1 << 24):06x}-{number}"
        odd = draw.random() < 0.2
        stem = draw.choice([*NAMES.values()])(own) if odd else own.encode()
        ending = b"." + each.extension.encode()
        inside = os.fsencode(folder / f"{number % 5}")
        os.makedirs(inside, exist_ok=True)
        path = os.path.join(inside, stem[: 255 - len(ending)] + ending)
        with open(path, "xb") as file:
            file.write(each.data)
        expected[printable(path)] = each.expected
    return expected


def _kinds() -> list[Callable[[random.Random], Drawn]]:
    """Half of them good, so that never a hundred bad ones lie in a row."""
    cache: dict[str, bytes] = {}

    def once(kind: str, make: Callable[[], bytes]) -> Callable[[], bytes]:
        return lambda: cache[kind] if kind in cache else cache.setdefault(kind, make())

    bad = [_bad(kind, extension, once(kind, make)) for kind, (extension, make) in BAD.items()]
    bad += [_cut(*each) for each in CUTS]
    bad += [_flipped(*each) for each in FLIPS]
    good = [_good(kind) for kind in GOOD]
    return [each for pair in zip(bad, good * 9) for each in pair]


def _make_special(folder: Path, draw: random.Random) -> Iterator[tuple[str, Expected]]:
    """What is no plain file, or is none of the images."""
    inside = folder / "special"
    inside.mkdir(parents=True)
    (inside / "itself.jpg").symlink_to(inside / "itself.jpg")
    (inside / "round").symlink_to(folder)
    (inside / "dangling.jpg").symlink_to(inside / "nothing.jpg")
    (inside / "folder.jpg").mkdir()
    os.mkfifo(inside / "pipe.jpg")
    (inside / "link to pipe.jpg").symlink_to(inside / "pipe.jpg")
    picture = _good("jpeg")(draw)
    for name in (".hidden.jpg", "other.txt", "other.jpg.part", "other"):
        (inside / name).write_bytes(picture.data)
    for path in inside.iterdir():
        yield printable(os.fsencode(path)), Expected(path.name, Verdict.NO_IMAGE)

    (inside / "locked.jpg").write_bytes(picture.data)
    (inside / "locked.jpg").chmod(0)
    readable = os.access(inside / "locked.jpg", os.R_OK)  # the superuser may
    locked = replace(picture.expected, kind="locked")
    yield (
        printable(os.fsencode(inside / "locked.jpg")),
        locked if readable else Expected("locked", Verdict.FAILED),
    )
    (inside / "linked.jpg").symlink_to(folder / "elsewhere.txt")
    (folder / "elsewhere.txt").write_bytes(picture.data)
    yield printable(os.fsencode(inside / "linked.jpg")), replace(picture.expected, kind="linked")
