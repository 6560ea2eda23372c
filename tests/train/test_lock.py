"""One run folder, one run at a time."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from croc.cli import main
from croc.train.run_folder import LOCK
from croc.weights.checkpoint import checkpoints
from tests.tiny import FLAGS
from tests.train.kills import command, train
from tests.train.test_processes import launch, wait_for_steps

LONG = ("--optim.epochs", "40")


def test_the_second_start_says_who_trains_and_the_first_goes_through(tmp_path: Path):
    folder = tmp_path / "run"
    both = [launch(*command(folder, *LONG)) for _ in range(2)]
    errors = [process.communicate(timeout=240)[1] for process in both]
    codes = [process.returncode for process in both]
    assert sorted(codes) == [0, 2], errors
    holder = both[codes.index(0)].pid
    line = errors[codes.index(2)].strip()
    assert line.startswith(f"croc: {folder} is in use by process {holder} on ")
    assert len(checkpoints(folder)) == 2


def test_a_start_after_the_holder_was_killed_resumes(tmp_path: Path):
    folder = tmp_path / "run"
    process = launch(*command(folder, *LONG))
    wait_for_steps(folder, 3, [process])
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (folder / LOCK).exists()
    train(folder, (*LONG, "--run.stop-after-steps", "8"))


def test_two_processes_of_one_run_share_the_folder(tmp_path: Path):
    folder = tmp_path / "run"
    process = launch(*command(folder, *LONG, "--run.devices", "2"))
    wait_for_steps(folder, 1, [process])
    second = subprocess.run(command(folder, *LONG), capture_output=True, text=True)
    assert second.returncode == 2
    assert f"in use by process {process.pid}" in second.stderr
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75


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
