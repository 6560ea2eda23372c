"""FSDP: the same run in shares, and checkpoints that go on with or without them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from croc.config import PretrainConfig
from croc.train.checkpoint import checkpoints, load_checkpoint
from croc.train.loop import pretrain
from tests.reliability.kills import command, environment, same_weights, train
from tests.test_train import told
from tests.tiny import tiny_config, tiny_dino, tiny_mae

SHARES = ("--run.strategy", "fsdp")


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize("make", [tiny_config, tiny_dino, tiny_mae])
def test_one_process_that_holds_every_share_does_the_same(
    make: Callable[..., PretrainConfig], tmp_path: Path
):
    """Pictures of the teacher included; and each goes on with the other's checkpoint."""
    whole, shares = tmp_path / "whole", tmp_path / "shares"
    pretrain(make(whole, strategy="ddp"), "demo")
    pretrain(make(shares, strategy="fsdp", stop_after_steps=4), "demo")
    pretrain(make(shares, strategy="ddp", stop_after_steps=6), "demo")
    pretrain(make(shares, strategy="fsdp"), "demo")
    assert told(shares) == told(whole)
    assert same_weights(shares, whole)
    assert (shares / "report.html").exists()


@pytest.mark.usefixtures("own_environment")
def test_a_batch_in_parts_too(tmp_path: Path):
    parts = {"micro_batch": 3, "stop_after_steps": 4, "report": False}
    pretrain(tiny_config(tmp_path / "whole", **parts), "demo")
    pretrain(tiny_config(tmp_path / "shares", strategy="fsdp", **parts), "demo")
    assert told(tmp_path / "shares") == told(tmp_path / "whole")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.cuda
@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize("compile", [False, True])
def test_on_a_gpu_too(tmp_path: Path, compile: bool):
    """In bfloat16, by the fused optimiser and our kernels."""
    gpu = {"accelerator": "cuda", "devices": 1, "compile": compile, "record": False}
    pretrain(tiny_config(tmp_path / "whole", **gpu), "demo")
    pretrain(tiny_config(tmp_path / "shares", strategy="fsdp", **gpu), "demo")
    for ours, theirs in zip(told(tmp_path / "shares"), told(tmp_path / "whole"), strict=True):
        assert ours == pytest.approx(theirs, rel=2e-2)


def launch_two(*what: str) -> subprocess.CompletedProcess[str]:
    ask = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*ask, *what], env=environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done


def run_two(folder: Path, *more: str) -> None:
    launch_two(*command(folder, *more)[1:])


def test_shares_and_whole_networks_go_on_with_each_others_checkpoints(tmp_path: Path):
    """Two processes with shares, two without, two with; against one process throughout."""
    train(tmp_path / "one", ())
    mixed = tmp_path / "mixed"
    run_two(mixed, *SHARES, "--run.stop-after-steps", "3")
    run_two(mixed, "--run.stop-after-steps", "5")
    run_two(mixed, *SHARES)
    assert len(told(mixed)) == 9
    for ours, theirs in zip(told(mixed), told(tmp_path / "one"), strict=True):
        assert ours == pytest.approx(theirs, rel=2e-4)
    ours, theirs = (load_checkpoint(checkpoints(tmp_path / name)[-1]) for name in ("mixed", "one"))
    for name, state in theirs["modules"].items():
        for key, value in state.items():
            torch.testing.assert_close(ours["modules"][name][key], value, rtol=1e-3, atol=1e-4)


def test_each_process_holds_its_share_and_skips_what_is_not_finite():
    """Of two processes: about half of all numbers; a bad gradient on one changes neither."""
    done = launch_two("-m", "tests.reliability.shares_of_two")
    assert done.stdout.count("all is well") == 2
