"""What `croc pretrain --dry-run` says, and that it leaves nothing behind."""

import re
from pathlib import Path

import pytest

from croc.cli import main
from croc.io import read_metrics
from tests.eval.trees import photograph
from tests.tiny import FLAGS


def say(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["pretrain", "demo", *FLAGS, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {line[:12].strip(): line[12:] for line in lines if line[:12].strip()}


def test_what_a_folder_with_broken_files_needs(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    for number in range(40):
        (photographs / f"{number:02}.jpg").write_bytes(photograph(number, size=(48, 40)))
    (photographs / "03.jpg").write_bytes(b"none")
    flags = ["--data.root", str(photographs), "--run.folder", "run", "--optim.epochs", "40"]
    flags += ["--data.max-failed-share", "0.5"]
    found = say([*flags, "--dry-run"], capsys)
    assert not (tmp_path / "run").exists()
    assert found["images"].startswith("40, ")
    assert found["undecodable"] == "1 of the first 40"
    assert found["steps"] == "200 of batch 8"
    assert found["folder"] == str(tmp_path / "run")
    assert re.fullmatch(r"[\d.]+ GiB for 2 checkpoints, \d+ GiB free", found["disk"])


def test_a_run_that_is_resumed_needs_the_rest(tmp_path: Path, capsys):
    run = ["--run.folder", str(tmp_path / "run"), "--run.no-report"]
    assert main(["pretrain", "demo", *FLAGS, *run, "--run.stop-after-steps", "4"]) == 0
    before = (tmp_path / "run/metrics.jsonl").read_text()
    capsys.readouterr()
    found = say([*run, "--dry-run"], capsys)
    assert found["steps"] == "5 of batch 8, resuming at 4"
    assert (tmp_path / "run/metrics.jsonl").read_text() == before
    assert read_metrics(tmp_path / "run")[-1]["step"] == 4


def test_it_refuses_what_training_would_refuse(tmp_path: Path, capsys):
    (tmp_path / "other").write_text("not a run")
    run = ["--run.folder", str(tmp_path), "--dry-run"]
    assert main(["pretrain", "demo", *FLAGS, *run]) == 2
    assert "exists and is not a run" in capsys.readouterr().err
