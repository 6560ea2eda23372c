"""Small pictures of known pixels, and sources made of them."""

import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from croc.data.decode import UndecodableImage


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def ramp(height: int, width: int) -> np.ndarray:
    """Smooth, so that JPEG keeps it nearly as it is; all corners differ."""
    rows = np.linspace(0, 200, height)[:, None]
    columns = np.linspace(0, 200, width)[None, :]
    channels = [rows + 0 * columns, columns + 0 * rows, (rows + columns) / 2]
    return np.stack(channels, -1).round().astype(np.uint8)


def encode(picture: np.ndarray | Image.Image, file_format: str = "PNG", **options) -> bytes:
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def png_header(width: int, height: int, data: bytes = b"\0", extra: bytes = b"") -> bytes:
    """A PNG that claims a size and holds next to nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = png_chunk(b"IDAT", zlib.compress(data)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + extra + body


def jpeg_claiming(data: bytes, width: int, height: int) -> bytes:
    """The same JPEG, with another size in its header."""
    at = next(at for at in (data.find(b"\xff\xc0"), data.find(b"\xff\xc2")) if at > 0) + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_tar(path: Path, members: dict[str, bytes], prefix: str = "") -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


class MemorySource:
    """Images of several sizes, the number of the image (mod 256) in every pixel; some broken."""

    def __init__(self, count: int, broken: tuple[int, ...] = ()) -> None:
        self.count = count
        self.broken = frozenset(broken)

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"image {index}"

    def read(self, index: int) -> np.ndarray:
        if index in self.broken:
            raise UndecodableImage("broken on purpose")
        return np.full((4 + index % 3, 8 - index % 5, 3), index % 256, np.uint8)
