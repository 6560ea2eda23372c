"""croc sweep: every run is trained and scored once, also by several processes."""

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from croc.cli import main
from croc.config import PretrainConfig, read_config
from croc.eval import evaluate
from croc.io import read_metrics
from croc.lab import sweep
from croc.results import read_results
from tests.tiny import FLAGS

LAMBDA = ("--sweep.vary", "cluster.position-weight", "--sweep.values")
INCONTEXT = ("--incontext.image-px", "32", "--incontext.label-px", "16")
BOTH = ("--sweep.protocols", "linear", "incontext", *INCONTEXT)
TWO_RUNS = (*LAMBDA, "1", "2")


def croc_sweep(to: Path, *more: str, flags: list[str] = FLAGS) -> Any:
    """Runs of two steps, scored on four scenes; the exit code."""
    arguments = [
        *("sweep", "demo", *flags, "--run.stop-after-steps", "2", "--run.no-report"),
        *("--linear.image-px", "32", "--linear.steps", "5", "--linear.train-px", "16"),
        *("--workers", "0", "--sweep.to", str(to), "--sweep.data", "scenes:4"),
        *(() if "--sweep.protocols" in more else ("--sweep.protocols", "linear")),
        *more,
    ]
    try:
        return main(arguments)
    except SystemExit as end:
        return end.code


def read_record(to: Path) -> dict[str, Any]:
    """As strict JSON: no NaN, no Infinity."""
    return json.loads((to / "table.json").read_text(), parse_constant=pytest.fail)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "segmentation_figure", lambda *_: None, raising=False)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the run folders, in the order in which pretrain was called."""
    real, calls = sweep.pretrain, []

    def counting(config: PretrainConfig, *rest: Any) -> Path:
        calls.append(Path(str(config.run.folder)).name)
        return real(config, *rest)

    monkeypatch.setattr(sweep, "pretrain", counting)
    return calls


def test_an_ablation_by_one_command(tmp_path: Path, trained: list[str], capsys):
    to = tmp_path / "sweep"
    options = (*LAMBDA, "inf", "4", "--sweep.seeds", "0", "1")
    assert croc_sweep(to, *options) == 0
    assert trained == [f"{value}-seed-{seed}" for seed in (0, 1) for value in ("4", "inf")]
    lines = {Path(line["weights"]).name: line for line in read_results(to / "evaluations")}
    assert list(lines) == trained
    configs = [read_config(to / "runs" / name / "config.json")[0] for name in trained]
    assert [config.run.seed for config in configs] == [0, 0, 1, 1]
    record = read_record(to)
    assert [row["label"] for row in record["rows"]] == ["4", "inf"]
    for row in record["rows"]:
        values = [lines[f"{row['label']}-seed-{seed}"]["scores"]["mIoU"] for seed in (0, 1)]
        expected = statistics.mean(values), statistics.stdev(values)
        (cell,) = row["cells"]
        assert (cell["value"], cell["deviation"]) == pytest.approx(expected)
        assert [run["scores"] for run in row["runs"]] == [[value] for value in values]
    assert (to / "sweep.png").is_file()

    assert croc_sweep(to, *options, "--run.log-every-steps", "2") == 0
    assert (len(trained), len(read_results(to / "evaluations"))) == (4, 4)
    assert read_record(to) == record
    assert croc_sweep(to, *options, "--loss.alpha", "0.5") == 2
    assert "--loss.alpha was 1.0, now 0.5" in capsys.readouterr().err
    assert read_record(to) == record


def test_settings_of_several_options_and_other_methods(tmp_path: Path):
    settings = (
        *("by cost=", "K 3=--cluster.k-select fixed --cluster.k-max 3"),
        *("DINO=@dino-demo", "a | b=--model.depth 1"),
    )
    pairs = zip(FLAGS[::2], FLAGS[1::2])
    flags = [word for pair in pairs for word in pair if "cluster" not in pair[0]]
    more = (*BOTH, "--sweep.hold-out", "0.5")
    assert croc_sweep(tmp_path, "--sweep.settings", *settings, *more, flags=flags) == 0
    record = read_record(tmp_path)
    assert len(record["columns"]) == 2
    assert all(cell["value"] is not None for row in record["rows"] for cell in row["cells"])
    names = ("by-cost", "K-3", "DINO", "a-b")
    pages = [read_config(tmp_path / f"runs/{name}-seed-0/config.json") for name in names]
    assert [recipe for _, recipe in pages] == ["demo", "demo", "dino-demo", "demo"]
    assert pages[3][0].model.depth == 1
    assert read_metrics(tmp_path / "runs/K-3-seed-0")[-1]["mean_k"] == pytest.approx(3)
    assert r"| a \| b " in (tmp_path / "table.md").read_text()
    assert {line["hold_out"] for line in read_results(tmp_path / "evaluations")} == {0.5}


def test_a_stopped_sweep_resumes(tmp_path: Path, trained: list[str], monkeypatch, capsys):
    options = (*TWO_RUNS, "--run.stop-after-steps", "3")
    with monkeypatch.context() as patch:
        from croc.train.log import RunLog

        advance = RunLog.advance

        def stop(self: Any, step: int) -> None:
            advance(self, step)
            if len(trained) == 2:
                os.kill(os.getpid(), signal.SIGTERM)

        patch.setattr(RunLog, "advance", stop)
        assert croc_sweep(tmp_path, *options) == 75
    assert "the same command resumes from here" in capsys.readouterr().err
    assert [row["label"] for row in read_record(tmp_path)["rows"]] == ["1"]
    assert croc_sweep(tmp_path, *options) == 0
    assert "runs/2-seed-0: resumes from step 1, 3 steps in total" in capsys.readouterr().err
    assert trained == ["1-seed-0", "2-seed-0", "2-seed-0"]
    weights = [Path(line["weights"]).name for line in read_results(tmp_path / "evaluations")]
    assert weights == ["1-seed-0", "2-seed-0"]
    assert [row["label"] for row in read_record(tmp_path)["rows"]] == ["1", "2"]


def test_a_failing_run_costs_no_other(tmp_path: Path, trained: list[str], monkeypatch):
    pretrain = sweep.pretrain

    def run_out_of_memory(config: PretrainConfig, *rest: Any) -> Path:
        if "small-memory" in str(config.run.folder):
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return pretrain(config, *rest)

    settings = ("--sweep.settings", "small memory=--optim.batch 4", "learns=")
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "pretrain", run_out_of_memory)
        assert croc_sweep(tmp_path, *settings) == 1
    (failed,) = read_record(tmp_path)["failed"]
    assert (failed["label"], failed["protocol"]) == ("small memory, seed 0", "training")
    assert failed["reason"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate"
    assert len(read_record(tmp_path)["rows"]) == 1
    assert croc_sweep(tmp_path, *settings) == 0
    assert trained == ["learns-seed-0", "small-memory-seed-0"]
    assert len(read_record(tmp_path)["rows"]) == 2


def test_a_table_has_the_runs_of_other_processes(tmp_path: Path, trained: list[str], monkeypatch):
    """The first value was finished by another process, or fails in one after this has started."""
    assert croc_sweep(tmp_path, *LAMBDA, "1") == 0
    tables: list[list[str]] = []
    failure = {"label": "1, seed 0", "protocol": "training", "data": "demo", "reason": "NaN"}

    def reverse(runs: Any, locks: Path) -> Any:
        for run in reversed(runs):
            yield run
            tables.append([row["label"] for row in read_record(tmp_path)["rows"]])

    def fail(runs: Any, locks: Path) -> Any:
        shutil.rmtree(tmp_path / "runs" / "1-seed-0")
        (tmp_path / "failures.jsonl").write_text(json.dumps(failure) + "\n")
        yield from runs

    monkeypatch.setattr(sweep, "unlocked_runs", reverse)
    assert croc_sweep(tmp_path, *TWO_RUNS) == 0
    assert tables == [["1", "2"], ["1", "2"]]
    monkeypatch.setattr(sweep, "unlocked_runs", fail)
    assert croc_sweep(tmp_path, *TWO_RUNS) == 1
    assert trained == ["1-seed-0", "2-seed-0"]
    assert read_record(tmp_path)["failed"] == [failure]


LOCKS_THE_FIRST = """
import os, sys, time
from croc.io import try_lock

os.makedirs(sys.argv[1] + "/locks")
with open(sys.argv[1] + "/locks/1-seed-0", "ab") as file:
    assert try_lock(file)
    print("locked", flush=True)
    time.sleep(300)
"""
SWEEP = """
import sys
from pathlib import Path
from croc.eval import evaluate
from tests.lab.test_sweep import croc_sweep

evaluate.segmentation_figure = lambda *_: None
sys.exit(croc_sweep(Path(sys.argv[1]), *sys.argv[2:]))
"""


def start(script: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", script, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")


def test_processes_share_a_sweep_and_take_over_from_a_killed_one(tmp_path: Path, capsys):
    """The first run is locked by a process that is killed when the second run is finished."""
    options = TWO_RUNS
    with start(LOCKS_THE_FIRST, tmp_path) as blocker, start(SWEEP, tmp_path, *options) as other:
        try:
            assert blocker.stdout.readline() == "locked\n"
            errors = ""
            while "waiting for runs that other" not in errors:
                line = other.stderr.readline()
                assert line, errors
                errors += line
            blocker.kill()
            assert croc_sweep(tmp_path, *options) == 0
            output, rest = other.communicate(timeout=300)
        finally:
            blocker.kill()
            other.kill()
    assert other.returncode == 0, rest
    printed = capsys.readouterr()
    started = re.findall(r"runs/(\S+): starts", errors + rest + printed.err)
    assert sorted(started) == ["1-seed-0", "2-seed-0"]
    lines = read_results(tmp_path / "evaluations")
    assert len(lines) == len({line["weights_hash"] for line in lines}) == 2
    # Each waits for the other, so both print the whole table.
    tables = [text[: text.index("written to")] for text in (output, printed.out)]
    assert tables[0] == tables[1]
    assert len(read_record(tmp_path)["rows"]) == 2
    assert not list(tmp_path.rglob("*.partial"))
