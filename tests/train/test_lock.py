"""One run folder, one run at a time."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from croc.cli import main
from croc.errors import UserError
from croc.train.loop import pretrain
from croc.train.run_folder import LOCK, claim_folder
from tests.tiny import FLAGS, tiny_config
from tests.train import train
from tests.train.kills import command
from tests.train.test_processes import launch, wait_for_steps

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
