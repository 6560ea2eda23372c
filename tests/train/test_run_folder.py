"""Run folders: checkpoints, locks and logs, also on full, read-only and vanished disks."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import croc.train.run_folder as saving
from croc.cli import main
from croc.errors import UserError
from croc.io import read_metrics
from croc.train.log import RunLog, TensorBoard
from croc.train.loop import pretrain
from croc.train.run_folder import FailedFiles, TrainState, claim_folder
from croc.weights.checkpoint import checkpoints, load_checkpoint
from tests.tiny import tiny_config
from tests.train import after_gradients, metrics_of
from tests.train.kills import command


def test_resume_keeps_the_optimizers_fused_flag():
    """A run started on the CPU, where AdamW is not fused, may resume on a GPU, where it is."""
    layer = torch.nn.Linear(2, 2)
    plain, fused = (
        torch.optim.AdamW([{"params": list(layer.parameters()), "decayed": True}], fused=flag)
        for flag in (False, True)
    )
    layer(torch.ones(1, 2)).sum().backward()
    plain.step()
    modules: dict[str, torch.nn.Module] = {"student": layer}
    saved = TrainState(modules, plain, images=3, step=1).state_dict()
    TrainState(modules, fused, images=3).load_state_dict(saved)
    assert fused.param_groups[0]["fused"] is True
    assert fused.state[layer.weight]["step"] == 1
    fused.step()


def test_first_failed_save_is_reported_and_the_second_ends_the_run(
    tmp_path, whole, monkeypatch, capsys
):
    real, failing = saving.save_checkpoint, {4}

    def failing_save(folder, state, keep_every):
        if state["step"] in failing:
            raise RuntimeError("PytorchStreamWriter failed writing file\ndetails")
        return real(folder, state, keep_every)

    monkeypatch.setattr(saving, "save_checkpoint", failing_save)
    folder = pretrain(tiny_config(tmp_path / "run", report=False), "tiny")
    message = "the checkpoint of step 4 cannot be written (PytorchStreamWriter failed writing file)"
    assert capsys.readouterr().err.count(message) == 1
    assert metrics_of(folder) == metrics_of(whole)
    failing |= {6}
    with pytest.raises(UserError, match=r"step 6 cannot be written .*; the last one is") as error:
        pretrain(tiny_config(tmp_path / "other", report=False), "tiny")
    assert "\n" not in str(error.value)
    kept = checkpoints(tmp_path / "other")
    assert [load_checkpoint(path)["step"] for path in kept] == [2]
    failing |= {5}
    with pytest.raises(UserError, match="step 5 cannot be written"):  # no later save follows
        pretrain(tiny_config(tmp_path / "third", report=False, stop_after_steps=5), "tiny")


def test_full_disk_keeps_the_last_good_checkpoint(whole, small_disk, monkeypatch):
    disk = small_disk(6 * checkpoints(whole)[-1].stat().st_size // 1024)
    filler = disk / "filler"

    def fill(*_: object) -> None:
        filler.write_bytes(b"x" * (shutil.disk_usage(disk).free - 4096))

    after_gradients(monkeypatch, {4: fill})
    with pytest.raises(UserError, match="step 5 cannot be written"):
        pretrain(tiny_config(disk / "run", report=False, stop_after_steps=5), "tiny")
    monkeypatch.undo()
    kept = checkpoints(disk / "run")
    assert [load_checkpoint(path)["step"] for path in kept] == [2]
    filler.unlink()
    folder = pretrain(tiny_config(disk / "run", report=False, stop_after_steps=5), "tiny")
    assert metrics_of(folder) == metrics_of(whole)[:5]


def test_vanished_folder_is_not_recreated(tmp_path: Path, monkeypatch, capsys):
    folder, away = tmp_path / "run", tmp_path / "away"
    actions = {3: lambda *_: folder.rename(away), 5: lambda *_: away.rename(folder)}
    after_gradients(monkeypatch, actions)
    pretrain(tiny_config(folder, report=False), "tiny")
    assert f"cannot be written ({folder} has vanished)" in capsys.readouterr().err
    assert load_checkpoint(checkpoints(folder)[-1])["step"] == 9
    assert [line["step"] for line in read_metrics(folder)] == list(range(1, 10))
    assert not away.exists()


def test_checkpoint_written_before_locking_is_detected(tmp_path: Path):
    """Another process may have trained between the search for checkpoints and the lock."""
    config = tiny_config(tmp_path / "run", stop_after_steps=2, report=False)
    folder = pretrain(config, "tiny")
    claim = claim_folder(folder, config, "tiny", existing=[])
    with pytest.raises(UserError, match="another process has just trained"), claim:
        pass


def test_read_only_folder_is_a_one_line_error(small_disk, capsys):
    disk = small_disk(4096)
    if subprocess.run(["mount", "-o", "remount,ro", str(disk)]).returncode:
        pytest.skip("no permission to remount a disk")
    for folder in (disk, disk / "run"):
        assert main(command(folder)[3:]) == 2
        line = capsys.readouterr().err
        assert line.startswith("croc: Read-only file system"), line
        assert line.count("\n") == 1
    assert os.listdir(disk) == []


def read(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder)).Reload()
    return [(scalar.step, scalar.value) for scalar in events.Scalars(tag)]


def test_resume_discards_later_tensorboard_scalars(tmp_path: Path):
    for first, value in ((1, 1.0), (3, 2.0)):
        writer = TensorBoard(tmp_path, first)
        for step in range(first, 6):
            writer.write(step, {"loss": value, "mean_k": 1.5 * step})
        writer.close()
    assert read(tmp_path, "loss") == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]
    assert read(tmp_path, "mean_k") == [(step, 1.5 * step) for step in range(1, 6)]


def test_a_torn_line_costs_no_other(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2\n{"step": 3}\n{"step": 4}\n')
    RunLog(tmp_path, first_step=3, last_step=9, writes=True).__exit__()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 3]


def test_tensorboard_survives_a_temporarily_full_disk(small_disk: Callable[[int], Path]):
    disk = small_disk(64)
    writer = TensorBoard(disk / "log", 1)
    writer.write(1, {"loss": 1.0})
    filler = disk / "filler"
    filler.write_bytes(b"x" * shutil.disk_usage(disk).free)
    refused = 0
    for step in range(2, 200):  # the last page of the file has room for some
        try:
            writer.write(step, {"loss": float(step), "a longer name": 0.0})
        except OSError:
            refused += 1
    assert refused > 50
    filler.unlink()
    writer.write(200, {"loss": 200.0})
    writer.close()
    scalars = read(disk / "log", "loss")
    assert (scalars[0], scalars[-1]) == ((1, 1.0), (200, 200.0))
    assert len(scalars) == 200 - refused


def test_failed_files():
    failed = FailedFiles("acd")
    assert failed.add(("a", "b", "b")) == ["b"]
    assert failed.names == [*"acdb"]
    for seen, count, share in (
        (999, 2000, 0.001),
        (256, 2000, 0.005),
        (99, 1000, 0.0),
        (9, 10, 0.0),
    ):
        failed.check(seen, count, share)
    for seen, count, share, message in (
        (2000, 2000, 0.0005, r"4 of 2000 images .* a, c, d, b$"),
        (10_000, 150, 0.01, "4 of 150 images"),
        (10, 10, 0.0, "4 of 10 images"),
    ):
        with pytest.raises(UserError, match=message):
            failed.check(seen, count, share)
    many = FailedFiles(f"<{number}>" for number in range(25))
    with pytest.raises(UserError, match=r"<19> and 5 more$"):
        many.check(seen=1000, count=2000, max_share=0.01)
