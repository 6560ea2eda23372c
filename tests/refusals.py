"""Check that a command is refused cleanly."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from croc.cli import main


def check_refusal(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str], *fragments: str
) -> None:
    """Exit code 2, one line with these fragments, and nothing written in the current folder."""
    before = {path: path.lstat().st_mtime_ns for path in Path().rglob("*")}
    capsys.readouterr()
    assert main(arguments) == 2
    printed = capsys.readouterr()
    *progress, line = printed.err.splitlines()  # earlier stages may print a line, too
    assert line.startswith("croc: ")
    assert not any(text.startswith("croc: ") for text in progress)
    assert all(fragment in line for fragment in fragments), line
    assert printed.out == ""
    assert {path: path.lstat().st_mtime_ns for path in Path().rglob("*")} == before
