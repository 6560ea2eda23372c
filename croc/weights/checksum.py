"""A SHA-256 of its own content in every checkpoint and exported file, verified when it is opened.

torch.load and safetensors give back whatever a damaged file contains. A checkpoint has the checksum
in its zip comment, a safetensors file in its metadata. No single flipped bit, not even one in the
checksum, can make a file look like one without a checksum.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from croc.errors import UserError

TAG, DIGITS = b"sha256 ", 64
END = b"PK\x05\x06"
"""Of a zip: this, 16 bytes, the length of the comment in two bytes, the comment."""
BLANK = "0" * DIGITS
IN_METADATA = re.compile(rb'"sha256":"(.{64})"|"[^"]{6}":"([0-9a-f]{64})"', re.DOTALL)


def seal_zip(path: Path) -> None:
    """Add the checksum to a file of torch.save."""
    length = len(TAG) + DIGITS
    with path.open("r+b") as file:
        file.seek(-2, 2)
        file.write(length.to_bytes(2, "little") + TAG)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0, 2)
        file.write(digest.encode())
        file.flush()
        os.fsync(file.fileno())  # before it is renamed, or a crash could leave an empty file


def save_sealed(weights: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """As safetensors' save_file, with the checksum in the metadata."""
    save_file(weights, path, metadata | {"sha256": BLANK})
    with path.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        place = _header(path).index(b'"sha256":"' + BLANK.encode())
        file.seek(place + len('"sha256":"'))
        file.write(digest.encode())


def write_sums(folder: Path) -> None:
    """For `sha256sum --check SHA256SUMS`."""
    lines = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def verify(path: Path) -> bool:
    """Raises for a damaged file; False for one without a checksum: of an earlier version, or of
    other projects."""
    match = _find_in_safetensors(path) if path.suffix == ".safetensors" else _find_in_zip(path)
    if match is None:
        return False
    place, expected = match
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if path.suffix == ".safetensors":  # the checksum counts as zeros
            digest.update(file.read(place) + BLANK.encode())
            file.seek(DIGITS, 1)
            while chunk := file.read(2**20):
                digest.update(chunk)
        else:
            remaining = place
            while chunk := file.read(min(2**20, remaining)):
                digest.update(chunk)
                remaining -= len(chunk)
    if digest.hexdigest().encode() != expected:
        raise UserError(f"{path} is damaged: its checksum does not match")
    return True


@contextmanager
def verifying(path: Path) -> Iterator[None]:
    """Verifies the file in a thread while the body reads it. SHA-256 takes longer than reading, and
    neither needs the GIL. The error of a damaged file replaces the one that reading it raises."""
    with ThreadPoolExecutor(1) as pool:
        verification = pool.submit(verify, path)
        try:
            yield
        finally:
            verification.result()


def _find_in_zip(path: Path) -> tuple[int, bytes] | None:
    """Where the checksum is, and the checksum."""
    with path.open("rb") as file:
        place = file.seek(0, 2) - DIGITS
        if place < len(END) + 18 + len(TAG):
            return None
        file.seek(place - len(TAG) - 18 - len(END))
        end = file.read()
    comment = len(TAG) + DIGITS
    # Either is enough: one of them may be what is damaged.
    has_comment = end[:4] == END and end[20:22] == comment.to_bytes(2, "little")
    return (place, end[-DIGITS:]) if has_comment or end[22:-DIGITS] == TAG else None


def _find_in_safetensors(path: Path) -> tuple[int, bytes] | None:
    match = IN_METADATA.search(_header(path))
    group = match and match.lastindex
    return (match.start(group), match[group]) if match and group else None


def _header(path: Path) -> bytes:
    """The eight bytes of its length, and the header."""
    with path.open("rb") as file:
        length = file.read(8)
        return length + file.read(min(int.from_bytes(length, "little"), 2**27))
