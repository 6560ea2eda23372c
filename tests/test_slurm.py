"""The script for SLURM with stand-ins for its programs, and the environment that srun gives."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from croc.config import RunConfig
from croc.errors import UserError
from croc.train.devices import processes_and_nodes
from croc.train.rank import NAMES, is_first_process, process_number

SCRIPT = Path(__file__).parent.parent / "docs" / "slurm.sh"


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SLURM_") or name in (*NAMES, "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("code", "requeued"),
    [(75, True), (138, True), (143, True), (0, False), (2, False), (137, False)],
)
def test_only_a_run_that_was_asked_to_end_is_queued_again(
    tmp_path: Path, code: int, requeued: bool
):
    for name, does in {"srun": f"exit {code}", "scontrol": "exit 0"}.items():
        stub = tmp_path / name
        stub.write_text(f'#!/bin/bash\necho "{name} $@" >> "{tmp_path}/said"\n{does}\n')
        stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    asked = ["coco-vits16", "--data.root", "/data/with space"]
    done = subprocess.run(["bash", str(SCRIPT), *asked], env=environment)
    assert done.returncode == code
    said = (tmp_path / "said").read_text().splitlines()
    assert said[0].endswith("croc pretrain coco-vits16 --data.root /data/with space --resume auto")
    assert ("scontrol requeue 7" in said) == requeued


def slurm(monkeypatch: pytest.MonkeyPatch, **given: str) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


def test_srun_s_tasks_are_the_processes(monkeypatch: pytest.MonkeyPatch):
    slurm(monkeypatch, NTASKS="16", NNODES="2", STEP_ID="0", PROCID="9", JOB_NAME="croc")
    assert processes_and_nodes(RunConfig()) == (8, 2)
    assert (process_number(), is_first_process()) == ("9", False)
    assert processes_and_nodes(RunConfig(devices=1)) == (1, 1)  # who asks is served


def test_without_a_launcher_all_devices_are_used(monkeypatch: pytest.MonkeyPatch):
    assert processes_and_nodes(RunConfig()) == ("auto", 1)
    slurm(monkeypatch, NTASKS="4", JOB_NAME="bash")
    assert processes_and_nodes(RunConfig()) == ("auto", 1)


def test_torchrun_within_slurm_is_torchrun(monkeypatch: pytest.MonkeyPatch):
    slurm(monkeypatch, NTASKS="2", NNODES="2", STEP_ID="0", JOB_NAME="croc", PROCID="1")
    for name, value in {"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "RANK": "5"}.items():
        monkeypatch.setenv(name, value)
    assert processes_and_nodes(RunConfig()) == (4, 2)
    assert process_number() == "5"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"NTASKS": "8", "NNODES": "2"}, "srun did not start this"),
        ({"NTASKS": "7", "NNODES": "2", "STEP_ID": "0"}, "do not fill 2 nodes"),
    ],
)
def test_what_slurm_cannot_mean_is_refused(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], says: str
):
    slurm(monkeypatch, JOB_NAME="croc", **given)
    with pytest.raises(UserError, match=says):
        processes_and_nodes(RunConfig())
