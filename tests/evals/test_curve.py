"""`croc evaluate curve`: a run's checkpoints as points of a line."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from croc.cli import main
from croc.eval.curve.command import Point, points_of
from croc.eval.curve.picture import make_figure
from croc.lab.charts import LEAST_POINTS
from croc.train.loop import pretrain
from croc.train.run_folder import write_config
from tests.evals.commands import SMALL
from tests.tiny import tiny_config, tiny_dino


def curve(to: Path, *runs: str, more: tuple[str, ...] = ()) -> Any:
    flags = [flag for protocol in ("linear", "kmeans") for flag in SMALL[protocol]]
    given = ("--weights", *runs, "--data", "scenes:4", "--protocols", "linear", "kmeans")
    try:
        return main(["evaluate", "curve", *given, "--to", str(to), "--workers", "0", *flags, *more])
    except SystemExit as end:
        return end.code


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 steps of 8 images; checkpoints after the 3rd, the 6th, the 8th and the 9th."""
    folder = tmp_path_factory.mktemp("runs")
    kept = {"keep_every_steps": 3, "checkpoint_every_steps": 1, "report": False}
    pretrain(tiny_config(folder / "croc", **kept), "demo")
    pretrain(tiny_dino(folder / "dino", **kept), "dino-demo")
    return folder


def test_a_line_starts_at_no_images_and_has_a_point_for_each_checkpoint(runs: Path):
    points = points_of("CrOC", str(runs / "croc"))
    assert [point.images for point in points] == [0, 24, 48, 64, 72]
    assert points[0].spec == f"random:{runs / 'croc'}"
    assert points[-1].spec.endswith("step-00000009.pt")
    assert {point.line for point in points} == {"CrOC"}


def test_a_run_from_other_weights_did_not_start_at_random_ones(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = tiny_config()
    run = tmp_path / "more"
    shutil.copytree(runs / "croc", run)
    write_config(run, replace(config, model=replace(config.model, init="a")), "demo")
    monkeypatch.chdir(run)
    points = points_of(".", ".")
    assert [(point.line, point.images) for point in points][:2] == [("more", 24), ("more", 48)]


def test_the_points_are_the_scores_of_the_table_and_computed_once(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    asked = (f"CrOC={runs / 'croc'}", str(runs / "dino"))
    assert not curve(tmp_path, *asked)
    page = json.loads((tmp_path / "table.json").read_text())
    assert [row["label"] for row in page["rows"]][4:6] == ["CrOC, 72 images", "dino, 0 images"]
    before, after = (row["cells"][0]["value"] for row in page["rows"][:5:4])
    assert before != after
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    capsys.readouterr()
    assert not curve(tmp_path, *asked)
    said = capsys.readouterr().err
    # Both start from the same network: 9 different ones of 10 rows, by 2 protocols.
    assert "18 cells, 18 of them finished before" in said


def panels(points: list[Point], values: list[float | None]) -> list[Axes]:
    cells = [{"value": value, "deviation": None, "mark": None} for value in values]
    metrics = ("J&F", "J", "F")
    columns = [{"group": "Video", "title": f"DAVIS {each}", "metric": each} for each in metrics]
    rows = [{"label": point.label, "cells": [cell] * 3} for point, cell in zip(points, cells)]
    return make_figure({"columns": columns, "rows": rows}, points).axes


def test_a_video_has_one_panel_a_failed_cell_a_gap_and_millions_are_said():
    points = [Point("a$b$", n * 2_000_000, "") for n in range(3)]
    (axes,) = panels(points, [30.0, None, 31.0])
    (line,) = axes.get_lines()
    x, y = np.asarray(line.get_data(), dtype=float)
    assert list(x) == [0, 2, 4]
    assert math.isnan(y[1])
    assert axes.get_xlabel() == "images seen, millions"
    assert line.get_label() == r"a\$b\$"


def test_small_differences_look_small():
    points = [Point("a", n, "") for n in range(3)]
    (axes,) = panels(points, [30.0, 30.01, 30.02])
    low, high = axes.get_ylim()
    assert high - low >= LEAST_POINTS - 1e-6


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_config(tmp_path / "begun", tiny_config(tmp_path / "begun"), "demo")
    for given in ("random:vit_tiny_patch16_224", str(tmp_path), str(tmp_path / "begun")):
        assert curve(tmp_path / "to", given) == 2
        assert "a curve is of runs" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


def test_two_lines_of_one_name_are_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert curve(tmp_path / "to", f"a={runs / 'croc'}", f"a={runs / 'dino'}") == 2
    assert "give them LABEL=RUN" in capsys.readouterr().err
