"""WebDataset tar shards, read at random: each image's place is looked up once, then sought."""

import os
import shutil
import sys
import tarfile
import tempfile
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import Any

import numpy as np
from braceexpand import braceexpand
from jaxtyping import UInt8

from croc.data.decode import UndecodableImage, decode_image
from croc.data.folders import is_image
from croc.data.names import PackedNames, printable
from croc.errors import UserError
from croc.train.rank import is_first_process

_PIPE = "pipe:"
_SUFFIXES = (".tar", ".tar.gz", ".tgz")
_OPEN_AT_ONCE = 64
# A member is read at once; the largest picture that is decoded, uncompressed, has about this many.
_LARGEST_MEMBER_BYTES = 1 << 29
# Long names and the like: tarfile reads them at once, however much they claim to be.
_LONGEST_EXTENSION_BYTES = 1 << 16
_EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


def is_shard(root: str) -> bool:
    """Whether a root is meant as a shard, or a pattern of shards."""
    return root.startswith(_PIPE) or root.endswith(_SUFFIXES)


def expand_shards(patterns: Sequence[str]) -> list[str]:
    """'x-{000..009}.tar' as ten names; a name that exists is taken as it is."""
    expanded: list[str] = []
    for pattern in patterns:
        literal = "{" not in pattern or os.path.exists(pattern)
        try:
            expanded += [pattern] if literal else braceexpand(pattern, escape=False)
        except ValueError:
            raise UserError(f"--data.root {pattern}: a brace is not closed") from None
    return expanded


class ShardSource:
    """The image members of tar shards, shard by shard, in the order in which they lie there.

    A 'pipe:COMMAND' shard is spooled into a temporary folder first (under $TMPDIR, removed at
    exit), so that it too can be read at random and a run resumed exactly.
    """

    def __init__(self, shards: Sequence[str], canvas_px: int) -> None:
        self.canvas_px = canvas_px
        self._shards = expand_shards(shards)
        self._paths = self._spool_pipes()
        self._files = OpenFiles()
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
        if size > _LARGEST_MEMBER_BYTES:
            raise UndecodableImage(f"too large: {size:,} bytes")
        try:
            data = self._files.read(self._paths[shard], offset, size)
        except OSError as error:
            raise UndecodableImage(f"cannot be read: {error.strerror}") from error
        return decode_image(data, self.canvas_px)

    def _spool_pipes(self) -> list[str]:
        if not any(shard.startswith(_PIPE) for shard in self._shards):
            return self._shards
        cache = tempfile.mkdtemp(prefix="croc-shards-")
        weakref.finalize(self, _remove_cache, cache, os.getpid())
        return [
            _spool(shard, f"{cache}/{number}.tar") if shard.startswith(_PIPE) else shard
            for number, shard in enumerate(self._shards)
        ]


def _remove_cache(cache: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker's copy must not empty its parent's cache
        shutil.rmtree(cache, ignore_errors=True)


def _spool(shard: str, path: str) -> str:
    from webdataset.gopen import gopen

    try:
        with gopen(shard, "rb") as stream, open(path, "wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)
    except OSError as error:
        raise UserError(f"the command of {shard} failed: {error}") from error
    return path


def _members(shard: str, path: str) -> Iterator[tuple[bytes, int, int]]:
    """Name, offset and size of the images that lie wholly in the shard; says what is left out.

    Nothing is unpacked, so a name that leads elsewhere (../x.jpg) is but a name.
    """
    left_out: Counter[str] = Counter()
    with _opened(shard, path) as archive:
        length = os.path.getsize(path)
        for member in _whole_headers(archive, shard):
            name = os.fsencode(member.name)
            if not is_image(os.path.basename(name)) or member.isdir():
                continue
            reason = _why_not(member, length)
            if reason:
                left_out[reason] += 1
            else:
                yield name, member.offset_data, member.size
    if left_out:
        counts = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        _say(f"{shard}: images left out: {counts}")


def _opened(shard: str, path: str) -> tarfile.TarFile:
    if not os.path.exists(path):
        raise UserError(f"no such shard: {shard}")
    if not os.path.isfile(path):  # reading a named pipe would wait for ever
        raise UserError(f"{shard} is no file: pass 'pipe:cat {shard}' to read what it gives")
    try:
        return tarfile.open(path, "r:", tarinfo=_Header)
    except Exception as error:  # on forged headers tarfile raises more than its own errors
        hint = f"if it is compressed, pass 'pipe:gzip -dc {shard}'"
        raise UserError(f"{shard} is no readable tar archive ({error}); {hint}") from error


class _Header(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENSIONS and not 0 <= header.size <= _LONGEST_EXTENSION_BYTES:
            raise tarfile.HeaderError(f"a header of {header.size} bytes")
        return header


def _whole_headers(archive: tarfile.TarFile, shard: str) -> Iterator[tarfile.TarInfo]:
    """Up to the end mark, or to where the shard is damaged: what came before is good."""
    last = -1
    while (member := _next(archive)) is not None:
        if member.offset <= last:  # a negative size leads back, and round for ever
            break
        yield member
        last = member.offset
    else:
        if _at_end_mark(archive):
            return
    _say(f"{shard} is cut off or damaged: the images before byte {archive.offset:,} are used")


def _next(archive: tarfile.TarFile) -> tarfile.TarInfo | None:
    try:
        return archive.next()
    except Exception:  # as above
        return None


def _at_end_mark(archive: tarfile.TarFile) -> bool:
    assert archive.fileobj is not None
    try:
        archive.fileobj.seek(archive.offset)
        return archive.fileobj.read(tarfile.BLOCKSIZE) == tarfile.NUL * tarfile.BLOCKSIZE
    except (OSError, OverflowError, ValueError):  # a size beyond all files
        return False


def _why_not(member: tarfile.TarInfo, length: int) -> str | None:
    """Why a member does not hold an image's bytes in one piece."""
    if member.islnk() or member.issym():
        return "links"
    if not member.isreg():
        return "no files"
    if member.issparse():
        return "sparse"
    if member.size < 0 or member.offset_data + member.size > length:
        return "not whole"
    return None


def _say(line: str) -> None:
    if is_first_process():
        print(f"croc: {line}", file=sys.stderr)


class OpenFiles:
    """The files used last, opened when first needed.

    Read by offset and without a position, so that forked processes may share them.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[str, FileIO] = OrderedDict()

    def read(self, path: str, offset: int, size: int) -> bytes:
        if path not in self._files:
            self._files[path] = open(path, "rb", buffering=0)  # noqa: SIM115, closed in __del__
        self._files.move_to_end(path)
        if len(self._files) > _OPEN_AT_ONCE:
            self._files.popitem(last=False)[1].close()
        return os.pread(self._files[path].fileno(), size, offset)

    def __getstate__(self) -> dict[str, Any]:
        return {"_files": OrderedDict()}

    def __del__(self) -> None:
        for file in self._files.values():
            file.close()
