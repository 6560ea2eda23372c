"""Settings changed from Python: names and types are checked as the command line checks them."""

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import typeguard

from croc.errors import UserError

Config = TypeVar("Config")


def change(config: Config, changes: Mapping[str, Any], prefix: str = "") -> Config:
    """A configuration with some of its fields changed; lists become the tuples they stand for."""
    assert dataclasses.is_dataclass(config)
    hints = typing.get_type_hints(type(config))
    check_names(changes, hints, prefix)
    values = {name: _checked(prefix + name, value, hints[name]) for name, value in changes.items()}
    return dataclasses.replace(typing.cast(Any, config), **values)


def check_names(
    given: Iterable[str], known: Iterable[str], prefix: str = "", noun: str = "option"
) -> None:
    """Refuses a name that is not known, with the one nearest to it."""
    known = list(known)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"perhaps you meant {prefix}{near[0]}" if near else f"there are {_few(known)}"
            raise UserError(f"there is no {noun} {prefix}{name}; {hint}")


def _checked(name: str, value: Any, kind: Any) -> Any:
    value = tuple(value) if isinstance(value, list) else value
    try:
        return typeguard.check_type(value, kind)
    except typeguard.TypeCheckError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the option {name} cannot be {value!r}: {reason}") from None


def _few(names: list[str]) -> str:
    return ", ".join(names[:12]) + (" …" if len(names) > 12 else "")
