"""Checkpoints: full, read-only and vanished disks."""

import errno
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

import croc.train.run_folder as saving
from croc.errors import UserError
from croc.io import read_metrics
from croc.method.croc import Croc
from croc.train.loop import pretrain
from croc.train.run_folder import TrainState
from croc.weights.checkpoint import checkpoints, load_checkpoint
from tests.tiny import tiny_config
from tests.train import metrics_of


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


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "PAUSE_S", 0.01)


def test_a_failed_save_is_said_once_and_made_up_for(tmp_path, whole, monkeypatch, capsys):
    real, tries = saving.save_checkpoint, []

    def refusing(folder, state, keep_every):
        tries.append(state["step"])
        if 4 <= state["step"] <= 6:
            raise OSError(errno.EIO, "Input/output error")
        return real(folder, state, keep_every)

    monkeypatch.setattr(saving, "save_checkpoint", refusing)
    folder = pretrain(tiny_config(tmp_path / "run", report=False), "tiny")
    assert tries == [2, 4, 5, 6, 7, 8, 9]  # owed at 4, tried at every logged step
    said = capsys.readouterr().err
    assert said.count("the checkpoint of step 4 cannot be written") == 1
    assert "the last good one is step-00000002.pt" in said
    assert said.count("checkpoints can be written again: saved step 7") == 1
    assert metrics_of(folder) == metrics_of(whole)


def test_at_the_end_there_is_no_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tries = []

    def refusing(*_):
        tries.append(1)
        raise RuntimeError("PytorchStreamWriter failed writing file\nmore of it")

    monkeypatch.setattr(saving, "save_checkpoint", refusing)
    with pytest.raises(UserError, match="step 3 cannot be written: PytorchStreamWriter") as caught:
        pretrain(tiny_config(tmp_path / "run", stop_after_steps=3, report=False), "tiny")
    assert "\n" not in str(caught.value)
    assert len(tries) == 1 + saving.LAST_TRIES


def test_a_disk_with_room_for_two_checkpoints(whole: Path, small_disk):
    """A third beside the two that are kept does not fit: the older one makes room."""
    place = small_disk(int(2.4 * checkpoints(whole)[-1].stat().st_size / 1024) + 200)
    folder = pretrain(tiny_config(place / "run", report=False, stop_after_steps=6), "tiny")
    assert load_checkpoint(checkpoints(folder)[-1])["step"] == 6
    assert metrics_of(folder) == metrics_of(whole)[:6]
    assert not list(folder.glob("**/*.partial"))


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
    deeds = {3: lambda: folder.rename(away), 7: lambda: away.rename(folder)}
    at_steps(monkeypatch, deeds)
    pretrain(tiny_config(folder, report=False), "tiny")
    assert f"cannot be written ({folder} has vanished)" in capsys.readouterr().err
    assert load_checkpoint(checkpoints(folder)[-1])["step"] == 9
    assert [line["step"] for line in read_metrics(folder)] == list(range(1, 10))
    assert not away.exists()
