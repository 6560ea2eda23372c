"""README, pages and examples: their Python runs, commands parse, links exist; the site builds."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tyro
from PIL import Image

import croc
from croc.cli import main
from croc.data.scenes import CLASSES
from croc.eval import protocols
from croc.results import read_results

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`croc ((?:pretrain|sweep|evaluate) [a-z][^`…]* --[^`…]+)`")
STARTS = {
    "sweep": "croc.lab.sweep.run_sweep",
    "evaluate table": "croc.eval.table.make_table",
    "evaluate curve": "croc.eval.curve.points_of",
    "evaluate": "croc.eval.evaluate.evaluate",
}
"""Commands that check more than their flags, and the function where their work starts."""


class ParsedError(Exception):
    """The command would start now."""


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in BLOCK.findall(page.read_text()) if language in languages]


def commands(page: Path) -> Iterator[list[str]]:
    """The arguments of each `croc` in the page's shell blocks and sentences."""
    yield from map(shlex.split, INLINE.findall(BLOCK.sub("", page.read_text())))
    for code in blocks(page, "", "bash"):
        code = re.sub(r"sbatch .*?docs/slurm\.sh", "croc pretrain", code.replace("\\\n", " "))
        for line in code.splitlines():
            match = re.match(r"\s*(?:torchrun .*-m |\S*/)?croc (.*)", line)
            if match and "…" not in match[1]:
                yield shlex.split(match[1], comments=True)


COMMANDS = {shlex.join(words): words for page in PAGES for words in commands(page)}


@pytest.mark.parametrize("name", ["README", "evaluate", "index"])
def test_python_of_a_page_runs(name: str, capsys: pytest.CaptureFixture[str]):
    page = next(page for page in PAGES if page.stem == name)
    for block in blocks(page, "python"):
        exec(block, {})
    assert capsys.readouterr().out


def test_python_parses_and_links_exist():
    for page in PAGES:
        for block in blocks(page, "python"):
            compile(block, page.name, "exec")
    for page in [*PAGES, ROOT / "dev" / "LOG.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            path, _, anchor = target.partition("#")
            if target.startswith("http"):
                continue
            assert not path or (page.parent / path).exists(), (page.name, target)
            if anchor and (path or page.name).endswith(".md"):
                text = (page.parent / path if path else page).read_text()
                headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
                assert anchor in anchors, (page.name, target)


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_commands_parse(words: list[str], monkeypatch: pytest.MonkeyPatch):
    """Up to where the command would start its work."""

    def stop(*_: Any, **__: Any) -> None:
        raise ParsedError

    starts = [place for name, place in STARTS.items() if " ".join(words).startswith(name)]
    if starts:
        monkeypatch.setattr(starts[0], stop)
    else:
        parse = tyro.cli
        monkeypatch.setattr(tyro, "cli", lambda *args, **more: stop(parse(*args, **more)))
    if words[-1:] == ["--help"]:
        with pytest.raises(SystemExit, match="0"):
            main(words)
        return
    with pytest.raises(ParsedError):
        main(words)


def test_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in PAGES[1:]:
        html = tmp_path / ("" if page.stem == "index" else page.stem) / "index.html"
        for target in re.findall(r"<(?:script|img|source)[^>]+src=\"([^\"]+)\"", html.read_text()):
            assert not re.match(r"(https?:)?//", target), (page.name, target)
            assert target.startswith("data:") or (html.parent / target).exists(), target


FOLDER = Path(__file__).parent.parent / "examples"

Run = Callable[..., list[str]]


@pytest.fixture
def run_example(monkeypatch, tmp_path: Path, capsys) -> Iterator[Run]:
    """Runs an example in an empty folder and returns the lines that it prints."""

    def call(name: str, *arguments: str) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        capsys.readouterr()
        runpy.run_path(str(FOLDER / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    yield call
    protocols.REGISTERED.clear()


def count_colors(path: Path) -> int:
    with Image.open(path) as image:
        return len(image.convert("RGB").getcolors(1 << 24) or ())


def test_search_by_patch(tmp_path: Path, run_example: Run):
    _, *matches, picture = run_example("search_by_patch.py", "--small")
    cosines = [float(re.findall(r"cosine (\S+)", line)[0]) for line in matches]
    assert len(cosines) == 9
    assert cosines == sorted(cosines, reverse=True)
    assert not any("scene-06.png" in line for line in matches)
    assert count_colors(tmp_path / picture) > 1000
    assert croc.Run(tmp_path / "runs" / "search-by-patch" / "run").metrics()


def test_pretrain_my_folder(tmp_path: Path, run_example: Run):
    lines = run_example("pretrain_my_folder.py", "--small")
    assert [line.split()[0] for line in lines[:3]] == ["step", "untrained", "trained"]
    report, picture = lines[3:]
    assert (tmp_path / report).is_file()
    assert count_colors(tmp_path / picture) > 1000
    results = read_results(tmp_path / "runs" / "my-folder" / "run" / "evaluation")
    assert [line["backbone"] for line in results] == ["run@0", "run@12"]


def test_my_segmentation_data(tmp_path: Path, run_example: Run):
    lines = run_example("my_segmentation_data.py", "--small", "--to", "out")
    for classes, picture in (lines[1:3], lines[4:6]):
        assert all(name in classes for name in CLASSES)
        assert count_colors(tmp_path / picture.strip()) > 1000
    results = read_results(tmp_path / "out")
    assert [line["data"] for line in results] == ["masks:out/data"] * 2
