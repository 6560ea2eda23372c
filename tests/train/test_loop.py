"""The loop: exact resumes after every kind of end, and what it refuses."""

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from croc.cli import main
from croc.config import CrocConfig, PretrainConfig, read_config
from croc.errors import UserError
from croc.io import read_metrics
from croc.method.croc import Croc
from croc.train.log import RunLog
from croc.train.loop import pretrain
from croc.weights.checkpoint import checkpoints, load_checkpoint
from tests.tiny import FLAGS, tiny_config, tiny_dino, tiny_mae
from tests.train import metrics_of
from tests.train.kills import same_weights

STEPS = 9


def test_metrics_of_every_step_are_logged(whole: Path):
    lines = metrics_of(whole)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["epoch"] for line in lines] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    names = {"loss", "loss_image", "loss_cluster", "entropy_image", "entropy_cluster"}
    names |= {"kl_image", "kl_cluster", "k_mean", "valid_share", "gradient_norm", "rate"}
    names |= {"effective_clusters", "largest_share"}
    for line in lines:
        assert names <= line.keys()
        assert line["loss"] == pytest.approx(line["loss_image"] + line["loss_cluster"])
        assert line["kl_image"] == pytest.approx(
            line["loss_image"] - line["entropy_image"], abs=1e-5
        )
        assert 2 <= line["k_mean"] <= 5
        assert 1 < line["effective_clusters"] < line["k_mean"]
        assert 1 / line["effective_clusters"] < line["largest_share"] < 1
        assert 0 < line["valid_share"] <= 1
        assert line["gradient_norm"] > 0
    assert all("images_per_s" in line for line in read_metrics(whole))
    assert any((whole / "tensorboard").iterdir())
    assert [path.name for path in checkpoints(whole)] == ["step-00000008.pt", "step-00000009.pt"]


@pytest.mark.parametrize("killed_at", [1, 4, 7])
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(
    whole: Path, tmp_path: Path, killed_at: int, monkeypatch: pytest.MonkeyPatch
):
    class Killed(BaseException):
        pass

    def die(self: RunLog, step: int) -> None:
        if step == killed_at:
            raise Killed

    config = tiny_config(tmp_path / "run", report=False)
    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "advance", die)
        with pytest.raises(Killed):
            pretrain(config, "tiny")
    pretrain(config, "tiny")
    assert metrics_of(tmp_path / "run") == metrics_of(whole)
    assert same_weights(tmp_path / "run", whole)


@pytest.mark.parametrize("tiny", [tiny_dino, tiny_mae])
def test_other_methods_resume_exactly(tmp_path: Path, tiny: Callable[..., PretrainConfig]):
    whole = pretrain(tiny(tmp_path / "whole", report=False), "tiny")
    for end in (4, None):
        pretrain(tiny(tmp_path / "run", report=False, stop_after_steps=end), "tiny")
    assert len(metrics_of(whole)) == STEPS
    assert metrics_of(tmp_path / "run") == metrics_of(whole)
    assert same_weights(tmp_path / "run", whole)


@pytest.mark.parametrize(
    ("tiny", "metric", "falls_to"), [(tiny_dino, "kl_image", 0.5), (tiny_mae, "loss", 0.97)]
)
def test_other_methods_learn(
    tmp_path: Path, tiny: Callable[..., PretrainConfig], metric: str, falls_to: float
):
    config = tiny(tmp_path / "run", report=False)
    config = replace(config, optim=replace(config.optim, epochs=10))
    values = [line[metric] for line in metrics_of(pretrain(config, "tiny"))]
    assert sum(values[-5:]) < falls_to * sum(values[:5])
    saved, _ = read_config(tmp_path / "run" / "config.json")
    assert type(saved) is type(config)
    with pytest.raises(UserError, match="is a run of"):
        pretrain(tiny_config(tmp_path / "run"), "tiny")


@pytest.mark.parametrize(("tiny", "network"), [(tiny_config, "teacher"), (tiny_mae, "student")])
def test_init_starts_from_the_backbone_of_another_run(
    tmp_path: Path, tiny: Callable[..., PretrainConfig], network: str, capsys: Any
):
    """It may be deleted once the run has a checkpoint of its own."""
    first = pretrain(tiny(tmp_path / "first", stop_after_steps=2, report=False), "tiny")
    weights = load_checkpoint(checkpoints(first)[-1])["modules"][network]
    config = tiny_config(tmp_path / "second", seed=5, stop_after_steps=1, report=False)
    config = replace(config, model=replace(config.model, init=str(first)))
    config = replace(config, loss=replace(config.loss, teacher_momentum=1.0))
    second = pretrain(config, "tiny")
    assert "starts from first@2" in capsys.readouterr().err
    teacher = load_checkpoint(checkpoints(second)[-1])["modules"]["teacher"]
    for name, value in teacher.items():  # which has not moved, nor has the student at rate 0
        if name.startswith("backbone."):
            assert torch.equal(value, weights[name]), name
    head = "head.image.directions"
    assert head not in weights or not torch.equal(teacher[head], weights[head])
    shutil.rmtree(first)
    pretrain(replace(config, run=replace(config.run, stop_after_steps=2)), "tiny")
    assert len(metrics_of(second)) == 2


def test_a_finished_run_is_left_alone(whole: Path):
    before = {path: path.stat().st_mtime_ns for path in checkpoints(whole)}
    lines = read_metrics(whole)
    pretrain(tiny_config(whole, report=False), "tiny")
    assert {path: path.stat().st_mtime_ns for path in checkpoints(whole)} == before
    assert read_metrics(whole) == lines


def test_micro_batches_do_not_change_the_losses(whole: Path, tmp_path: Path):
    """8 images at once, or 3, 3 and 2."""
    config = tiny_config(tmp_path / "run", micro_batch=3, stop_after_steps=5, report=False)
    pretrain(config, "tiny")
    for ours, theirs in zip(metrics_of(tmp_path / "run"), metrics_of(whole)):
        assert ours == pytest.approx(theirs, rel=2e-4)


def test_running_out_of_gpu_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    monkeypatch.setattr(Croc, "compute_gradients", fail)
    with pytest.raises(UserError, match=r"try a smaller --run\.micro-batch.*out of memory\)$"):
        pretrain(tiny_config(tmp_path / "run"), "tiny")


def test_prototypes_are_frozen_in_the_first_epoch(tmp_path: Path):
    pretrain(
        tiny_config(tmp_path / "run", checkpoint_every_steps=1, stop_after_steps=3, report=False),
        "tiny",
    )
    first, last = (load_checkpoint(path)["modules"] for path in checkpoints(tmp_path / "run"))
    assert torch.equal(
        first["student"]["head.image.directions"], last["student"]["head.image.directions"]
    )
    assert not torch.equal(
        first["student"]["head.trunk.0.weight"], last["student"]["head.trunk.0.weight"]
    )
    pretrain(
        tiny_config(tmp_path / "run", checkpoint_every_steps=1, stop_after_steps=4, report=False),
        "tiny",
    )
    moved = load_checkpoint(checkpoints(tmp_path / "run")[-1])["modules"]
    assert not torch.equal(
        moved["student"]["head.image.directions"], last["student"]["head.image.directions"]
    )


def test_every_third_checkpoint_is_kept(tmp_path: Path):
    pretrain(
        tiny_config(tmp_path / "run", checkpoint_every_steps=1, keep_every_steps=3, report=False),
        "tiny",
    )
    steps = [int(path.stem.removeprefix("step-")) for path in checkpoints(tmp_path / "run")]
    assert steps == [3, 6, 8, 9]


def test_a_run_is_not_resumed_with_other_settings(whole: Path):
    config = tiny_config(whole)
    changed = replace(config, loss=replace(config.loss, alpha=0.5))
    with pytest.raises(UserError, match=r"--loss.alpha was 1.0, now 0.5"):
        pretrain(changed, "tiny")


def on_photographs(config: CrocConfig, folder: Path, count: int, **data: Any) -> CrocConfig:
    folder.mkdir()
    for number in range(count):
        Image.new("RGB", (50, 40), (7 * number, 90, 60)).save(folder / f"{number:02}.png")
    return replace(config, data=replace(config.data, root=(str(folder),), **data))


def test_resume_is_exact_with_workers_and_broken_files(tmp_path: Path):
    config = tiny_config(tmp_path / "whole", report=False)
    config = on_photographs(config, tmp_path / "data", 24, workers=2, max_failed_share=0.5)
    (tmp_path / "data" / "05.png").write_bytes(b"broken")
    pretrain(config, "tiny")
    for end in (4, None):
        run = replace(config.run, folder=str(tmp_path / "run"), stop_after_steps=end)
        pretrain(replace(config, run=run), "tiny")
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")
    states = [load_checkpoint(checkpoints(tmp_path / f)[-1]) for f in ("run", "whole")]
    assert states[0]["failed"] == states[1]["failed"] == [str(tmp_path / "data" / "05.png")]


def test_a_run_is_not_resumed_with_other_data(tmp_path: Path):
    config = tiny_config(tmp_path / "run", stop_after_steps=1, report=False)
    config = on_photographs(config, tmp_path / "data", 9)
    pretrain(config, "tiny")
    (tmp_path / "data" / "00.png").unlink()
    with pytest.raises(UserError, match=r"trained on 9 images, --data.root now has 8"):
        pretrain(config, "tiny")


def command(folder: Path, *more: str) -> list[str]:
    return ["pretrain", "demo", *FLAGS, "--run.folder", str(folder), "--run.no-report", *more]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)]
)
def test_a_signal_saves_and_the_same_command_resumes(
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    real = RunLog.advance

    def signalled(self: RunLog, step: int) -> None:
        real(self, step)
        if step == 5:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "advance", signalled)
        assert main(command(tmp_path / "run")) == code
    assert "asked to end: saved step 5" in capsys.readouterr().err
    assert [path.stem for path in checkpoints(tmp_path / "run")][-1] == "step-00000005"
    assert main(command(tmp_path / "run")) == 0
    assert main(command(tmp_path / "whole")) == 0
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")


def test_a_batch_must_divide_among_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(command(tmp_path / "odd", "--run.devices", "2", "--optim.batch", "7")) == 2
    assert "a batch of 7 cannot be shared by 2 processes" in capsys.readouterr().err
    assert not (tmp_path / "odd").exists()
