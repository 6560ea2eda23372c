"""Files of torch (of today and of before 1.6) and plain pickles, read without running any."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from croc.weights.records import Record, Storage, stand_in

MAGIC = 0x1950A86A20F9469CFC6C  # opens torch's files of before 1.6
Places = dict[str, tuple[int, int]]
"""Where each storage's bytes lie in the file: first byte and number."""


class InertUnpickler(pickle.Unpickler):
    """An unpickler that finds nothing but stand-ins."""

    def __init__(self, stream: io.BufferedIOBase, path: Path) -> None:
        # Latin-1, since Python 2 kept arrays' bytes as text.
        super().__init__(stream, encoding="latin1")
        self.path = path
        self.places: Places = {}
        self.storages: dict[str, Storage] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return stand_in(module_name, global_name)

    def persistent_load(self, pid: Any) -> Any:
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"):
            return Record(pid)  # the source code that old files keep beside a module
        _, dtype, key = pid[:3]
        if not isinstance(dtype, torch.dtype) or (len(pid) > 5 and pid[5] is not None):
            raise pickle.UnpicklingError("a storage of no type, or a part of another one")
        key = str(key)
        if key not in self.storages:
            self.storages[key] = Storage(dtype, lambda: self._read(key))
        return self.storages[key]

    def _read(self, key: str) -> bytes:
        first, count = self.places[key]
        with self.path.open("rb") as file:
            file.seek(first)
            raw = file.read(count)
        if len(raw) < count:
            raise EOFError("the file ends early")
        return raw


def read_pickled(path: Path) -> Any:
    """What a file holds: dicts, lists, numbers, stored tensors and records."""
    with path.open("rb") as file:
        head = file.read(512)
        file.seek(0)
        if head[:4] == b"PK\3\4":
            return _read_zip(file, path)
        if head[257:262] == b"ustar":
            raise ValueError("it is a tar archive, unpack it")
        return _read_stream(file, path)


def _read_zip(file: io.BufferedReader, path: Path) -> Any:
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
            raise ValueError("its parts are compressed")  # torch's are not; some would fill memory
        pages = [name for name in entries if name.rpartition("/")[2] == "data.pkl"]
        if len(pages) != 1:
            raise ValueError("a zip file that torch did not write")
        root = pages[0].removesuffix("data.pkl")
        if f"{root}byteorder" in entries and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("its numbers are big-endian")
        unpickler = InertUnpickler(io.BytesIO(archive.read(pages[0])), path)
        content = unpickler.load()
    for key in unpickler.storages:
        entry = entries[f"{root}data/{key}"]
        file.seek(entry.header_offset + 26)  # two lengths stand between the header and the bytes
        name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
        unpickler.places[key] = entry.header_offset + 30 + name + extra, entry.file_size
    return content


def _read_stream(file: io.BufferedReader, path: Path) -> Any:
    first = InertUnpickler(file, path).load()
    if not isinstance(first, int) or first != MAGIC:
        return first
    for _ in ("protocol", "system"):
        InertUnpickler(file, path).load()
    unpickler = InertUnpickler(file, path)
    content = unpickler.load()
    end = path.stat().st_size
    for key in map(str, InertUnpickler(file, path).load()):
        numbers = int.from_bytes(file.read(8), "little")
        count = numbers * unpickler.storages[key].dtype.itemsize
        unpickler.places[key] = file.tell(), count
        if file.tell() + count > end:
            raise EOFError("the file ends early")
        file.seek(count, io.SEEK_CUR)
    return content
