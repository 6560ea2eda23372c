"""croc sweep: every run trained and scored once, and a page that is whole at any time."""

import json
import os
import signal
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from croc.config import PretrainConfig
from croc.eval import evaluate
from croc.lab.sweep import run as sweep_run
from croc.lab.sweep import sweep as whole
from croc.train.run_folder import read_config
from tests.sweep.commands import LAMBDA, WITHOUT_CLUSTERS, read_page, sweep

PLACE = "linear on scenes:4"


def test_an_ablation_by_one_command(
    tmp_path: Path,
    trained: list[str],
    scored: list[str],
    capsys: pytest.CaptureFixture[str],
):
    to = tmp_path / "sweep"
    asked = (*LAMBDA, "inf", "4", "--sweep.seeds", "0", "1")
    assert sweep(to, *asked) == 0
    said = capsys.readouterr()
    assert trained == [f"{value}-seed-{seed}" for seed in (0, 1) for value in ("4", "inf")]
    # Before training, λ_pos makes no difference: a cell a seed.
    untrained = [spec for spec in scored if spec.startswith("random:")]
    assert (len(untrained), len(scored)) == (2, 6)
    assert "run 4 of 4: inf, seed 1" in said.err
    page = read_page(to)
    _check_page(page)
    assert [setting["name"] for setting in page["settings"]] == ["4", "inf"]
    configs = [read_config(to / "runs" / name / "config.json")[0] for name in trained]
    assert [config.run.seed for config in configs] == [0, 0, 1, 1]
    assert page["configuration"]["configs"]["inf"]["cluster"]["position_weight"] == "inf"
    table = (to / "sweep.md").read_text()
    for setting in page["settings"]:
        found = setting["scores"][PLACE]
        text = f"| {setting['name']} | {found['mean']:.1f} ± {found['deviation']:.1f} |"
        assert text in table
        assert f"{found['mean']:.1f} ± {found['deviation']:.1f}" in said.out
    assert "| untrained |" in table
    with Image.open(to / "sweep.png") as picture:
        assert min(picture.size) > 300
    assert not list(to.rglob("*.partial"))

    assert sweep(to, *asked) == 0
    assert (len(trained), len(scored)) == (4, 6)
    again = read_page(to)
    assert again["settings"] == page["settings"]
    assert "run 1 of 4: 4, seed 0 (trained before)" in capsys.readouterr().err


def _check_page(page: dict[str, Any]) -> None:
    assert page["date"].startswith("20")
    assert page["hardware"]["cores"] >= 1
    assert page["versions"]["torch"]
    assert page["to_come"] == []
    assert page["command"]["sweep"]["values"] == ["inf", "4"]
    for setting in page["settings"]:
        runs = setting["runs"]
        assert [run["seed"] for run in runs] == [0, 1]
        for kind in ("scores", "untrained"):
            values = [run[kind][PLACE]["mIoU"] for run in runs]
            found = setting[kind][PLACE]
            assert found["mean"] == pytest.approx(statistics.mean(values))
            assert found["deviation"] == pytest.approx(statistics.stdev(values))
            assert found["count"] == 2
        for run in runs:
            assert (run["steps"], run["images_seen"], run["failed"]) == (2, 16, None)
            assert run["training_s"] > 0
            assert run["evaluating_s"] > 0
            assert 2 <= run["metrics"]["k_mean"] <= 5
            assert 0 <= run["metrics"]["valid_share"] <= 1
            assert run["metrics"]["entropy_cluster"] > 0
    assert page["untrained"] == page["settings"][0]["untrained"]


def test_settings_of_several_options_and_other_methods(tmp_path: Path):
    fixed = "K 3=--cluster.k-select fixed --cluster.k-max 3"
    asked = ("--sweep.settings", "by cost=", fixed, "DINO=@dino-demo", "one block=--model.depth 1")
    more = ("--sweep.protocols", "linear", "incontext", "--sweep.hold-out", "0.5")
    small = ("--incontext.image-px", "32", "--incontext.label-px", "16")
    assert sweep(tmp_path, *asked, *more, *small, flags=WITHOUT_CLUSTERS) == 0
    page = read_page(tmp_path)
    by_cost, fixed, dino, shallow = page["settings"]
    assert fixed["metrics"]["k_mean"]["mean"] == pytest.approx(3)
    assert fixed["scores"][PLACE]["deviation"] is None
    assert (by_cost["recipe"], dino["recipe"]) == ("demo", "dino-demo")
    assert "k_mean" not in dino["metrics"]
    assert dino["runs"][0]["images_seen"] == by_cost["runs"][0]["images_seen"]
    assert read_config(tmp_path / "runs/K-3-seed-0/config.json")[1] == "demo"
    # One block is another network, so there are two references.
    assert page["untrained"] is None
    assert dino["untrained"] == by_cost["untrained"] != shallow["untrained"]
    table = (tmp_path / "sweep.md").read_text()
    assert "| untrained: by cost, K 3, DINO |" in table
    assert "Scored on 50% of the training parts, held out." in table
    lines = (tmp_path / "evaluations/results.jsonl").read_text().splitlines()
    assert {json.loads(line)["hold_out"] for line in lines} == {0.5}


def test_a_sweep_goes_on_where_it_was_stopped(
    tmp_path: Path,
    trained: list[str],
    scored: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """By a signal that pretrain answers with a checkpoint, then in the midst of scoring."""
    asked = (*LAMBDA, "1", "2", "--run.stop-after-steps", "3", "--sweep.no-untrained")
    with monkeypatch.context() as patch:
        patch.setattr("croc.train.loop.train", _signalled("2-seed-0"))
        assert sweep(tmp_path, *asked) == 130
    assert "the same command resumes from here" in capsys.readouterr().err
    page = read_page(tmp_path)
    assert page["to_come"] == ["2, seed 0"]
    assert page["settings"][1]["runs"] == []
    assert (tmp_path / "sweep.png").exists()
    assert scored == ["1-seed-0"]

    def killed(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(evaluate.RUNNERS, "linear", killed)
        assert sweep(tmp_path, *asked) == 130
    assert f"{tmp_path}/runs/2-seed-0: resumes from step 1, to step 3" in capsys.readouterr().err
    assert sweep(tmp_path, *asked) == 0
    assert trained == ["1-seed-0", "2-seed-0", "2-seed-0"]
    assert scored == ["1-seed-0", "2-seed-0"]
    runs = [setting["runs"][0] for setting in read_page(tmp_path)["settings"]]
    assert [run["steps"] for run in runs] == [3, 3]
    assert read_page(tmp_path)["untrained"] == {}


def _signalled(folder: str) -> Any:
    """pretrain's loop, which is asked to end while it makes its first step."""
    from croc.train import loop as training

    loop, log = training.train, training.RunLog

    class Ended(log):
        def advance(self, step: int) -> None:
            super().advance(step)
            os.kill(os.getpid(), signal.SIGTERM)

    def train(fabric: Any, config: PretrainConfig, *rest: Any) -> None:
        training.RunLog = Ended if folder in str(config.run.folder) else log
        try:
            loop(fabric, config, *rest)
        finally:
            training.RunLog = log

    return train


def test_what_fails_costs_no_other(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    real = sweep_run.pretrain

    def tight(config: PretrainConfig, recipe: str) -> Path:
        if "small-memory" in str(config.run.folder):
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return real(config, recipe)

    monkeypatch.setattr(sweep_run, "pretrain", tight)
    asked = ("small memory=--optim.batch 4", "diverges=--optim.rate 1e30", "learns=")
    # The rate is 0 in the first step.
    more = ("--run.stop-after-steps", "4", "--run.max-skipped", "2", "--sweep.no-untrained")
    assert sweep(tmp_path, "--sweep.settings", *asked, *more) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("croc: 2 of 3 runs failed, the same command tries only these again: ")
    memory, diverged, learned = (setting["runs"][0] for setting in read_page(tmp_path)["settings"])
    assert memory["failed"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate"
    assert "had no finite gradient" in diverged["failed"]
    assert learned["failed"] is None
    assert learned["scores"][PLACE]["mIoU"] > 0
    assert read_page(tmp_path)["settings"][0]["scores"] == {}
    table = (tmp_path / "sweep.md").read_text()
    assert "Failed: small memory, seed 0: OutOfMemoryError" in table
    assert "| diverges | – |" in table


def test_a_cell_that_fails_is_a_failure_of_its_run(
    tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
):
    def full(_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    asked = (*LAMBDA, "1", "--sweep.no-untrained", "--sweep.protocols", "linear", "incontext")
    small = ("--incontext.image-px", "32", "--incontext.label-px", "16")
    with monkeypatch.context() as patch:
        patch.setitem(evaluate.RUNNERS, "incontext", full)
        assert sweep(tmp_path, *asked, *small) == 1
    (setting,) = read_page(tmp_path)["settings"]
    assert "incontext on scenes:4: OutOfMemoryError" in setting["runs"][0]["failed"]
    assert list(setting["scores"]) == [PLACE]
    assert sweep(tmp_path, *asked, *small) == 0
    assert trained == ["1-seed-0"]
    assert read_page(tmp_path)["settings"][0]["runs"][0]["failed"] is None


def test_the_page_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk while it is written leaves the page before it, and no partial file."""
    pages: list[str] = []
    real = Path.write_text

    def full(path: Path, text: str, **options: Any) -> int:
        if path.name.startswith("sweep.json"):
            if len(pages) == 2:
                real(path, text[: len(text) // 2], **options)
                raise OSError(28, "No space left on device")
            pages.append(text)
        return real(path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    assert sweep(tmp_path, *LAMBDA, "1", "2", "--sweep.no-untrained") == 2
    assert (tmp_path / whole.FILE).read_text() == pages[1]
    assert read_page(tmp_path)["to_come"] == ["2, seed 0"]
    assert not list(tmp_path.rglob("*.partial"))
