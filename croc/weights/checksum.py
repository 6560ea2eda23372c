"""Checksums in our checkpoints and exported files, verified when a file is opened.

torch.load and safetensors return the content of a damaged file as it is. A checkpoint has its
SHA-256 in its zip comment, a safetensors file in its metadata. No single flipped bit, not even one
in the checksum, can make a file look like one without a checksum.

The checksum is the SHA-256 of the SHA-256s of the content's pieces, since one core takes longer to
hash a file than to read it.
"""

import hashlib
import mmap
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from croc.errors import UserError
from croc.io import cores, make_readable

TAG, DIGITS = b"sha256t ", 64
"""What precedes the digits in a zip comment, and their number."""
END = b"PK\x05\x06"
"""The last record of a zip: this, 16 bytes, the length of the comment in two bytes, the comment."""
BLANK = "0" * DIGITS
IN_METADATA = re.compile(rb'"sha256t":"(.{64})"|"[^"]{7}":"([0-9a-f]{64})"', re.DOTALL)
"""The key or the digits are enough, because the other may be what is damaged."""
PIECE = 2**22


def seal_zip(path: Path) -> None:
    """Add the checksum to a file of torch.save."""
    length = len(TAG) + DIGITS
    with path.open("r+b") as file:
        file.seek(-2, 2)
        file.write(length.to_bytes(2, "little") + TAG)
        offset = file.seek(0, 2)
        file.flush()
        file.write(_digest(path, offset, offset).encode())
        file.flush()
        os.fsync(file.fileno())  # before it is renamed, or a crash could leave an empty file


def save_sealed(weights: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """As safetensors' save_file, with the checksum in the metadata."""
    save_file(weights, path, metadata | {"sha256t": BLANK})
    make_readable(path)
    offset = _header(path).index(b'"sha256t":"' + BLANK.encode()) + len('"sha256t":"')
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(_digest(path, path.stat().st_size, offset).encode())


def write_sums(folder: Path) -> None:
    """For `sha256sum --check SHA256SUMS`."""
    lines = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def verify(path: Path) -> bool:
    """Raises for a damaged file; False for one without a checksum: an earlier version's, or another
    project's."""
    is_zip = path.suffix != ".safetensors"
    offset = _find_in_zip(path) if is_zip else _find_in_safetensors(path)
    if offset is None:
        return False
    with path.open("rb") as file:
        file.seek(offset)
        expected = file.read(DIGITS)
    if _digest(path, offset if is_zip else path.stat().st_size, offset).encode() != expected:
        raise UserError(f"{path} is damaged: its checksum does not match")
    return True


def _digest(path: Path, end: int, offset: int) -> str:
    """The checksum of the first `end` bytes, with zeros instead of the one at `offset`."""

    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
        ThreadPoolExecutor(min(8, cores())) as pool,
    ):

        def hash_piece(start: int) -> bytes:
            piece = view[start : start + PIECE]
            low, high = max(offset - start, 0), min(offset + DIGITS - start, len(piece))
            if low < high:
                piece = bytes(piece[:low]) + b"0" * (high - low) + bytes(piece[high:])
            return hashlib.sha256(piece).digest()

        return hashlib.sha256(b"".join(pool.map(hash_piece, range(0, end, PIECE)))).hexdigest()


@contextmanager
def verifying(path: Path) -> Iterator[None]:
    """Verifies the file in threads while the body reads it; neither needs the GIL. The error of a
    damaged file replaces the one that reading it raises."""
    with ThreadPoolExecutor(1) as pool:
        verification = pool.submit(verify, path)
        try:
            yield
        finally:
            verification.result()


def _find_in_zip(path: Path) -> int | None:
    """The offset of the checksum."""
    with path.open("rb") as file:
        offset = file.seek(0, 2) - DIGITS
        start = offset - len(TAG) - 18 - len(END)
        if start < 0:
            return None
        file.seek(start)
        end = file.read(offset - start)
    length = (len(TAG) + DIGITS).to_bytes(2, "little")
    # Either is enough, because the other may be what is damaged.
    is_sealed = (end[:4] == END and end[20:22] == length) or end[22:] == TAG
    return offset if is_sealed else None


def _find_in_safetensors(path: Path) -> int | None:
    match = IN_METADATA.search(_header(path))
    return match and match.start(match.lastindex or 0)


def _header(path: Path) -> bytes:
    """The eight bytes of its length, and the header."""
    with path.open("rb") as file:
        length = file.read(8)
        return length + file.read(min(int.from_bytes(length, "little"), 2**27))
