"""croc sweep: every run is trained and scored once, also by several processes."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from croc.cli import _recipe as open_recipe
from croc.cli import main
from croc.config import PretrainConfig, read_config
from croc.eval import evaluate
from croc.eval.results import read_results
from croc.lab import sweep
from croc.lab.sweep import SweepConfig, plan_runs
from tests.tiny import FLAGS

PLACE = "linear on scenes:4"
LAMBDA = ("--sweep.vary", "cluster.position-weight", "--sweep.values")
INCONTEXT = ("--incontext.image-px", "32", "--incontext.label-px", "16")
BOTH = ("--sweep.protocols", "linear", "incontext", *INCONTEXT)
TWO_RUNS = (*LAMBDA, "1", "2", "--sweep.no-untrained")


def croc_sweep(to: Path, *more: str, flags: list[str] = FLAGS) -> Any:
    """Runs of two steps, scored on four scenes; the exit code."""
    given = [
        *("sweep", "demo", *flags, "--run.stop-after-steps", "2", "--run.no-report"),
        *("--linear.image-px", "32", "--linear.steps", "5", "--linear.train-px", "16"),
        *("--workers", "0", "--sweep.to", str(to), "--sweep.data", "scenes:4"),
        *(() if "--sweep.protocols" in more else ("--sweep.protocols", "linear")),
        *more,
    ]
    try:
        return main(given)
    except SystemExit as end:
        return end.code


def read_record(to: Path) -> dict[str, Any]:
    """As strict JSON: no NaN, no Infinity."""
    return json.loads((to / "sweep.json").read_text(), parse_constant=pytest.fail)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "segmentation_figure", lambda *_: None, raising=False)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that pretrain was called for, in their order."""
    real, calls = sweep.pretrain, []

    def counting(config: PretrainConfig, *rest: Any) -> Path:
        calls.append(Path(str(config.run.folder)).name)
        return real(config, *rest)

    monkeypatch.setattr(sweep, "pretrain", counting)
    return calls


def weights_scored(to: Path) -> list[str]:
    """A kind and a run's name for every cell that was computed."""
    lines = read_results(to / "evaluations")
    return [line["weights"].replace(f"{to}/runs/", "") for line in lines]


def test_an_ablation_by_one_command(
    tmp_path: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
):
    to = tmp_path / "sweep"
    options = (*LAMBDA, "inf", "4", "--sweep.seeds", "0", "1")
    assert croc_sweep(to, *options) == 0
    printed = capsys.readouterr().out
    assert trained == [f"{value}-seed-{seed}" for seed in (0, 1) for value in ("4", "inf")]
    # Before training, λ_pos makes no difference: one cell per seed.
    scored = weights_scored(to)
    assert (len([spec for spec in scored if spec.startswith("random:")]), len(scored)) == (2, 6)
    record = read_record(to)
    assert [setting["name"] for setting in record["settings"]] == ["4", "inf"]
    assert record["to_come"] == []
    assert record["configuration"]["configs"]["inf"]["cluster"]["position_weight"] == "inf"
    configs = [read_config(to / "runs" / name / "config.json")[0] for name in trained]
    assert [config.run.seed for config in configs] == [0, 0, 1, 1]
    table = (to / "sweep.md").read_text()
    for setting in record["settings"]:
        for kind in ("scores", "untrained"):
            values = [run[kind][PLACE]["mIoU"] for run in setting["runs"]]
            mean, deviation = statistics.mean(values), statistics.stdev(values)
            summary = {"mean": mean, "deviation": deviation, "count": 2}
            assert setting[kind][PLACE] == pytest.approx(summary)
        for run in setting["runs"]:
            assert (run["steps"], run["images_seen"], run["failed"]) == (2, 16, None)
            assert min(run["training_s"], run["evaluating_s"]) > 0
            assert 2 <= run["metrics"]["k_mean"] <= 5
        summary = setting["scores"][PLACE]
        score = f"{summary['mean']:.1f} ± {summary['deviation']:.1f}"
        assert f"| {setting['name']} | {score} |" in table
        assert score in printed
    assert "| untrained |" in table
    with Image.open(to / "sweep.png") as picture:
        assert min(picture.size) > 300

    assert croc_sweep(to, *options, "--run.log-every-steps", "2") == 0
    assert (len(trained), weights_scored(to)) == (4, scored)
    assert read_record(to)["settings"] == record["settings"]

    before = (to / "sweep.json").read_bytes()
    others = {
        "seeds was [0, 1], now [0, 2]": ("--sweep.seeds", "0", "2"),
        "settings was ['4', 'inf'], now ['4']": (*LAMBDA, "4"),
        "configs.4.loss.alpha was 1.0, now 0.5": ("--loss.alpha", "0.5"),
        "linear on scenes:4.steps was 5, now 6": ("--linear.steps", "6"),
    }
    for expected, more in others.items():
        assert croc_sweep(to, *options, *more) == 2
        assert expected in capsys.readouterr().err
    assert (to / "sweep.json").read_bytes() == before
    assert croc_sweep(tmp_path, *options) == 2
    assert "contains no sweep" in capsys.readouterr().err


def test_settings_of_several_options_and_other_methods(tmp_path: Path):
    settings = (
        *("by cost=", "K 3=--cluster.k-select fixed --cluster.k-max 3"),
        *("DINO=@dino-demo", "one block=--model.depth 1"),
    )
    pairs = zip(FLAGS[::2], FLAGS[1::2])
    flags = [word for pair in pairs for word in pair if "cluster" not in pair[0]]
    more = (*BOTH, "--sweep.hold-out", "0.5")
    assert croc_sweep(tmp_path, "--sweep.settings", *settings, *more, flags=flags) == 0
    record = read_record(tmp_path)
    by_cost, fixed, dino, shallow = record["settings"]
    assert fixed["metrics"]["k_mean"]["mean"] == pytest.approx(3)
    assert (by_cost["recipe"], dino["recipe"]) == ("demo", "dino-demo")
    assert "k_mean" not in dino["metrics"]
    # One block is another network, so there are two references.
    assert dino["untrained"] == by_cost["untrained"] != shallow["untrained"]
    table = (tmp_path / "sweep.md").read_text()
    assert "| untrained: by cost, K 3, DINO |" in table
    assert "Scored on 50% of the training parts, held out." in table
    assert {line["hold_out"] for line in read_results(tmp_path / "evaluations")} == {0.5}


def test_a_stopped_sweep_resumes(
    tmp_path: Path,
    trained: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """After a signal that pretrain answers with a checkpoint, then after one while scoring."""
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
    record = read_record(tmp_path)
    assert record["to_come"] == ["2, seed 0"]
    assert record["settings"][1]["runs"] == []
    assert weights_scored(tmp_path) == ["1-seed-0"]

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "carry_out", interrupt)
        assert croc_sweep(tmp_path, *options) == 130
    assert f"{tmp_path}/runs/2-seed-0: resumes from step 1, to step 3" in capsys.readouterr().err
    assert croc_sweep(tmp_path, *options) == 0
    assert trained == ["1-seed-0", "2-seed-0", "2-seed-0"]
    assert weights_scored(tmp_path) == ["1-seed-0", "2-seed-0"]
    record = read_record(tmp_path)
    assert [setting["runs"][0]["steps"] for setting in record["settings"]] == [3, 3]
    # A process that is stopped at once keeps these results, but not those of a lost run.
    for file in (tmp_path / "runs/1-seed-0/checkpoints").iterdir():
        file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "pretrain", interrupt)
        assert croc_sweep(tmp_path, *options) == 130
    assert read_record(tmp_path)["to_come"] == ["1, seed 0"]
    assert read_record(tmp_path)["settings"][1] == record["settings"][1]


def test_failing_runs_and_cells_cost_no_other(
    tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
):
    pretrain, real = sweep.pretrain, evaluate.carry_out
    error = torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    def tight(config: PretrainConfig, *rest: Any) -> Path:
        if "small-memory" in str(config.run.folder):
            raise error
        return pretrain(config, *rest)

    def full(request: Any, *rest: Any) -> Any:
        if request.protocol == "incontext":
            raise error
        return real(request, *rest)

    settings = ("small memory=--optim.batch 4", "diverges=--optim.lr 1e30", "learns=")
    more = ("--run.stop-after-steps", "4", "--run.max-skipped", "2", "--sweep.no-untrained", *BOTH)
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "pretrain", tight)
        patch.setattr(evaluate, "carry_out", full)
        assert croc_sweep(tmp_path, "--sweep.settings", *settings, *more) == 1
    memory, diverged, learned = (each["runs"][0] for each in read_record(tmp_path)["settings"])
    assert memory["failed"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate"
    assert diverged["failed"]
    assert learned["failed"].startswith("learns, seed 0, incontext on scenes:4: OutOfMemoryError")
    assert list(learned["scores"]) == [PLACE]
    assert "Failed: small memory, seed 0: OutOfMemory" in (tmp_path / "sweep.md").read_text()
    before = len(trained)
    assert croc_sweep(tmp_path, "--sweep.settings", *settings, *more) == 1
    assert trained[before:] == ["small-memory-seed-0", "diverges-seed-0"]
    runs = [setting["runs"][0]["failed"] for setting in read_record(tmp_path)["settings"]]
    assert [failed is None for failed in runs] == [True, False, True]


LOCKS_THE_FIRST = """
import sys, time
from croc.lab.sweep import FIRST_RUN, try_lock

with open(sys.argv[1] + "/sweep.lock", "ab") as file:
    assert try_lock(file, FIRST_RUN)
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


def test_processes_share_a_sweep_and_take_over_from_a_killed_one(tmp_path: Path):
    """The first run is locked by a process that is killed when the second run is finished."""
    options = (tmp_path, *LAMBDA, "1", "2")
    with start(LOCKS_THE_FIRST, tmp_path) as blocker:
        assert blocker.stdout is not None
        assert blocker.stdout.readline() == "locked\n"
        both = [start(SWEEP, *options), start(SWEEP, *options)]
        try:
            assert both[0].stderr is not None
            errors = ""
            while "waiting for runs that other" not in errors:
                line = both[0].stderr.readline()
                assert line, errors
                errors += line
            blocker.kill()
            outputs = [each.communicate(timeout=300) for each in both]
        finally:
            for each in (blocker, *both):
                each.kill()
    assert [each.returncode for each in both] == [0, 0], outputs
    started = re.findall(r"runs/(\S+): starts", errors + "".join(text for _, text in outputs))
    assert sorted(started) == ["1-seed-0", "2-seed-0"]
    # Two λ_pos share an untrained network.
    lines = read_results(tmp_path / "evaluations")
    weights = [line["weights"] for line in lines]
    assert len([each for each in weights if each.startswith("random:")]) == 1
    assert len(weights) == len({line["weights_hash"] for line in lines}) == 3
    # Each waits for the other, so both print the whole table.
    tables = [text[: text.index("written to")] for text, _ in outputs]
    assert tables[0] == tables[1]
    assert read_record(tmp_path)["to_come"] == []
    assert not list(tmp_path.rglob("*.partial"))


def test_settings_and_seeds_are_planned_in_order():
    def planned(*words: str, **options: Any) -> list[Any]:
        config = SweepConfig(to="x", data=("scenes",), **options)
        return plan_runs(config, "demo", words, open_recipe)

    for option, values, expected in (
        ("cluster.position-weight", ("10", "inf", "2", "0.5"), ["0.5", "2", "10", "inf"]),
        ("cluster.tokens", ("values", "keys", "last"), ["values", "keys", "last"]),
        ("views.scale", ("0.25 1", "0.1 1"), ["0.25 1", "0.1 1"]),
    ):
        assert [run.setting for run in planned(vary=option, values=values)] == expected
    # k-select fixed needs the k-max that is varied.
    runs = planned("--cluster.k-select", "fixed", vary="cluster.k-max", values=("3", "2"))
    assert [run.config.cluster.k_max for run in runs] == [2, 3]
    runs = planned(settings=("a b=", "λ=--loss.alpha 2"), seeds=(3, 1))
    folders = ["a-b-seed-3", "λ-seed-3", "a-b-seed-1", "λ-seed-1"]
    assert [run.folder.name for run in runs] == folders


def test_summaries():
    assert sweep.training_seconds([1.0, 2.5, 0.5, 3.0, 0.25]) == 5.75
    lines = [{"step": n, "epoch": 0, "k_mean": float(n), "seconds": 1.0} for n in range(20)]
    assert sweep.last_metrics(lines) == {"k_mean": 18.5}
    # Options that an older sweep.json does not have yet are no difference.
    assert list(sweep.differences({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}})) == []


def made_up_record(names: list[str]) -> dict[str, Any]:
    settings = []
    for place, name in enumerate(names):
        score = {"mean": 20.0 + place, "deviation": 1.0, "count": 1}
        run = {"failed": None, "images_seen": 9, "training_s": 1.0, "evaluating_s": 2.0, "seed": 0}
        run |= {"scores": {"p": {"mIoU": 20.0 + place}}, "metrics": {"k_mean": 3.0}}
        summaries = {
            "scores": {"p": score},
            "untrained": {"p": score},
            "metrics": {"k_mean": score},
        }
        settings.append({"name": name, "runs": [run], **summaries})
    return {
        "date": "2026-01-01",
        "hardware": {"gpu": "no GPU", "cpu": "a CPU with a rather long name, 3.5 GHz"},
        "versions": {"croc": "0"},
        "command": {"sweep": {"vary": None}},
        "configuration": {"recipe": "demo", "hold_out": 0.25},
        "columns": [{"place": "p", "title": "Scenes: linear, mIoU", "metric": "mIoU"}],
        "settings": settings,
        "to_come": [],
    }


@pytest.mark.parametrize(
    "names",
    [["1", "2", "inf"], ["a", "b" * 40, r"$\nonsense$ c"], [f"number {n}:" for n in range(20)]],
)
def test_picture_is_not_clipped_and_joins_only_numbers(names: list[str]):
    figure = sweep.make_figure(made_up_record(names))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert len(figure.axes) == 2
    for axes in figure.axes:
        box = axes.get_tightbbox(canvas.get_renderer())
        assert box is not None
        assert min(box.x0, box.y0) >= -1
        assert max(box.x1 - figure.bbox.x1, box.y1 - figure.bbox.y1) <= 1
        (means,) = axes.lines
        assert means.get_linestyle() == ("-" if "inf" in names else "None")


def test_a_name_may_contain_anything_and_a_method_have_no_clusters():
    record = made_up_record(["CrOC", "DINO"])
    record["settings"][1]["metrics"] = {}
    assert len(sweep.make_figure(record).axes) == 1
    text = sweep.to_markdown(made_up_record(["a | b", "<i>*c*</i>"]))
    assert r"| a \| b |" in text
    assert r"\<i\>\*c\*\</i\>" in text
