"""Files of weights: what is in them, flat and by name, and the arguments beside the weights."""

import logging
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from croc.errors import UserError
from croc.weights.pickles import read_pickled
from croc.weights.records import HostileFile, Record, StoredArray, StoredTensor

WRAPPERS = ("state_dict", "model", "teacher")
ARGUMENTS = ("args", "opt", "hyper_parameters", "cfg", "config", "meta")
UNREAD = ("optimizer", "optimizer_states", "optimizers", "scheduler", "lr_schedulers", "amp")
DEEPEST = 6


def read_content(path: Path) -> Any:
    """All of a file, `.safetensors`, torch's or a pickle; nothing in it is run."""
    try:
        return load_file(path) if path.suffix == ".safetensors" else read_pickled(path)
    except FileNotFoundError:
        raise UserError(f"--weights: there is no file {path}") from None
    except IsADirectoryError:
        raise UserError(f"--weights: {path} is a folder, name a file in it") from None
    except HostileFile as error:
        raise UserError(
            f"{path} cannot be read as weights: on opening it wants to run {printable(error)}, "
            "which was not done; do not use this file"
        ) from None
    except Exception as error:  # broken files make an unpickler raise whatever there is
        raise _unreadable(path, error) from None


def read_named_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file under its dotted way in; the optimizer's state is left out."""
    return _load_all(path, flatten(_mapping(path, read_content(path))))


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that is in timm's layout, perhaps in a wrapper."""
    found = read_content(path)
    while isinstance(found, dict) and (inner := [key for key in WRAPPERS if key in found]):
        found = found[inner[0]]
    named = dict.items(found) if isinstance(found, dict) else ()
    tensors = _load_all(path, {str(name): value for name, value in named})
    if not tensors:
        raise UserError(f"{path} holds no named tensors: give a state dict in timm's layout")
    return tensors


def read_arguments(path: Path) -> dict[str, Any]:
    """The arguments that a project kept beside its weights, as plain values; {} where none are."""
    content = read_content(path)
    if not isinstance(content, dict):
        return {}
    try:
        held = [plain(content[key]) for key in ARGUMENTS if key in content]
    except Exception as error:  # arrays that are none, objects that hold themselves
        raise _unreadable(path, error) from None
    found = next((each for each in held if isinstance(each, dict) and each), {})
    return {printable(name): value for name, value in found.items()}


def flatten(content: dict[Any, Any], depth: int = 0) -> dict[str, Any]:
    """{"teacher": {"a.b": t}} is {"teacher.a.b": t}."""
    flat: dict[str, Any] = {}
    for key, value in dict.items(content):
        if isinstance(value, dict) and depth < DEEPEST and key not in UNREAD:
            inner = flatten(value, depth + 1)
            flat |= {f"{printable(key)}.{name}": found for name, found in inner.items()}
        elif isinstance(value, Tensor | StoredTensor | StoredArray):
            flat[printable(key)] = value
    return flat


def printable(text: object) -> str:
    """What a file says may stand in a message, but not move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def plain(value: Any) -> Any:
    """Numbers, texts, lists and dicts as they are; anything else as a text that names it."""
    if isinstance(value, Record):
        if isinstance(value.state, dict):
            return plain(value.state)
        if value.entries:
            return plain(value.entries)
        parts = [str(plain(part)) for part in value.args]
        is_path = value.kind.startswith("pathlib.")
        return str(PurePosixPath(*parts)) if is_path else f"{value.kind}({', '.join(parts)})"
    if isinstance(value, StoredArray):
        return value.array().tolist()
    if isinstance(value, StoredTensor):
        return f"a tensor of {'×'.join(map(str, value.size))}"
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in dict.items(value)}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _mapping(path: Path, content: Any) -> dict[Any, Any]:
    if isinstance(content, Record):
        kind = printable(content.kind)
        raise UserError(
            f"{path} holds an object ({kind}), not named tensors: keep its state_dict()"
        )
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no named tensors but a {type(content).__name__}")
    return content


def _load_all(path: Path, stored: dict[str, Any]) -> dict[str, Tensor]:
    try:
        found = {name: _load(value) for name, value in stored.items()}
    except Exception as error:  # as above: sizes, types and ends that do not fit
        raise _unreadable(path, error) from None
    return {name: value for name, value in found.items() if value is not None}


def _load(value: Any) -> Tensor | None:
    if isinstance(value, StoredTensor):
        return value.tensor()
    if isinstance(value, StoredArray):
        return torch.from_numpy(value.array())
    return value if isinstance(value, Tensor) else None


def _unreadable(path: Path, error: Exception) -> UserError:
    logging.getLogger(__name__).debug("%s", path, exc_info=error)
    lines = str(error).strip().splitlines() or ["empty"]
    reason = printable(lines[0][:120])
    return UserError(f"{path} cannot be read as weights ({reason}): get it anew")
