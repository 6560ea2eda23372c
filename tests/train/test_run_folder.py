"""Run folders: checkpoints, locks and logs on full, read-only and vanished disks."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import croc.train.run_folder as saving
from croc.cli import main
from croc.errors import UserError
from croc.io import read_metrics
from croc.method.croc import Croc
from croc.train.log import TensorBoard
from croc.train.loop import pretrain
from croc.train.run_folder import LOCK, TrainState, claim_folder
from croc.weights.checkpoint import checkpoints, load_checkpoint
from tests.tiny import FLAGS, tiny_config
from tests.train import metrics_of, train
from tests.train.kills import command
from tests.train.test_processes import launch, wait_for_steps


def test_an_optimizer_keeps_its_own_ways():
    """A run of the CPU, where AdamW is not fused, may go on by a GPU, where it is."""
    given = torch.nn.Linear(2, 2)
    plain = torch.optim.AdamW([{"params": list(given.parameters()), "decayed": True}], fused=False)
    given(torch.ones(1, 2)).sum().backward()
    plain.step()
    fused = torch.optim.AdamW([{"params": list(given.parameters()), "decayed": True}], fused=True)
    modules: dict[str, torch.nn.Module] = {"student": given}
    saved = TrainState(modules, plain, images=3, step=1).state_dict()
    TrainState(modules, fused, images=3).load_state_dict(saved)
    assert fused.param_groups[0]["fused"] is True
    assert fused.state[given.weight]["step"] == 1
    fused.step()


def test_one_failed_save_is_reported_and_the_next_ends_the_run(
    tmp_path, whole, monkeypatch, capsys
):
    real, failing = saving.save_checkpoint, {4}

    def refusing(folder, state, keep_every):
        if state["step"] in failing:
            raise RuntimeError("PytorchStreamWriter failed writing file\nmore of it")
        return real(folder, state, keep_every)

    monkeypatch.setattr(saving, "save_checkpoint", refusing)
    folder = pretrain(tiny_config(tmp_path / "run", report=False), "tiny")
    message = "the checkpoint of step 4 cannot be written (PytorchStreamWriter failed writing file)"
    assert capsys.readouterr().err.count(message) == 1
    assert metrics_of(folder) == metrics_of(whole)
    failing |= {6}
    with pytest.raises(UserError, match=r"step 6 cannot be written .*; the last one is") as caught:
        pretrain(tiny_config(tmp_path / "other", report=False), "tiny")
    assert "\n" not in str(caught.value)
    kept = checkpoints(tmp_path / "other")
    assert [load_checkpoint(path)["step"] for path in kept] == [2]
    failing |= {5}
    with pytest.raises(UserError, match="step 5 cannot be written"):  # at the end there is no later
        pretrain(tiny_config(tmp_path / "third", report=False, stop_after_steps=5), "tiny")


def at_steps(monkeypatch: pytest.MonkeyPatch, deeds: Mapping[int, Callable[[], object]]) -> None:
    """While the gradients of these steps (the first is 1) are computed."""
    real, step = Croc.compute_gradients, 0

    def watched(self, *given):
        nonlocal step
        step += 1
        deeds.get(step, lambda: None)()
        return real(self, *given)

    monkeypatch.setattr(Croc, "compute_gradients", watched)


def test_a_disk_that_stays_full_keeps_the_last_good_checkpoint(whole, small_disk, monkeypatch):
    place = small_disk(6 * checkpoints(whole)[-1].stat().st_size // 1024)
    rubbish = place / "rubbish"

    def fill() -> None:
        rubbish.write_bytes(b"x" * (shutil.disk_usage(place).free - 4096))

    at_steps(monkeypatch, {4: fill})
    with pytest.raises(UserError, match="step 5 cannot be written"):
        pretrain(tiny_config(place / "run", report=False, stop_after_steps=5), "tiny")
    monkeypatch.undo()
    kept = checkpoints(place / "run")
    assert [load_checkpoint(path)["step"] for path in kept] == [2]
    rubbish.unlink()
    folder = pretrain(tiny_config(place / "run", report=False, stop_after_steps=5), "tiny")
    assert metrics_of(folder) == metrics_of(whole)[:5]


def test_a_folder_that_vanishes_is_not_made_anew(tmp_path: Path, monkeypatch, capsys):
    folder, away = tmp_path / "run", tmp_path / "away"
    deeds = {3: lambda: folder.rename(away), 5: lambda: away.rename(folder)}
    at_steps(monkeypatch, deeds)
    pretrain(tiny_config(folder, report=False), "tiny")
    assert f"cannot be written ({folder} has vanished)" in capsys.readouterr().err
    assert load_checkpoint(checkpoints(folder)[-1])["step"] == 9
    assert [line["step"] for line in read_metrics(folder)] == list(range(1, 10))
    assert not away.exists()


LONG = ("--optim.epochs", "40")


def test_a_second_start_is_refused_until_the_first_is_killed(tmp_path: Path, capsys):
    folder = tmp_path / "run"
    process = launch(*command(folder, *LONG))
    wait_for_steps(folder, 3, [process])
    assert main(command(folder, *LONG)[3:]) == 2
    line = capsys.readouterr().err.strip()
    assert line.startswith(f"croc: {folder} is in use by process {process.pid} on ")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (folder / LOCK).exists()
    train(folder, *LONG, "--run.stop-after-steps", "8")


def test_checkpoints_of_another_process_are_noticed(tmp_path: Path):
    """Between looking for checkpoints and locking the folder, another one may have trained."""
    config = tiny_config(tmp_path / "run", stop_after_steps=2, report=False)
    folder = pretrain(config, "tiny")
    claim = claim_folder(folder, config, "tiny", existing=[])
    with pytest.raises(UserError, match="another process has just trained"), claim:
        pass


def test_a_refused_start_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "run"
    arguments = ["pretrain", "demo", *FLAGS, "--run.folder", str(folder), "--init", "nowhere"]
    assert main(arguments) == 2
    assert not folder.exists()


def test_a_read_only_folder_is_one_line(tmp_path: Path, small_disk, capsys):
    disk = small_disk(4096)
    if subprocess.run(["mount", "-o", "remount,ro", str(disk)]).returncode:
        pytest.skip("no disk may be remounted here")
    arguments = ["pretrain", "demo", *FLAGS, "--run.folder"]
    for folder in (disk, disk / "run"):
        assert main([*arguments, str(folder)]) == 2
        line = capsys.readouterr().err
        assert line.startswith("croc: Read-only file system"), line
        assert line.count("\n") == 1
    assert os.listdir(disk) == []


def read(folder: Path, tag: str) -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder)).Reload()
    return [(scalar.step, scalar.value) for scalar in found.Scalars(tag)]


def test_a_resumed_run_takes_back_what_came_later(tmp_path: Path):
    for first, value in ((1, 1.0), (3, 2.0)):
        board = TensorBoard(tmp_path, first)
        for step in range(first, 6):
            board.write(step, {"loss": value, "k_mean": 1.5 * step})
        board.close()
    assert read(tmp_path, "loss") == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]
    assert read(tmp_path, "k_mean") == [(step, 1.5 * step) for step in range(1, 6)]


def test_a_disk_that_is_full_for_a_while(small_disk: Callable[[int], Path]):
    disk = small_disk(64)
    board = TensorBoard(disk / "board", 1)
    board.write(1, {"loss": 1.0})
    rubbish = disk / "rubbish"
    rubbish.write_bytes(b"x" * shutil.disk_usage(disk).free)
    refused = 0
    for step in range(2, 200):  # its last page has room for some
        try:
            board.write(step, {"loss": float(step), "a longer name": 0.0})
        except OSError:
            refused += 1
    assert refused > 50
    rubbish.unlink()
    board.write(200, {"loss": 200.0})
    board.close()
    found = read(disk / "board", "loss")
    assert found[0] == (1, 1.0)
    assert found[-1] == (200, 200.0)
    assert len(found) == 200 - refused
