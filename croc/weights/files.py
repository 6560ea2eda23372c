"""Files of weights from anywhere, read without running anything that they contain.

torch's files are read by its restricted loader (`weights_only=True`), plain pickles (detectron2's)
by an unpickler with the same rules: tensors and arrays are built, an object of any other class
becomes an `OpaqueObject`, and functions that could do harm are refused.
"""

import builtins
import codecs
import pickle
import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from croc.errors import UserError
from croc.tables import one_line
from croc.weights.checksum import verifying

ARGUMENTS = ("args", "opt", "hyper_parameters", "cfg", "config", "meta")
NOT_WEIGHTS = {"optimizer", "optimizer_states", "optimizers", "scheduler", "lr_schedulers", "amp"}
LEGACY = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)
"""The first bytes of torch's files from before version 1.6."""
# Nothing is called, but a file that names one of these is refused, so that its user knows.
HARMFUL = {
    *("os", "posix", "nt", "subprocess", "sys", "shutil", "socket", "importlib", "runpy"),
    *("ctypes", "pty", "webbrowser", "multiprocessing", "asyncio", "urllib", "http", "requests"),
}


class HarmfulFile(pickle.UnpicklingError):
    """A file that names a function to run."""


class OpaqueObject:
    """The class name and contents of an object in a file that is never built."""

    kind = ""
    state: Any = None

    def __new__(cls, *_: Any, **__: Any) -> "OpaqueObject":
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"{self.kind}(…)"


class NumpyType:
    """Replaces numpy.dtype; only types of numbers are accepted."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = str(code), "="

    def __setstate__(self, state: Any) -> None:
        self.order = str(state[1]).replace("|", "=")

    def read(self, raw: Any, shape: Any = (), order: Any = "C") -> Tensor:
        if not re.fullmatch(r"[<>=][biufc]\d+", self.order + self.code):
            raise pickle.UnpicklingError(f"numpy's {self.code} are not numbers")
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        array = np.frombuffer(raw, self.order + self.code).reshape(shape, order=order)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))


class NumpyArray:
    """Replaces numpy.ndarray, whose pickle contains its numbers as a state."""

    values: Tensor

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        self.values = kind.read(raw, shape, "F" if fortran else "C")


REPLACEMENTS: dict[str, Any] = {
    "collections.OrderedDict": OrderedDict,
    "_codecs.encode": codecs.encode,
    "numpy.dtype": NumpyType,
    "pathlib.PosixPath": PurePosixPath,
    **{
        f"numpy.{core}.{name}": replacement
        for core in ("core", "_core")
        for name, replacement in (
            ("multiarray._reconstruct", NumpyArray),
            ("multiarray.scalar", lambda kind, raw: kind.read(raw).item()),
            ("numeric._frombuffer", lambda raw, kind, *form: kind.read(raw, *form)),
        )
    },
}


def _replacement(name: str) -> Any:
    """What a file gets instead of the class or function that it names."""
    module, _, global_name = name.partition(".")
    is_type = isinstance(getattr(builtins, global_name, None), type)
    if module in HARMFUL or (module == "builtins" and not is_type):
        raise HarmfulFile(name)
    return REPLACEMENTS.get(name) or type("OpaqueObject", (OpaqueObject,), {"kind": name})


class PlainUnpickler(pickle.Unpickler):
    """For pickles that torch did not write."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return _replacement(f"{module_name}.{global_name}")


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Turn any error from a broken or foreign file into a one-line message."""
    try:
        yield
    except UserError:
        raise
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"{path}: {error.strerror}; pass a weights file") from None
    except HarmfulFile as error:
        raise UserError(
            f"{path} cannot be read as weights: when opened, it tries to run "
            f"{one_line(str(error))}, which was blocked; do not use this file"
        ) from None
    except Exception as error:
        reason = first_line(error)
        raise UserError(
            f"{path} cannot be read as weights ({reason}): download it again"
        ) from error


def first_line(error: Exception) -> str:
    return one_line((str(error).strip().splitlines() or ["empty"])[0][:120])


def describe_misfit(error: Exception) -> str:
    """torch names the tensors that do not fit after its first line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "; ".join(one_line(line)[:200] for line in lines[1:4] or lines)


def read_content(path: Path) -> Any:
    """Everything in a `.safetensors` file, a torch file or a pickle."""
    with opening(path), verifying(path):
        if path.suffix == ".safetensors":
            return load_file(path)
        with path.open("rb") as file:
            if not file.read(len(LEGACY)).startswith((b"PK", LEGACY)):
                file.seek(0)
                return PlainUnpickler(file, encoding="latin1").load()
        known = dict(REPLACEMENTS)
        while True:  # torch stops at the first class that it does not know: replace it, try again
            pairs: list[Any] = [(replacement, name) for name, replacement in known.items()]
            try:
                with (
                    torch.serialization.safe_globals(pairs),
                    warnings.catch_warnings(action="ignore"),
                ):
                    return torch.load(path, map_location="cpu", weights_only=True)
            except pickle.UnpicklingError as error:
                unknown = re.search(r"GLOBAL (\S+) (?:was not an allowed|whose module)", str(error))
                name = unknown[1] if unknown else ""
                name = name if "." in name else f"builtins.{name}"
                if name in known or not unknown:
                    raise
                known[name] = _replacement(name)


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata in the header of a `.safetensors` file; other files have none."""
    if path.suffix != ".safetensors":
        return {}
    with opening(path), safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def read_named_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file by its dotted path: that of t in {"teacher": {"a.b": t}} is
    teacher.a.b. The optimizer's are left out."""
    content = read_content(path)
    if not isinstance(content, dict):
        kind = one_line(getattr(content, "kind", type(content).__name__))
        raise UserError(f"{path} contains a {kind}, not named tensors: save its state_dict()")
    visited = set()  # dicts may contain one another

    def walk(values: dict[Any, Any], prefix: str) -> Iterator[tuple[str, Tensor]]:
        visited.add(id(values))
        for key, value in values.items():
            name = prefix + one_line(str(key))
            value = value.values if isinstance(value, NumpyArray) else value
            if isinstance(value, Tensor):
                yield name, value.detach()
            elif isinstance(value, dict) and key not in NOT_WEIGHTS and id(value) not in visited:
                yield from walk(value, f"{name}.")

    with opening(path):
        return dict(walk(content, ""))


def read_arguments(path: Path) -> dict[str, str]:
    """The arguments that a project saved with its weights, as text; {} if there are none."""
    content = read_content(path)
    for key in ARGUMENTS if isinstance(content, dict) else ():
        arguments = content.get(key)
        arguments = arguments.state if isinstance(arguments, OpaqueObject) else arguments
        if isinstance(arguments, dict) and arguments:
            with opening(path):
                return {one_line(str(name)): str(x)[:200] for name, x in arguments.items()}
    return {}
