"""Several processes at one sweep: every run is trained by one of them, and none is lost."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from croc.evals.results import read_results
from croc.sweep.claims import Claims
from tests.sweep.commands import LAMBDA, read_page, sweep

HOLDS_THE_FIRST = """
import json, os, signal, sys, time
from pathlib import Path
from croc.sweep.claims import Claims

folder = Path(sys.argv[1])
places = Claims(folder, ["a", "b"]).in_turn()
assert next(places) == 0
print("held", flush=True)
while True:
    page = folder / "sweep.json"
    if page.exists() and len(json.loads(page.read_text())["to_come"]) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
"""

AS_IN_A_SHELL = """
import sys
from pathlib import Path
from croc.evals import evaluate
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
    assert "waiting for another process, which is at 1, seed 0" in said
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
    assert re.sub(r"[\d.]+ *\n", "", tables[0]) == re.sub(r"[\d.]+ *\n", "", tables[1])
    page = read_page(tmp_path)
    assert page["to_come"] == []
    assert [len(setting["runs"]) for setting in page["settings"]] == [2, 2, 2]
    assert page["untrained"]
    assert not list(tmp_path.rglob("*.partial"))


def test_each_comes_once_and_is_free_afterwards(tmp_path: Path):
    with Claims(tmp_path, ["a", "b", "c"]) as claims:
        assert list(claims.in_turn()) == [0, 1, 2]
        assert list(claims.in_turn()) == [0, 1, 2]
        with claims.alone(0), claims.alone(1):
            pass


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    assert sweep(tmp_path, *LAMBDA, "1") == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"croc: {tmp_path / 'sweep.lock'} cannot be locked (No locks available)")
    monkeypatch.undo()
    assert sweep(tmp_path, *LAMBDA, "1", "--sweep.no-untrained") == 0  # what was left is its own
