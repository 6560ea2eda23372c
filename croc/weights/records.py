"""What a pickle names, as inert records: nothing that a file asks for is imported or called.

The unpickler gets a stand-in for every class and function: tensors and arrays become notes of
where their numbers lie, anything else a `Record` of its name, arguments and state.
"""

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

# Safety does not rest on this list, nothing is ever called; but a file that asks for these is
# hostile, and whoever opens it should know.
HOSTILE = {
    *("os", "posix", "nt", "subprocess", "sys", "shutil", "socket", "importlib", "runpy"),
    *("ctypes", "pty", "webbrowser", "code", "pdb", "timeit", "multiprocessing", "asyncio"),
    *("urllib", "http", "ftplib", "requests"),
}
LOADERS = {"load", "loads", "_load", "_legacy_load"}
"""Functions of torch, pickle and others that open a file of the next one's choice."""
HARMLESS_BUILTINS = {
    *("set", "frozenset", "bytearray", "complex", "slice", "range", "object", "bool", "int"),
    *("float", "str", "bytes", "list", "tuple", "dict"),
}


class HostileFile(pickle.UnpicklingError):
    """A file that asks to run something."""


class Record:
    """An object that a file describes, never made: its class, how to make it, what it holds."""

    kind: ClassVar[str] = ""

    def __new__(cls, *args: Any, **named: Any) -> "Record":
        self = super().__new__(cls)
        self.args, self.named = args, named
        self.state, self.entries, self.values = None, {}, []
        return self

    args: tuple[Any, ...]
    named: dict[str, Any]
    state: Any
    entries: dict[Any, Any]
    values: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, value: Any) -> None:
        self.values.append(value)

    def extend(self, values: Any) -> None:
        self.values.extend(values)

    add = append


class InertDict(dict[Any, Any]):
    """An OrderedDict's entries; its attributes (`_metadata`) are left out."""

    def __setstate__(self, state: Any) -> None:
        pass


@dataclass
class Storage:
    """The numbers that several tensors may share; read from the file when they are asked for."""

    dtype: torch.dtype
    read: Callable[[], bytes]

    @cached_property
    def numbers(self) -> Tensor:
        raw = bytearray(self.read())
        count = len(raw) // self.dtype.itemsize
        empty = torch.empty(0, dtype=self.dtype)
        return torch.frombuffer(raw, dtype=self.dtype, count=count) if count else empty

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a storage has no state")


@dataclass
class StoredTensor:
    """Where a tensor lies in its storage."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def tensor(self) -> Tensor:
        """torch itself refuses a view beyond the storage's end."""
        return self.storage.numbers.as_strided(self.size, self.stride, self.offset)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a tensor has no state")


class StoredDtype:
    """A number's type in numpy's letters."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def dtype(self) -> np.dtype:
        if not re.fullmatch(r"[biufc]\d+", str(self.code)) or self.order not in "<>=|":
            raise pickle.UnpicklingError(f"no numbers: numpy's {self.code}")
        return np.dtype(self.order.replace("|", "=") + str(self.code))


class StoredArray:
    """A numpy array or number: type, shape and bytes."""

    def __init__(self, *_: Any) -> None:
        self.shape, self.kind, self.fortran, self.raw = (), StoredDtype("f8"), False, b""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.kind, self.fortran, self.raw = state

    def array(self) -> np.ndarray:
        raw = self.raw.encode("latin1") if isinstance(self.raw, str) else self.raw
        flat = np.frombuffer(raw, dtype=self.kind.dtype())
        native = flat.astype(flat.dtype.newbyteorder("="))
        return native.reshape(self.shape, order="F" if self.fortran else "C")


class StandIn:
    """One of the functions below, to be called by a file but not to be changed by it."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    def __call__(self, *args: Any) -> Any:
        return self.make(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a function has no state")


def stand_in(module: str, name: str) -> Any:
    """What the unpickler gets instead of what the file names."""
    root = module.partition(".")[0]
    is_method = "." in name and name.rpartition(".")[2][:1].islower()  # as pathlib's Path.touch
    is_function = root in ("builtins", "__builtin__") and name not in HARMLESS_BUILTINS
    is_loader = name in LOADERS or module == "torch.hub"
    if root in HOSTILE or is_method or is_function or is_loader:
        raise HostileFile(f"{module}.{name}")
    if root == "numpy":
        module = module.replace("numpy._core", "numpy.core")
    found = STAND_INS.get((module, name))
    if found is not None:
        return found
    if module in ("torch", "torch.storage") and name in STORAGES:
        return STORAGES[name]
    return type("Record", (Record,), {"kind": f"{module}.{name}"})


def _tensor(storage: Storage, offset: int, size: Any, stride: Any, *_: Any) -> StoredTensor:
    if not isinstance(storage, Storage):
        raise pickle.UnpicklingError("a tensor without numbers")
    return StoredTensor(storage, offset, tuple(size), tuple(stride))


def _tensor_of_type(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> StoredTensor:
    """With the type beside the storage: (requires_grad, hooks, type)."""
    made = _tensor(storage, offset, size, stride)
    if not isinstance(rest[2], torch.dtype):
        raise pickle.UnpicklingError("a tensor of no type")
    return StoredTensor(Storage(rest[2], storage.read), made.offset, made.size, made.stride)


def _array_scalar(kind: StoredDtype, raw: Any) -> StoredArray:
    made = StoredArray()
    made.kind, made.raw = kind, raw
    return made


def _array_of_buffer(raw: Any, kind: StoredDtype, shape: Any, order: str) -> StoredArray:
    made = _array_scalar(kind, raw)
    made.shape, made.fortran = shape, order == "F"
    return made


def _first(given: Any, *_: Any) -> Any:
    return given


def _made_anew(kind: Any, *_: Any) -> Any:
    """copyreg's way of the oldest pickles: (class, base, state)."""
    if not (isinstance(kind, type) and issubclass(kind, Record)):
        raise pickle.UnpicklingError("an object of no class")
    return kind()


def _bytes(text: str, *_: Any) -> bytes:
    return text.encode("latin1")


STAND_INS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): InertDict,
    ("torch._utils", "_rebuild_tensor"): StandIn(_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): StandIn(_tensor),
    ("torch._utils", "_rebuild_tensor_v3"): StandIn(_tensor_of_type),
    ("torch._utils", "_rebuild_parameter"): StandIn(_first),
    ("numpy.core.multiarray", "_reconstruct"): StoredArray,
    ("numpy.core.multiarray", "scalar"): StandIn(_array_scalar),
    ("numpy.core.numeric", "_frombuffer"): StandIn(_array_of_buffer),
    ("numpy", "dtype"): StoredDtype,
    ("_codecs", "encode"): StandIn(_bytes),
    ("copyreg", "_reconstructor"): StandIn(_made_anew),
    **{
        ("torch", str(dtype).partition(".")[2]): dtype
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64)
    },
}
STORAGES: dict[str, torch.dtype] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "UntypedStorage": torch.uint8,
}
