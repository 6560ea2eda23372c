"""Several processes at one sweep: every run is trained by one of them, and none is lost."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from croc.config import PretrainConfig
from croc.eval.results import read_results
from croc.lab.sweep import run as sweep_run
from croc.lab.sweep.claims import PAGE, UNTRAINED, Claims
from tests.sweep.commands import LAMBDA, read_page, sweep

HOLDS_THE_FIRST = """
import json, os, signal, sys, time
from pathlib import Path
from croc.lab.sweep.claims import Claims

folder = Path(sys.argv[1])
places = Claims(folder, ["a", "b"]).in_turn()
assert next(places) == 0
print("held", flush=True)
for _ in range(1200):
    page = folder / "sweep.json"
    if page.exists() and len(json.loads(page.read_text())["to_come"]) == 1:
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
"""

ASKS = """
import sys
from pathlib import Path
from croc.lab.sweep.claims import Claims

with Claims(Path(sys.argv[1]), ["a", "b", "c"]) as claims:
    print(list(claims.in_turn()), flush=True)
"""

AS_IN_A_SHELL = """
import sys
from pathlib import Path
from croc.eval import evaluate
from tests.sweep.commands import sweep

evaluate.segmentation_figure = lambda *_: None
sys.exit(sweep(Path(sys.argv[1]), *sys.argv[2:]))
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )


def test_a_run_that_another_process_is_at_comes_last_and_outlives_that_process(
    tmp_path: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
):
    with start(HOLDS_THE_FIRST, tmp_path) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert sweep(tmp_path, *LAMBDA, "1", "2", "--sweep.no-untrained") == 0
            assert other.wait() == -9
        finally:
            other.kill()
    assert trained == ["2-seed-0", "1-seed-0"]
    said = capsys.readouterr().err
    assert "waiting for runs that other processes are at: 1, seed 0" in said
    assert said.index("run 2 of 2: 2, seed 0") < said.index("run 1 of 2: 1, seed 0")
    page = read_page(tmp_path)
    assert [setting["name"] for setting in page["settings"]] == ["1", "2"]
    assert [len(setting["runs"]) for setting in page["settings"]] == [1, 1]
    assert page["to_come"] == []


def test_the_same_command_twice_at_once_does_everything_once(tmp_path: Path):
    asked = (*LAMBDA, "1", "2", "3", "--sweep.seeds", "0", "1")
    both = [start(AS_IN_A_SHELL, tmp_path, *asked) for _ in range(2)]
    try:
        ends = [each.communicate(timeout=300) for each in both]
    finally:
        for each in both:
            each.kill()
    assert [each.returncode for each in both] == [0, 0], ends
    runs = sorted(f"{value}-seed-{seed}" for value in (1, 2, 3) for seed in (0, 1))
    started = re.findall(r"runs/(\S+): starts", "".join(said for _, said in ends))
    assert sorted(started) == runs
    # Three λ_pos share an untrained network.
    lines = read_results(tmp_path / "evaluations")
    weights = [line["weights"] for line in lines]
    assert len([each for each in weights if each.startswith("random:")]) == 2
    assert len(weights) == len({line["weights_hash"] for line in lines}) == 8
    # Each waits for the other, so that each tells of everything.
    tables = [text[: text.index("written to")] for text, _ in ends]
    assert tables[0] == tables[1]
    page = read_page(tmp_path)
    assert page["to_come"] == []
    assert [len(setting["runs"]) for setting in page["settings"]] == [2, 2, 2]
    assert page["untrained"]
    assert not list(tmp_path.rglob("*.partial"))


def test_what_others_finished_stays_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also that of a process which comes later, and is ended before it has seen all."""
    asked = (*LAMBDA, "1", "2", "--sweep.no-untrained")
    assert sweep(tmp_path, *asked) == 0
    page = read_page(tmp_path)

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("croc.lab.sweep.sweep.carry_out", ended)
        assert sweep(tmp_path, *asked) == 130
    assert read_page(tmp_path)["settings"] == page["settings"]
    assert read_page(tmp_path)["to_come"] == []
    # A run that is gone is to come again.
    for file in (tmp_path / "runs/1-seed-0/checkpoints").iterdir():
        file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr("croc.lab.sweep.sweep.carry_out", ended)
        assert sweep(tmp_path, *asked) == 130
    assert read_page(tmp_path)["to_come"] == ["1, seed 0"]


def test_what_failed_here_may_succeed_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """While this process is at its second run, another has more luck with the first."""
    asked = (*LAMBDA, "1", "2", "--sweep.no-untrained")
    real, calls = sweep_run.pretrain, []

    def tight(config: PretrainConfig, recipe: str) -> Path:
        calls.append(Path(str(config.run.folder)).name)
        if calls == ["1-seed-0"]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if calls == ["1-seed-0", "2-seed-0"]:
            with start(AS_IN_A_SHELL, tmp_path, *asked) as other:
                assert other.stderr is not None
                for line in other.stderr:
                    if "waiting for runs" in line:
                        break
                other.terminate()
        return real(config, recipe)

    monkeypatch.setattr(sweep_run, "pretrain", tight)
    assert sweep(tmp_path, *asked) == 0
    assert calls == ["1-seed-0", "2-seed-0"]
    runs = [setting["runs"][0] for setting in read_page(tmp_path)["settings"]]
    assert [run["failed"] for run in runs] == [None, None]
    assert all(run["scores"] for run in runs)


def test_each_comes_once_and_is_free_afterwards(tmp_path: Path):
    with Claims(tmp_path, ["a", "b", "c"]) as claims:
        assert list(claims.in_turn()) == [0, 1, 2]
        with claims.alone(PAGE), claims.alone(UNTRAINED):
            pass
        places = claims.in_turn()
        assert [next(places), next(places)] == [0, 1]
        with start(ASKS, tmp_path) as other:
            assert other.stderr is not None
            assert other.stdout is not None
            told = other.stderr.readline()
            assert told == "waiting for runs that other processes are at: b\n"
            assert next(places) == 2
            assert other.stdout.readline() == "[0, 2, 1]\n"
            assert other.wait() == 0


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.lockf", refuse)
        assert sweep(tmp_path, *LAMBDA, "1") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"croc: {tmp_path / 'sweep.lock'} cannot be locked (No locks available)")
    assert sweep(tmp_path, *LAMBDA, "1", "--sweep.no-untrained") == 0  # what was left is its own
