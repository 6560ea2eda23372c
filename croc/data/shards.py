"""Tar shards (WebDataset), read at random: members are indexed once, then read by offset."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import UInt8

from croc.data.decode import UndecodableImage, decode_image
from croc.data.sources import PackedNames, is_image, printable
from croc.errors import UserError
from croc.signals import is_first_process

_PIPE = "pipe:"
# A member is read at once; the largest image that is decoded has about this size uncompressed.
_MAX_MEMBER_BYTES = 1 << 29
# tarfile reads long names and the like at once, however large they claim to be.
_MAX_EXTENSION_BYTES = 1 << 16
_EXTENSIONS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)


class ShardSource:
    """The image members of tar shards, shard by shard, in their order there.

    The output of a 'pipe:COMMAND' shard is first stored in a temporary folder (under $TMPDIR,
    removed at exit), so that it can be read at random too and a run resumed exactly.
    """

    def __init__(self, shards: Sequence[str], canvas_px: int) -> None:
        self.canvas_px = canvas_px
        self._shards: list[str] = []
        for pattern in shards:  # a name that exists is taken literally
            self._shards += [pattern] if os.path.exists(pattern) else expand_braces(pattern)
        self._paths = self._download()
        names: list[bytes] = []
        places: list[tuple[int, int, int]] = []
        for number, (shard, path) in enumerate(zip(self._shards, self._paths)):
            for name, offset, size in _members(shard, path):
                names.append(name)
                places.append((number, offset, size))
        if not places:
            raise UserError(f"no images in {', '.join(shards)}: pass another --data.root")
        self._names = PackedNames(names)
        self._places = np.array(places, np.int64)

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        shard = os.fsencode(self._shards[self._places[index, 0]])
        return f"{printable(shard)}:{printable(self._names[index])}"

    def read(self, index: int) -> UInt8[np.ndarray, "h w 3"]:
        shard, offset, size = self._places[index].tolist()
        if size > _MAX_MEMBER_BYTES:
            raise UndecodableImage(f"too large: {size:,} bytes")
        try:
            with open(self._paths[shard], "rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise UndecodableImage(f"cannot be read: {error.strerror}") from error
        return decode_image(data, self.canvas_px)

    def _download(self) -> list[str]:
        """Runs the pipes' commands; the paths of all shards."""
        paths = list(self._shards)
        pipes = [number for number, shard in enumerate(paths) if shard.startswith(_PIPE)]
        if pipes:
            folder = tempfile.mkdtemp(prefix="croc-shards-")
            weakref.finalize(self, _remove, folder, os.getpid())
            for number in pipes:
                paths[number] = f"{folder}/{number}.tar"
                with open(paths[number], "wb") as file:
                    command = self._shards[number].removeprefix(_PIPE)
                    status = subprocess.run(command, shell=True, stdout=file).returncode
                if status:
                    raise UserError(f"{self._shards[number]} failed with exit code {status}")
        return paths


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not when a forked worker's copy is collected
        shutil.rmtree(folder, ignore_errors=True)


def expand_braces(text: str) -> list[str]:
    """As bash does: 'x-{000..009}-{a,b}.tar' becomes twenty names."""
    for start in (match.start() for match in re.finditer(r"\{", text)):
        depth, cuts = 0, [start]
        for end in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                break
            if depth == 1 and text[end] == ",":
                cuts.append(end)
        else:  # not closed
            continue
        parts = [text[before + 1 : after] for before, after in pairwise([*cuts, end])]
        ends = re.fullmatch(r"(\d+)\.\.(\d+)|([a-zA-Z])\.\.([a-zA-Z])", parts[0])
        if len(parts) > 1:
            choices = [choice for part in parts for choice in expand_braces(part)]
        elif ends and ends[1]:
            padded = any(len(number) > 1 and number[0] == "0" for number in ends.group(1, 2))
            width = max(map(len, ends.group(1, 2))) if padded else 0
            choices = [f"{n:0{width}d}" for n in _inclusive(int(ends[1]), int(ends[2]))]
        elif ends:
            choices = [chr(n) for n in _inclusive(ord(ends[3]), ord(ends[4]))]
        else:  # literal
            continue
        rests = expand_braces(text[end + 1 :])
        return [text[:start] + choice + rest for choice in choices for rest in rests]
    return [text]


def _inclusive(first: int, last: int) -> range:
    step = 1 if first <= last else -1
    return range(first, last + step, step)


def _members(shard: str, path: str) -> Iterator[tuple[bytes, int, int]]:
    """Name, offset and size of the images that are complete; prints what is left out.

    Nothing is unpacked, so a name that points elsewhere (../x.jpg) is just a name.
    """
    if not os.path.exists(path):
        raise UserError(f"no such shard: {shard}")
    if not os.path.isfile(path):  # reading a named pipe would block forever
        raise UserError(f"{shard} is not a regular file: pass 'pipe:cat {shard}' to read it")
    try:
        archive = tarfile.open(path, "r:", tarinfo=_Header)  # noqa: SIM115, closed below
    except Exception as error:  # on forged headers tarfile raises more than its own errors
        raise UserError(
            f"{shard} is not a readable tar archive ({error}); "
            f"if it is compressed, pass 'pipe:gzip -dc {shard}'"
        ) from error
    left_out: Counter[str] = Counter()
    length = os.path.getsize(path)
    with archive:
        for member in _headers(archive, shard):
            name = os.fsencode(member.name)
            if not is_image(os.path.basename(name)) or member.isdir():
                continue
            if member.islnk() or member.issym():
                left_out["links"] += 1
            elif not member.isreg():
                left_out["special files"] += 1
            elif member.issparse():
                left_out["sparse"] += 1
            elif member.size < 0 or member.offset_data + member.size > length:
                left_out["incomplete"] += 1
            else:
                yield name, member.offset_data, member.size
    if left_out:
        counts = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        _warn(f"{shard}: images left out: {counts}")


class _Header(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENSIONS and not 0 <= header.size <= _MAX_EXTENSION_BYTES:
            raise tarfile.HeaderError(f"a header of {header.size} bytes")
        return header


def _headers(archive: tarfile.TarFile, shard: str) -> Iterator[tarfile.TarInfo]:
    """Up to the end of the archive or to where it is damaged: what came before is good."""
    last, complete = -1, False
    # On forged headers tarfile raises nearly anything; a negative size leads back, endlessly.
    try:
        while (member := archive.next()) is not None and member.offset > last:
            yield member
            last = member.offset
        if member is None:
            assert archive.fileobj is not None
            archive.fileobj.seek(archive.offset)
            complete = archive.fileobj.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
    except Exception:
        complete = False
    if not complete:
        _warn(f"{shard} is truncated or damaged: only images before byte {archive.offset:,} used")


def _warn(line: str) -> None:
    if is_first_process():
        print(f"croc: {line}", file=sys.stderr)
