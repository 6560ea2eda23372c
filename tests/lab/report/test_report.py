"""What training draws and writes on its way, what the page makes of a folder, and the command."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from croc.cli import main
from croc.io import read_metrics
from croc.lab.report import hook
from croc.lab.report.hook import ReportHook
from croc.lab.report.page import (
    cluster_pictures,
    find_scores,
    picture_path,
    picture_steps,
    read_run,
    report,
)
from croc.train.gauges import Gauges
from croc.train.loop import pretrain as plain_pretrain
from tests.lab.report.fakes import add_scores, line, make_run
from tests.tiny import tiny_config
from tests.train import metrics_of

pretrain = partial(plain_pretrain, make_save_hook=ReportHook)


def test_checkpoints_are_drawn_without_changing_the_run(tmp_path: Path, monkeypatch):
    """To the last digit; and a resumed run replaces what it repeats."""
    monkeypatch.setattr(hook, "SHARE", 1e9)  # however short the steps, every checkpoint is drawn
    config = tiny_config(tmp_path / "run")
    pretrain(replace(config, run=replace(config.run, stop_after_steps=4)), "tiny")
    stray = picture_path(tmp_path / "run", 900)
    stray.write_bytes(picture_path(tmp_path / "run", 4).read_bytes())
    run = pretrain(config, "tiny")
    assert picture_steps(run) == [0, 2, 4, 6, 8, 9]
    assert "as of step 9 of 9" in (run / "report.html").read_text()
    assert not list(run.rglob("*.partial"))
    about = cluster_pictures(read_run(run), 12)[-1]["about"]
    assert about["images"] == ["scene 0", "scene 1", "scene 2", "scene 3"]
    assert all(2 <= k <= 5 for row in about["k"] for k in row)
    assert all(1 / 5 < share < 1 for row in about["share"] for share in row)
    with Image.open(picture_path(run, 9)) as last, Image.open(picture_path(run, 0)) as first:
        assert first.size == last.size
        assert first.tobytes() != last.tobytes()
    plain = pretrain(tiny_config(tmp_path / "plain", report=False), "tiny")
    assert metrics_of(run) == metrics_of(plain)
    assert not {"report.html", "pictures"} & {path.name for path in plain.iterdir()}


def test_a_failure_is_reported_once_and_training_continues(tmp_path: Path, capsys, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no ink\nat all")

    monkeypatch.setattr(ReportHook, "draw", fail)
    monkeypatch.setattr(Gauges, "measure", fail)
    monkeypatch.setattr(hook, "SHARE", 1e9)
    run = pretrain(tiny_config(tmp_path / "run"), "tiny")
    printed = capsys.readouterr().err
    for part in ("the report could not be written", "the gauges could not be computed"):
        assert printed.count(f"{part} (RuntimeError: no ink); training continues") == 1
    assert len(read_metrics(run)) == 9
    assert "as of step 9 of 9" in (run / "report.html").read_text()  # it is only without pictures


@pytest.mark.parametrize(
    ("metrics", "step", "curves"),
    [
        ("", 0, 0),
        (json.dumps(line(1)) + '\n{"step": 2, "lo', 1, len(line(1)) - 2),
        ('{"step": 3, "loss": NaN, "rate": Infinity, "z": 0.5}', 3, 1),
    ],
)
def test_live_run_gives_a_page(metrics: str, step: int, curves: int, tmp_path: Path):
    folder = make_run(tmp_path / "run", 1)
    (folder / "metrics.jsonl").write_text(metrics)
    run = read_run(folder)
    assert (run.step, len(run.metrics)) == (step, curves)
    assert "<title>run</title>" in report([folder])


def test_scores_find_their_runs(tmp_path: Path):
    """By the evaluated path, else by the folder of results.jsonl; or none."""
    runs = [read_run(make_run(tmp_path / name, 3)) for name in ("one", "two")]
    results = add_scores(runs[0].folder)
    result = json.loads(results.read_text().splitlines()[0])
    results.write_text(json.dumps(result | {"weights": "elsewhere", "backbone": "x"}) + "\n")
    changes = (
        {"weights": str(runs[1].folder / "checkpoints" / "step-00000003.pt")},
        {"weights": f"random:{runs[1].folder}"},
        {"weights": "timm:vit", "backbone": "vit"},
        {"weights": "timm:vit", "backbone": "vit"},  # repeated
    )
    other = tmp_path / "results.jsonl"
    other.write_text("".join(json.dumps(result | change) + "\n" for change in changes))
    scores = find_scores(runs, [other])
    assert [score["run"] for score in scores] == [0, 1, 1, None]
    assert [score["source"] is None for score in scores] == [False, True, True, True]


def test_command_writes_the_page(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", 3)
    assert main(["show", "report", "run", "run", "--to", "both.html"]) == 0
    assert capsys.readouterr().out == "both.html\n"
    assert "2 runs compared" in Path("both.html").read_text()
