"""The examples: each runs with --small, prints what it promises and leaves its pictures."""

import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

import croc
from croc.data.scenes import CLASSES, make_scene
from croc.eval import protocols
from croc.eval.results import read_results

FOLDER = Path(__file__).parent.parent / "examples"
RANDOM = "random:vit_tiny_patch16_224"


Run = Callable[..., list[str]]


@pytest.fixture
def run_example(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Run an example in an empty folder; the lines that it prints, or exits with."""

    def call(name: str, *arguments: str) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        capsys.readouterr()
        try:
            runpy.run_path(str(FOLDER / name), run_name="__main__")
        except SystemExit as end:
            return str(end.code).splitlines()
        return capsys.readouterr().out.splitlines()

    yield call
    protocols.ADDED.clear()


def colours(path: Path) -> int:
    """How many a picture has: an empty one has few."""
    with Image.open(path) as image:
        return len(image.convert("RGB").getcolors(1 << 24) or ())


def test_examples_are_documented():
    root = FOLDER.parent
    text = "".join(page.read_text() for page in (root / "README.md", *root.glob("docs/*.md")))
    assert all(f"examples/{script.name}" in text for script in FOLDER.glob("*.py"))


def test_search_by_patch(tmp_path: Path, run_example: Run):
    first, *matches, picture = run_example("search_by_patch.py", "--small")
    assert first == "like the patch in row 1, column 3 of scene-06.png:"
    cosines = [float(re.findall(r"cosine (\S+)", line)[0]) for line in matches]
    assert len(cosines) == 9
    assert cosines == sorted(cosines, reverse=True)
    assert not any("scene-06.png" in line for line in matches)
    assert colours(tmp_path / picture) > 1000
    assert croc.Run(tmp_path / "runs" / "search-by-patch" / "run").metrics()


def test_search_in_my_photographs(tmp_path: Path, run_example: Run):
    """A copy of the query is the best match, at the same place; broken files are skipped."""
    scene = Image.fromarray(make_scene(3, 0).image[:64])
    folder = tmp_path / "mine" / "deeper"
    folder.mkdir(parents=True)
    scene.save(tmp_path / "mine" / "a.png")
    scene.save(folder / "b.png")
    (folder / "broken.png").write_bytes((folder / "b.png").read_bytes()[:300])
    (folder / "._b.png").write_bytes(b"Mac OS X")
    options = ["--weights", RANDOM, "--to", "out"]
    lines = run_example("search_by_patch.py", "mine", "--at", "50", "20", *options)
    assert lines[0].startswith("skipped: mine/deeper/broken.png cannot be read")
    assert lines[1:] == [
        "like the patch in row 5, column 14 of a.png:",  # of 19 × 28
        "  1  cosine 1.000  b.png at 50, 19",
        "out/similar.png",
    ]
    assert colours(tmp_path / "out" / "similar.png") > 1000
    for arguments, fragment in (
        (["mine", "--at", "96", "0"], "96, 0 is outside the photograph of 96 × 64 px"),
        (["mine/a.png"], "at least two photographs"),
        (["mine/deeper/broken.png", "mine"], "broken.png cannot be read"),
    ):
        (line,) = run_example("search_by_patch.py", *arguments, *options)
        assert fragment in line


def test_pretrain_my_folder(tmp_path: Path, run_example: Run):
    lines = run_example("pretrain_my_folder.py", "--small")
    assert re.fullmatch(r"step 12: loss \d\.\d+ → \d\.\d+", lines[0])
    assert re.fullmatch(r"untrained +\d+\.\d mIoU on scenes:32", lines[1])
    assert re.fullmatch(r"trained +\d+\.\d mIoU on scenes:32", lines[2])
    report, picture = lines[3:]
    assert (tmp_path / report).is_file()
    assert colours(tmp_path / picture) > 1000
    results = read_results(tmp_path / "runs" / "my-folder" / "run" / "evaluation")
    assert [line["backbone"] for line in results] == ["run@0", "run@12"]
    (line,) = run_example("pretrain_my_folder.py", "nowhere", "--to", "other")
    assert "nowhere" in line


def test_my_segmentation_data(tmp_path: Path, run_example: Run):
    lines = run_example("my_segmentation_data.py", "--small", "--to", "out")
    assert re.fullmatch(r"incontext: \d+\.\d mIoU, vit_tiny_patch16_224", lines[0])
    assert re.fullmatch(r"linear: \d+\.\d mIoU, vit_tiny_patch16_224", lines[3])
    for classes, picture in (lines[1:3], lines[4:6]):
        assert all(name in classes for name in CLASSES)
        assert colours(tmp_path / picture.strip()) > 1000
    results = read_results(tmp_path / "out")
    assert [line["data"] for line in results] == ["masks:out/data"] * 2
    assert results[0]["count"] == {"train": 24, "val": 8}

    (tmp_path / "out" / "data" / "masks" / "scene-001.png").unlink()
    (line,) = run_example("my_segmentation_data.py", "out/data", "--image-px", "96")
    assert "scene-001.png cannot be read" in line
    (tmp_path / "out" / "data" / "colours.json").write_text('{"sky": [1, 2')
    (line,) = run_example("my_segmentation_data.py", "out/data")
    assert "colours.json is not JSON: " in line
