"""The training loop: exact resume after every kind of interruption, and refused resumes."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import croc.method.croc as step_module
from croc.cli import main
from croc.config import CrocConfig
from croc.errors import UserError
from croc.io import read_metrics
from croc.method.croc import Croc
from croc.train.log import RunLog
from croc.train.loop import pretrain
from croc.weights.checkpoint import checkpoints, load_checkpoint
from tests.tiny import tiny_config, tiny_dino, tiny_mae
from tests.train import killed_at, metrics_of, train
from tests.train.kills import INTERVAL, command, kill, same_weights


def test_metrics_of_every_step_are_logged(whole: Path):
    lines = metrics_of(whole)
    assert [line["step"] for line in lines] == list(range(1, 10))
    assert [line["epoch"] for line in lines] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for line in lines:
        assert line["loss"] == pytest.approx(line["loss_image"] + line["loss_cluster"])
        kl = line["loss_image"] - line["entropy_image"]
        assert line["kl_image"] == pytest.approx(kl, abs=1e-5)
        assert 1 < line["effective_clusters"] < line["mean_k"] <= 5
        assert 1 / line["effective_clusters"] < line["largest_assignment"] < 1
        assert 0 < line["valid_fraction"] <= 1
    assert all("images_per_s" in line for line in read_metrics(whole))
    assert any((whole / "tensorboard").iterdir())
    assert [path.name for path in checkpoints(whole)] == ["step-00000008.pt", "step-00000009.pt"]


@pytest.mark.parametrize("step", [1, 4])
def test_killed_and_resumed_run_equals_uninterrupted_run(whole: Path, tmp_path: Path, step: int):
    config = tiny_config(tmp_path / "run", report=False)
    with killed_at(step):
        pretrain(config, "tiny")
    pretrain(config, "tiny")
    assert metrics_of(tmp_path / "run") == metrics_of(whole)
    assert same_weights(tmp_path / "run", whole)


def tiny_muon(folder: Path, **run: object) -> CrocConfig:
    config = tiny_config(folder, **run)
    return replace(config, optim=replace(config.optim, matrix_optimizer="muon"))


def tiny_early_views(folder: Path, **run: object) -> CrocConfig:
    config = tiny_config(folder, **run)
    return replace(config, views=replace(config.views, early_px=16, early_epochs=1))


def tiny_rotary(folder: Path, **run: object) -> CrocConfig:
    """Rotary positions with position windows."""
    config = tiny_config(folder, **run)
    model = replace(config.model, name="vit_tiny_patch16_dinov3_qkvb", position_window=(0.3, 0.9))
    return replace(config, model=model)


def tiny_photographs(folder: Path, **run: object) -> CrocConfig:
    """Photographs read by two workers; one file cannot be decoded."""
    config = on_photographs(tiny_config(folder, **run), folder.parent / "data", 24)
    (folder.parent / "data" / "05.png").write_bytes(b"broken")
    return replace(config, data=replace(config.data, workers=2, max_corrupt_fraction=0.5))


def on_photographs(config: CrocConfig, folder: Path, count: int) -> CrocConfig:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        Image.new("RGB", (50, 40), (7 * number, 90, 60)).save(folder / f"{number:02}.png")
    return replace(config, data=replace(config.data, root=(str(folder),)))


@pytest.mark.parametrize(
    "tiny", [tiny_dino, tiny_mae, tiny_muon, tiny_early_views, tiny_rotary, tiny_photographs]
)
def test_resume_equals_uninterrupted_run(tmp_path, tiny, monkeypatch):
    """If the view size changes, the run is interrupted at that step."""
    sizes, real = [], step_module.make_views
    monkeypatch.setattr(
        step_module,
        "make_views",
        lambda c, views, *m: (sizes.append(views.size_px), real(c, views, *m))[1],
    )
    whole = pretrain(tiny(tmp_path / "whole", report=False, stop_after_steps=5), "tiny")
    assert tiny is not tiny_early_views or sizes == [16, 16, 16, 32, 32]
    for end in (3, 5):
        pretrain(tiny(tmp_path / "run", report=False, stop_after_steps=end), "tiny")
    assert len(metrics_of(whole)) == 5
    assert metrics_of(tmp_path / "run") == metrics_of(whole)
    assert same_weights(tmp_path / "run", whole)
    failed = load_checkpoint(checkpoints(whole)[-1])["failed"]
    assert failed == ([str(tmp_path / "data" / "05.png")] if tiny is tiny_photographs else [])


@pytest.mark.parametrize(("tiny", "network"), [(tiny_config, "teacher"), (tiny_mae, "student")])
def test_init_starts_from_the_backbone_of_another_run(tmp_path, tiny, network):
    """The other run may be deleted after the first checkpoint."""
    first = pretrain(tiny(tmp_path / "first", stop_after_steps=2, report=False), "tiny")
    weights = load_checkpoint(checkpoints(first)[-1])["modules"][network]
    config = tiny_config(tmp_path / "second", seed=5, stop_after_steps=1, report=False)
    config = replace(config, model=replace(config.model, init=str(first)))
    config = replace(config, loss=replace(config.loss, teacher_momentum=1.0))
    second = pretrain(config, "tiny")
    teacher = load_checkpoint(checkpoints(second)[-1])["modules"]["teacher"]
    for name, value in teacher.items():  # unchanged at momentum 1
        if name.startswith("backbone."):
            assert torch.equal(value, weights[name]), name
    head = "head.image.directions"
    assert head not in weights or not torch.equal(teacher[head], weights[head])
    shutil.rmtree(first)
    pretrain(replace(config, run=replace(config.run, stop_after_steps=2)), "tiny")
    assert len(metrics_of(second)) == 2


def test_finished_run_is_unchanged(whole: Path):
    before = {path: path.stat().st_mtime_ns for path in checkpoints(whole)}
    lines = read_metrics(whole)
    pretrain(tiny_config(whole, report=False), "tiny")
    assert {path: path.stat().st_mtime_ns for path in checkpoints(whole)} == before
    assert read_metrics(whole) == lines


@pytest.mark.parametrize("centering", ["mean", "sinkhorn"])
def test_micro_batches_do_not_change_the_losses(tmp_path: Path, centering: Any):
    """8 images at once, or 3, 3 and 2."""
    for size in (8, 3):
        config = tiny_config(tmp_path / str(size), micro_batch=size, stop_after_steps=5)
        pretrain(replace(config, loss=replace(config.loss, centering=centering)), "tiny")
    for split, whole in zip(metrics_of(tmp_path / "3"), metrics_of(tmp_path / "8"), strict=True):
        assert split == pytest.approx(whole, rel=2e-4)


def test_out_of_gpu_memory_is_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    monkeypatch.setattr(Croc, "compute_gradients", fail)
    with pytest.raises(UserError, match=r"try a smaller --run\.micro-batch.*out of memory\)$"):
        pretrain(tiny_config(tmp_path / "run"), "tiny")


def test_prototypes_are_frozen_in_the_first_epoch_and_every_third_checkpoint_is_kept(tmp_path):
    config = tiny_config(
        tmp_path / "run",
        checkpoint_every_steps=1,
        keep_every_steps=3,
        report=False,
        stop_after_steps=5,
    )
    saved = {int(p.stem[5:]): load_checkpoint(p) for p in checkpoints(pretrain(config, "tiny"))}
    assert list(saved) == [3, 4, 5]
    for name, moves in (("head.image.directions", False), ("head.trunk.0.weight", True)):
        early, late = (saved[step]["modules"]["student"][name] for step in (3, 4))
        assert not torch.equal(early, late)
        start = saved[3]["modules"]["teacher"][name]
        assert torch.equal(start, early) != moves


def test_resume_with_other_method_settings_or_data_is_refused(whole: Path, tmp_path: Path):
    with pytest.raises(UserError, match="is a run of"):
        pretrain(tiny_dino(whole), "tiny")
    config = tiny_config(whole)
    changed = replace(config, loss=replace(config.loss, alpha=0.5))
    with pytest.raises(UserError, match=r"--loss.alpha was 1.0, now 0.5"):
        pretrain(changed, "tiny")
    config = tiny_config(tmp_path / "run", stop_after_steps=1, report=False)
    config = on_photographs(config, tmp_path / "data", 9)
    pretrain(config, "tiny")
    (tmp_path / "data" / "00.png").unlink()
    with pytest.raises(UserError, match=r"trained on 9 images, --data.root now has 8"):
        pretrain(config, "tiny")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signal_saves_and_the_same_command_resumes(tmp_path, number, code, monkeypatch, capsys):
    real = RunLog.advance

    def advance_and_signal(self: RunLog, step: int) -> None:
        real(self, step)
        if step == 3:
            os.kill(os.getpid(), number)

    end: Any = ("--run.stop-after-steps", "5")
    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "advance", advance_and_signal)
        assert main(command(tmp_path / "run", *end)[3:]) == code
    assert "interrupted: saved step 3" in capsys.readouterr().err
    assert checkpoints(tmp_path / "run")[-1].stem == "step-00000003"
    train(tmp_path / "run", *end)
    train(tmp_path / "whole", *end)
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")


MORE = ("--optim.epochs", "8")


def test_resume_after_sigkill_equals_uninterrupted_run(tmp_path: Path):
    record = kill(tmp_path / "killed", kills=1, seed=0, more=MORE)
    assert record.while_writing == 1
    assert record.unreadable == []
    assert record.most_lost <= INTERVAL
    train(tmp_path / "killed", *MORE)
    train(tmp_path / "whole", *MORE)
    assert same_weights(tmp_path / "killed", tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")
    assert not list((tmp_path / "killed").glob("**/*.partial"))
