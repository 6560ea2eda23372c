"""The demo: what it leaves, and when it fails; what a dry run prints."""

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from croc.cli import main
from croc.eval import protocols
from croc.io import read_metrics
from croc.lab import demo
from croc.results import read_results
from croc.weights.export import Export, export
from tests.data.pictures import write
from tests.eval.trees import photograph
from tests.tiny import FLAGS


def test_demo_leaves_run_scores_and_pictures(run: Path, capsys, tmp_path: Path, monkeypatch):
    export(Export(str(run), str(tmp_path / f"{demo.SHIPPED}.safetensors")))
    monkeypatch.setenv("CROC_WEIGHTS", str(tmp_path))
    few = replace(protocols.linear_protocol("scenes"), image_px=32, steps=3)
    monkeypatch.setitem(protocols.DEFAULTS, "linear", lambda _: few)
    monkeypatch.setattr(demo, "LEAST_GAIN", -100.0)  # nine steps teach nothing
    monkeypatch.setattr(demo, "judge", lambda *_: True)
    run = tmp_path / "run"
    assert main(["demo", *FLAGS, "--run.folder", str(run)]) == 0
    out = capsys.readouterr().out
    trained, untrained = read_results(run / "evaluation")
    assert (trained["backbone"], untrained["backbone"]) == ("run@9", "run@0")
    pictures = ("clusters.png", f"{demo.SHIPPED}.png")
    for name in ("report.html", "evaluation", "metrics.jsonl", "checkpoints", *pictures):
        assert str(run / name) in out
        assert (run / name).exists()


def test_demo_requires_a_gain(monkeypatch: pytest.MonkeyPatch):
    scores = iter([36.0, 30.0, 34.0, 30.0])
    result = lambda *_, **__: SimpleNamespace(scores={"mIoU": next(scores)})  # noqa: E731
    monkeypatch.setattr(demo, "evaluate", result)
    assert demo.compare(Path("run"), "cpu")
    assert not demo.compare(Path("run"), "cpu")
    monkeypatch.setattr(demo, "run_demo", lambda config: False)
    with pytest.raises(SystemExit, match="1"):
        main(["demo"])


def test_demo_requires_falling_losses_and_no_collapse():
    for losses, shares, learned in (
        ([5.0, 4.0, 3.0], [0.5, 0.4, 0.3], True),
        ([5.0, 4.0, 5.1], [0.5, 0.4, 0.3], False),
        ([5.0, 4.0, 3.0], [0.5, 0.04, 0.3], False),
        ([5.0, 4.0, 3.0], [0.5, 0.6, 0.96], False),
    ):
        entropies = [share * math.log(64) for share in shares]
        lines = [{"loss_image": x, "entropy_image": y} for x, y in zip(losses, entropies)]
        assert demo.judge(lines, "image", 64) == learned


def printed_rows(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["pretrain", "demo", *FLAGS, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line[:12].strip(): line[12:] for line in lines if line[:12].strip()}


def test_what_a_folder_with_broken_files_needs(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(40):
        write(tmp_path / f"in/{number:02}.jpg", photograph(number, size=(48, 40)))
    write(tmp_path / "in/03.jpg", b"none")
    flags = ["--data.root", "in", "--run.folder", "run", "--optim.epochs", "40"]
    rows = printed_rows([*flags, "--data.max-corrupt-fraction", "0.5", "--dry-run"], capsys)
    assert not (tmp_path / "run").exists()
    assert rows["images"].startswith("40 (first: ")
    assert rows["undecodable"] == "1 of the first 40"
    assert rows["steps"] == "200 at batch size 8"
    assert re.fullmatch(r"[\d.]+ GiB for 2 checkpoints, \d+ GiB free", rows["disk"])


def test_a_run_that_is_resumed_needs_the_rest(tmp_path: Path, capsys):
    run = ["--run.folder", str(tmp_path / "run"), "--run.no-report"]
    assert main(["pretrain", "demo", *FLAGS, *run, "--run.stop-after-steps", "4"]) == 0
    before = (tmp_path / "run/metrics.jsonl").read_text()
    capsys.readouterr()
    rows = printed_rows([*run, "--dry-run"], capsys)
    assert rows["steps"] == "5 at batch size 8, resuming from step 4"
    rows = printed_rows(["--run.stop-after-steps", "1", "--dry-run"], capsys)
    assert rows["steps"] == "1 at batch size 8"
    assert (tmp_path / "run/metrics.jsonl").read_text() == before
    assert read_metrics(tmp_path / "run")[-1]["step"] == 4
