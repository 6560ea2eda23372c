"""The README and the pages: their Python runs, their commands parse, their links lead somewhere."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tyro

from croc.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`croc ((?:pretrain|sweep|evaluate) [a-z][^`…]* --[^`…]+)`")
"""Whole commands within a sentence; others there are a command's name, or a part of one."""
SHELLS = ("", "bash", "sh", "shell", "console")

ENDS = {
    "sweep": "croc.lab.sweep.sweep.run_sweep",
    "evaluate table": "croc.eval.table.make.make_table",
    "evaluate curve": "croc.eval.curve.command.points_of",
    "evaluate": "croc.eval.evaluate.evaluate",
}
"""Commands that check more than their flags, and where they begin to work."""


class ParsedError(Exception):
    """The command would start now."""


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in BLOCK.findall(page.read_text()) if language in languages]


def commands(page: Path) -> Iterator[list[str]]:
    """What stands behind `croc` in the page's shell blocks and within its sentences, as the shell
    would take it apart."""
    yield from map(shlex.split, INLINE.findall(BLOCK.sub("", page.read_text())))
    for code in blocks(page, *SHELLS):
        code = re.sub(r"sbatch .*?docs/slurm\.sh", "croc pretrain", code.replace("\\\n", " "))
        for line in code.splitlines():
            found = re.match(r"\s*(?:\$ )?(?:torchrun .*-m |srun .*?|\S*/)?croc (.*)", line)
            if found and "…" not in found[1]:
                yield shlex.split(found[1], comments=True)


COMMANDS = {
    f"{page.stem}: {shlex.join(words)}": words for page in PAGES for words in commands(page)
}


def test_the_readme_stays_short():
    assert len(PAGES[0].read_text().splitlines()) <= 250


@pytest.mark.parametrize("name", ["README", "evaluate", "getting-started", "scaling"])
def test_its_python_runs(name: str, capsys: pytest.CaptureFixture[str]):
    page = next(page for page in PAGES if page.stem == name)
    found = blocks(page, "python")
    assert found
    for block in found:
        exec(block, {})
    assert re.search(r"tensor|46\.1 M", capsys.readouterr().out)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_python_parses(page: Path):
    for block in blocks(page, "python"):
        compile(block, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if target.startswith("http"):
            continue
        assert not path or (page.parent / path).exists(), target
        if anchor and (path or page.name).endswith(".md"):
            assert anchor in anchors(page.parent / path if path else page), target


def anchors(page: Path) -> set[str]:
    """As GitHub names a page's headings; the site does the same for plain ones."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_its_commands_parse(words: list[str], monkeypatch: pytest.MonkeyPatch):
    """Up to where the command would begin its work."""

    def stop(*_: Any, **__: Any) -> None:
        raise ParsedError

    ends = [place for name, place in ENDS.items() if " ".join(words).startswith(name)]
    if ends:
        monkeypatch.setattr(ends[0], stop)
    else:
        parse = tyro.cli
        monkeypatch.setattr(tyro, "cli", lambda *given, **more: stop(parse(*given, **more)))
    if words[-1:] == ["--help"]:
        with pytest.raises(SystemExit, match="0"):
            main(words)
        return
    with pytest.raises(ParsedError):
        main(words)
