"""The examples: each runs at its smallest, prints what it says and leaves its pictures."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import croc
from croc.data.scenes import CLASSES, make_scene
from croc.eval import protocols
from croc.eval.results import read_results

FOLDER = Path(__file__).parent.parent / "examples"
RANDOM = "random:vit_tiny_patch16_224"


def printed(name: str, *arguments: str, cwd: Path) -> list[str]:
    """Run an example in a process of its own; what it printed."""
    command = [sys.executable, "-W", "error", str(FOLDER / name), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Runs an example that must end with a line; that line."""

    def call(name: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(FOLDER / name), run_name="__main__")
        assert isinstance(end.value.code, str)
        assert "\n" not in end.value.code
        return end.value.code

    yield call
    protocols.ADDED.clear()


def colours(path: Path) -> int:
    """How many a picture has: an empty one has few."""
    with Image.open(path) as image:
        return len(image.convert("RGB").getcolors(1 << 24) or ())


def test_they_are_told_of():
    page = (FOLDER.parent / "docs" / "examples.md").read_text()
    scripts = sorted(FOLDER.glob("*.py"))
    assert len(scripts) == 3
    for script in scripts:
        assert f"../examples/{script.name}" in page
        text = script.read_text()
        assert all(word in text for word in ("Shows:", "Needs:", "Prints:", "--small"))


def test_search_by_patch(tmp_path: Path):
    first, *matches, picture = printed("search_by_patch.py", "--small", cwd=tmp_path)
    assert first == "like the patch in row 1, column 3 of scene-06.png:"
    cosines = [float(re.findall(r"cosine (\S+)", line)[0]) for line in matches]
    assert len(cosines) == 9
    assert cosines == sorted(cosines, reverse=True)
    assert not any("scene-06.png" in line for line in matches)
    assert colours(tmp_path / picture) > 1000
    assert croc.Run(tmp_path / "runs" / "search-by-patch" / "run").metrics()


def test_search_in_my_photographs(tmp_path: Path, refused: Callable[..., str]):
    """A copy of the query is the best match, at the same place."""
    scene = Image.fromarray(make_scene(3, 0).image[:64])
    folder = tmp_path / "mine" / "deeper"
    folder.mkdir(parents=True)
    scene.save(tmp_path / "mine" / "a.png")
    scene.save(folder / "b.png")
    Image.fromarray(make_scene(3, 1).image).save(folder / "c.png")
    options = ["--weights", RANDOM, "--to", "out"]
    lines = printed("search_by_patch.py", "mine", "--at", "50", "20", *options, cwd=tmp_path)
    assert lines[0] == "like the patch in row 5, column 14 of a.png:"  # of 19 × 28
    assert lines[1] == "  1  cosine 1.000  b.png at 50, 19"
    assert colours(tmp_path / "out" / "similar.png") > 1000

    said = refused("search_by_patch.py", "mine", "--at", "96", "0", *options)
    assert said == "96, 0 lies outside the photograph of 96 × 64 px"
    assert "two photographs at least" in refused("search_by_patch.py", "mine/a.png", *options)
    assert "no such run or file" in refused("search_by_patch.py", "mine", "--weights", "no")


def test_search_passes_over_what_cannot_be_read(tmp_path: Path, refused: Callable[..., str]):
    folder = tmp_path / "mine"
    folder.mkdir()
    for number in (1, 2):
        Image.fromarray(make_scene(3, number).image).save(folder / f"{number}.png")
    whole = (folder / "1.png").read_bytes()
    (folder / "0.png").write_bytes(whole[:300])
    (folder / "._1.png").write_bytes(b"Mac OS X")
    options = ["--weights", RANDOM, "--to", "out"]
    lines = printed("search_by_patch.py", "mine", *options, cwd=tmp_path)
    assert lines[0].startswith(f"left out: {Path('mine', '0.png')} cannot be read")
    assert lines[1].endswith("of 1.png:")
    assert len(lines) == 4  # the one match, and the picture

    said = refused("search_by_patch.py", "mine/0.png", "mine", *options)
    assert said == "mine/0.png cannot be read, and it is what is asked about"
    (folder / "2.png").write_bytes(whole[:300])
    assert "two photographs at least" in refused("search_by_patch.py", "mine", *options)


@pytest.mark.parametrize("name", ["search_by_patch.py", "pretrain_my_folder.py"])
def test_they_train_in_one_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
):
    """Of several each would go on to write the results."""

    def pretrain(*_: Any, run: dict[str, Any], **__: Any) -> None:
        raise croc.UserError(f"{run['devices']} process")

    monkeypatch.setattr(croc, "pretrain", pretrain)
    assert refused(name, "--small") == "1 process"


def test_pretrain_my_folder(tmp_path: Path, refused: Callable[..., str]):
    lines = printed("pretrain_my_folder.py", "--small", cwd=tmp_path)
    assert re.fullmatch(r"step 12: loss \d\.\d+ → \d\.\d+", lines[0])
    assert re.fullmatch(r"untrained +\d+\.\d mIoU on scenes:32", lines[1])
    assert re.fullmatch(r"trained +\d+\.\d mIoU on scenes:32", lines[2])
    report, picture = lines[3:]
    assert (tmp_path / report).is_file()
    assert colours(tmp_path / picture) > 1000
    found = read_results(tmp_path / "runs" / "my-folder" / "run" / "evaluation")
    assert [line["backbone"] for line in found] == ["run@0", "run@12"]
    assert "nowhere" in refused("pretrain_my_folder.py", "nowhere", "--to", "other")


def test_my_segmentation_data(tmp_path: Path, refused: Callable[..., str]):
    lines = printed("my_segmentation_data.py", "--small", "--to", "out", cwd=tmp_path)
    assert re.fullmatch(r"incontext: \d+\.\d mIoU, vit_tiny_patch16_224", lines[0])
    assert re.fullmatch(r"linear: \d+\.\d mIoU, vit_tiny_patch16_224", lines[3])
    for classes, picture in (lines[1:3], lines[4:6]):
        assert all(name in classes for name in CLASSES)
        assert colours(tmp_path / picture.strip()) > 1000
    found = read_results(tmp_path / "out")
    assert [line["data"] for line in found] == ["masks:out/data"] * 2
    assert found[0]["count"] == {"train": 24, "val": 8}

    (tmp_path / "out" / "data" / "masks" / "scene-001.png").unlink()
    said = refused("my_segmentation_data.py", "out/data", "--image-px", "96")
    assert "scene-001.png cannot be read" in said
    (tmp_path / "out" / "data" / "photographs" / "._scene-001.png").write_bytes(b"Mac OS X")
    assert "masks/scene-001.png cannot" in refused("my_segmentation_data.py", "out/data")
    palette = tmp_path / "out" / "data" / "colours.json"
    for text, said in (
        ('{"sky": [1, 2', "colours.json is no JSON: "),
        ('["sky"]', "colours.json must be as "),
        ('{"sky": [1, 2]}', "colours.json must be as "),
        ('{"sky": [1, 2, 256]}', "colours.json must be as "),
    ):
        palette.write_text(text)
        assert said in refused("my_segmentation_data.py", "out/data")
    palette.write_text('{"sky": [1, 2, 3]}')
    (tmp_path / "out" / "data" / "val.txt").unlink()
    assert "val.txt" in refused("my_segmentation_data.py", "out/data")
