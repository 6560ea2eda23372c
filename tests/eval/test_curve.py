"""`croc evaluate curve`: a run's checkpoints as points of a line."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from croc.cli import main
from croc.config import write_config
from croc.eval import evaluate
from croc.eval.curve import points_of
from croc.train.loop import pretrain
from tests.eval.test_table import SMALL
from tests.tiny import tiny_config, tiny_dino


def curve(to: Path, *runs: str) -> Any:
    options = ("--data", "scenes:4", "--protocols", "linear", "--to", str(to), "--workers", "0")
    return main(["evaluate", "curve", "--weights", *runs, *options, *SMALL])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 steps of 8 images; checkpoints after the 3rd, the 6th, the 8th and the 9th."""
    folder = tmp_path_factory.mktemp("runs")
    options = {"keep_every_steps": 3, "checkpoint_every_steps": 1, "report": False}
    pretrain(tiny_config(folder / "croc", **options), "demo")
    pretrain(tiny_dino(folder / "dino", **options, stop_after_steps=2), "dino-demo")
    return folder


def test_a_line_has_a_point_for_each_checkpoint(runs: Path, tmp_path: Path):
    points = points_of("CrOC", str(runs / "croc"))
    assert [(point.line, point.images) for point in points] == [
        ("CrOC", images) for images in (0, 24, 48, 64, 72)
    ]
    assert points[0].spec == f"random:{runs / 'croc'}"
    assert points[-1].spec.endswith("step-00000009.pt")
    # A run that started from other weights has no point of random ones.
    config, run = tiny_config(), tmp_path / "more"
    shutil.copytree(runs / "croc", run)
    write_config(run, replace(config, model=replace(config.model, init="a")), "demo")
    points = points_of(str(run), str(run))
    assert [(point.line, point.images) for point in points][:2] == [("more", 24), ("more", 48)]


def test_points_are_scored_once(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "segmentation_figure", lambda *_: None, raising=False)
    weights = (f"CrOC={runs / 'croc'}", str(runs / "dino"))
    assert curve(tmp_path, *weights) == 0
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["label"] for row in rows][4:6] == ["CrOC, 72 images", "dino, 0 images"]
    before, after = (row["cells"][0]["value"] for row in rows[:5:4])
    assert before != after
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    capsys.readouterr()
    assert curve(tmp_path, *weights) == 0
    # 8 rows of 6 networks: both runs start from the same, and dino's first step has rate 0.
    assert "6 cells, 6 already finished" in capsys.readouterr().err
