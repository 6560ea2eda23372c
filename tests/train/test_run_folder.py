"""Checkpoints: full, read-only and vanished disks."""

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
