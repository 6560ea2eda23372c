"""Flags to dataclasses through tyro, its boxed complaints turned into one line."""

import contextlib
import io
import re
from typing import Any

import tyro

from croc.errors import UserError


def parse(kind: type, arguments: list[str], program: str, default: Any = None) -> Any:
    """The dataclass that the arguments describe; --help prints and ends as usual."""
    options: dict[str, Any] = {} if default is None else {"default": default}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                kind,
                args=arguments,
                prog=program,
                config=(tyro.conf.AvoidSubcommands,),
                **options,
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise UserError(f"{_first_sentence(complaint.getvalue())}; see {program} --help") from None


def _first_sentence(box: str) -> str:
    """The first part of a boxed message and, if there is one, its suggestion.

    Below the title come parts between rules; where a terminal has only ASCII, the title too.
    """
    lines = [line.strip("│╭╮╰╯|+ ") for line in box.splitlines()[1:]]
    parts = "\n".join("" if not line.strip("─-") else line for line in lines).strip().split("\n\n")
    near = re.search(r"Perhaps you meant:\s+(\S+)", box.replace("│", ""))
    return parts[0] + (f"; perhaps you meant {near[1]}" if near else "")
