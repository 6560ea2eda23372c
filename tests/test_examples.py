"""Every example runs with --small, and prints and writes what its docstring promises."""

import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

import croc
from croc.data.scenes import CLASSES
from croc.eval import protocols
from croc.eval.results import read_results

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
