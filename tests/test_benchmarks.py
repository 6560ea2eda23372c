"""The benchmarks run, at tiny sizes, and what they write tells where and of what each figure is."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.clustering import Sizes, measure_curves, write_scaling
from benchmarks.made_up import write_davis, write_voc
from croc.eval.datasets import open_segmentation
from croc.eval.videos import open_videos
from croc.lab.bench.curves import Curve, Point, draw_curves

ROOT = Path(__file__).parent.parent


def measured_by(benchmark: str, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """The page that it writes, and what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", benchmark, *options, "--to", str(folder / "x.json")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "x.json").read_text()), done.stdout


def test_the_evaluations_are_measured(tmp_path):
    """In a process of its own: memory is the process's, and it must run without the hook."""
    page, said = measured_by("benchmarks.evaluation", tmp_path, "--device", "cpu", "--quick")
    assert set(page) == {"date", "hardware", "versions", "figures"}
    assert page["hardware"]["cores"] >= 1
    assert page["versions"]["torch"]
    measured = {figure["what"]: figure for figure in page["figures"]}
    assert {"K-means", "video", "video: propagation alone", "features, eager"} <= set(measured)
    for what, figure in measured.items():
        assert figure["value"] > 0
        assert figure["setting"]["dtype"] == "float32"
        assert what in said
    assert measured["video"]["setting"]["frames"] == 4
    assert measured["K-means"]["setting"]["images"] == 24


def test_made_up_data_can_be_opened(tmp_path):
    write_voc(tmp_path / "voc", 3, 40, 30)
    data = open_segmentation(f"voc12:{tmp_path / 'voc'}", "val")
    assert (len(data), len(data.classes)) == (3, 21)
    assert data.read(2).image.shape == (30, 40, 3)
    assert len(set(data.read(2).labels.ravel().tolist())) > 1
    write_davis(tmp_path / "davis", 1, 3, 40, 30)
    video = open_videos(f"davis16:{tmp_path / 'davis'}")[0]
    assert (len(video), video.objects()) == (3, (1,))
    first, last = video.read_mask(0), video.read_mask(2)
    assert last.nonzero()[1].mean() > first.nonzero()[1].mean() + 5


def test_how_the_clustering_grows_is_drawn(tmp_path: Path):
    base = Sizes(images=2, heads=2, grid=4, width=8, k_start=4, dtype="float32")
    values = {"images": (1, 2, 3), "grid": (3, 4), "k_start": (3, 4, 5), "heads": (1, 2, 3)}
    curves = measure_curves(values, base, torch.device("cpu"))
    write_scaling(tmp_path / "x.png", curves, base, torch.device("cpu"))
    page = json.loads((tmp_path / "x.json").read_text())
    assert page["base"]["k_start"] == 4
    batch, tokens, *_ = page["curves"]
    assert [point["value"] for point in batch["points"]] == [1, 2, 3]
    assert [point["value"] for point in tokens["points"]] == [18, 32]
    assert all(point["by"] == "definition" for point in batch["points"])
    assert batch["lines"]["definition"]["r2"] <= 1
    assert tokens["lines"]["definition"] is None
    with Image.open(tmp_path / "x.png") as picture:
        assert min(picture.size) > 500


def test_kernel_and_definition_in_one_picture(tmp_path: Path):
    ways = {"kernel": (98, 200, 392), "definition": (98, 200, 392, 800)}
    points = [Point(value, value / 9, way) for way, values in ways.items() for value in values]
    curve = Curve("tokens", tuple(points))
    draw_curves([curve], "title", tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000
    assert curve.describe()["lines"]["kernel"]["worst"] < 1e-9


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("folds", ("--weights", "no/run", "--data", "scenes")),
        ("variance", ("--weights", "no/run", "--data", "scenes")),
        ("chosen_k", ("--run", "no/run", "--to", "k.png")),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_code_2(program, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{program}.py", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / f"{program}.py"), run_name="__main__")
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith(f"{program}: ")
    assert "no/run" in line
