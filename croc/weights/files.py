"""Files of weights: what is in them, flat and by name, and the arguments beside the weights."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from croc.errors import UserError
from croc.weights.pickles import read_pickled
from croc.weights.records import HostileFile, Record, StoredArray, StoredTensor

WRAPPERS = ("state_dict", "model", "teacher")
ARGUMENTS = ("args", "opt", "hyper_parameters", "cfg", "config", "meta")
UNREAD = ("optimizer", "optimizer_states", "optimizers", "scheduler", "lr_schedulers", "amp")
DEEPEST = 6
MOST_LETTERS = 5_000_000
"""Of all names in a file together; containers that hold one another would have no end."""
MOST_VALUES = 100_000
REPEATED = "tensors larger than what the file holds for them"
LONGEST_TEXT = 1_000
LARGEST_BITS = 4_096  # Python prints no integers that are much longer


def read_content(path: Path) -> Any:
    """All of a file, `.safetensors`, torch's or a pickle; nothing in it is run."""
    try:
        return load_file(path) if path.suffix == ".safetensors" else read_pickled(path)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, name a file in it") from None
    except HostileFile as error:
        raise UserError(
            f"{path} cannot be read as weights: on opening it wants to run {printable(error)}, "
            "which was not done; do not use this file"
        ) from None
    except Exception as error:  # broken files make an unpickler raise whatever there is
        raise _unreadable(path, error) from None


def read_metadata(path: Path) -> dict[str, str]:
    """The texts in a `.safetensors` file's head; other files have none."""
    if path.suffix != ".safetensors":
        return {}
    with _refusing(path), safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def read_named_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file under its dotted way in; the optimizer's state is left out."""
    content = _mapping(path, read_content(path))
    with _refusing(path):
        return _load_all(flatten(content))


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that is in timm's layout, perhaps in a wrapper."""
    found = read_content(path)
    for _ in range(DEEPEST):
        inner = [key for key in WRAPPERS if key in found] if isinstance(found, dict) else []
        found = found[inner[0]] if inner else found
    named = dict.items(found) if isinstance(found, dict) else ()
    with _refusing(path):
        tensors = _load_all({printable(name): value for name, value in named})
        if any(repeats(value) for value in tensors.values()):
            raise ValueError(REPEATED)
    if not tensors:
        raise UserError(f"{path} holds no named tensors: give a state dict in timm's layout")
    return tensors


def read_arguments(path: Path) -> dict[str, Any]:
    """The arguments that a project kept beside its weights, as plain values; {} where none are."""
    content = read_content(path)
    if not isinstance(content, dict):
        return {}
    with _refusing(path):  # arrays that are none, objects that hold themselves
        held = [plain(content[key]) for key in ARGUMENTS if key in content]
    found = next((each for each in held if isinstance(each, dict) and each), {})
    return {printable(name): value for name, value in found.items()}


def flatten(content: dict[Any, Any]) -> dict[str, Any]:
    """{"teacher": {"a.b": t}} is {"teacher.a.b": t}."""
    flat: dict[str, Any] = {}
    letters = 0
    for name, value in _walk(content):
        letters += 1 + len(name)
        if letters > MOST_LETTERS:
            raise ValueError("its parts hold one another")
        if isinstance(value, Tensor | StoredTensor | StoredArray):
            flat[name] = value
    return flat


def _walk(content: dict[Any, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in dict.items(content):
        name = before + printable(key)
        yield name, value
        if isinstance(value, dict) and depth < DEEPEST and key not in UNREAD:
            yield from _walk(value, f"{name}.", depth + 1)


def printable(text: object) -> str:
    """What a file says may stand in a message, but not move a terminal's cursor."""
    try:
        said = str(text)
    except (ValueError, RecursionError):
        said = f"a {type(text).__name__} too long to print"
    return "".join(letter if letter.isprintable() else "?" for letter in said)


def plain(value: Any, left: Iterator[int] | None = None) -> Any:
    """Numbers, texts, lists and dicts as they are; anything else as a text that names it.

    `left` counts the values down, since few objects that share one another can be many.
    """
    left = iter(range(MOST_VALUES)) if left is None else left
    if next(left, None) is None:
        raise ValueError("its arguments hold one another")
    if isinstance(value, Record):
        if isinstance(value.state, dict):
            return plain(value.state, left)
        if value.entries:
            return plain(value.entries, left)
        parts = [str(plain(part, left))[:LONGEST_TEXT] for part in value.args]
        is_path = value.kind.startswith("pathlib.")
        said = str(PurePosixPath(*parts)) if is_path else f"{value.kind}({', '.join(parts)})"
        return said[:LONGEST_TEXT]
    if isinstance(value, StoredArray):
        return value.array().tolist()
    if isinstance(value, StoredTensor):
        return f"a tensor of {'×'.join(map(str, value.size))}"
    if isinstance(value, dict):
        return {key: plain(inner, left) for key, inner in dict.items(value)}
    if isinstance(value, list | tuple):
        return [plain(inner, left) for inner in value]
    if isinstance(value, int) and value.bit_length() > LARGEST_BITS:
        return f"a number of {value.bit_length():,} bits"
    if isinstance(value, int | float | bool | None):
        return value
    return str(value)[:LONGEST_TEXT]


def _mapping(path: Path, content: Any) -> dict[Any, Any]:
    if isinstance(content, Record):
        kind = printable(content.kind)
        raise UserError(
            f"{path} holds an object ({kind}), not named tensors: keep its state_dict()"
        )
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no named tensors but a {type(content).__name__}")
    return content


def _load_all(stored: dict[str, Any]) -> dict[str, Tensor]:
    found = {name: _load(value) for name, value in stored.items()}
    return {name: value for name, value in found.items() if value is not None}


def _load(value: Any) -> Tensor | None:
    if isinstance(value, StoredTensor):
        return value.tensor()
    if isinstance(value, StoredArray):
        return torch.from_numpy(value.array())
    return value if isinstance(value, Tensor) else None


def repeats(value: Tensor) -> bool:
    """Whether a tensor is larger than its storage: a few bytes, expanded to any size."""
    return value.numel() * value.element_size() > value.untyped_storage().nbytes()


def check_room(weights: dict[str, Tensor]) -> None:
    """A network takes no more room than its file, or a small file would fill the memory."""
    storages = {value.untyped_storage().data_ptr(): value for value in weights.values()}
    room = sum(value.untyped_storage().nbytes() for value in storages.values())
    if sum(value.numel() * value.element_size() for value in weights.values()) > room:
        raise ValueError(REPEATED)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """As `read_content` does: sizes, types, ends and containers that do not fit are said so."""
    try:
        yield
    except Exception as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    logging.getLogger(__name__).debug("%s", path, exc_info=error)
    return UserError(f"{path} cannot be read as weights ({first_line(error)}): get it again")


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["empty"]
    return printable(lines[0][:120])
