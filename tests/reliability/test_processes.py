"""Processes that lose one of them: what the others say, and what a resume makes of it."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from croc.train.checkpoint import checkpoints, load_checkpoint
from tests.reliability.kills import command, environment, train
from tests.test_train import told

LONG = ("--optim.epochs", "40")


def start(folder: Path, number: int, of: int, port: int, *more: str) -> subprocess.Popen[str]:
    """As torchrun would start it, but without torchrun, which ends all when one ends."""
    given = {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(of),
        "LOCAL_WORLD_SIZE": str(of),
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen(
        command(folder, *more),
        env=environment() | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for_steps(folder: Path, steps: int, processes: list[subprocess.Popen[str]]) -> None:
    deadline, path = time.monotonic() + 120, folder / "metrics.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < steps:
        assert time.monotonic() < deadline
        ended = [each.communicate() for each in processes if each.poll() is not None]
        assert not ended, ended
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("victim", "how", "timeout_s", "strategy"),
    [
        (1, signal.SIGKILL, 600, "ddp"),
        (0, signal.SIGKILL, 600, "fsdp"),
        (1, signal.SIGSTOP, 4, "ddp"),
    ],
    ids=["one is killed", "the first is killed", "one does not answer"],
)
def test_a_lost_peer_ends_the_others_in_a_line_and_the_run_goes_on(
    tmp_path: Path, victim: int, how: signal.Signals, timeout_s: int, strategy: str
):
    folder, port = tmp_path / "run", free_port()
    more = (*LONG, "--run.timeout-s", str(timeout_s), "--run.strategy", strategy)
    processes = [start(folder, number, 2, port, *more) for number in range(2)]
    try:
        wait_for_steps(folder, 5, processes)
        processes[victim].send_signal(how)
        lost = time.monotonic()
        _, said = processes[1 - victim].communicate(timeout=60)
        assert time.monotonic() - lost < 30
    finally:
        for each in processes:
            each.kill()
            each.communicate()
    assert processes[1 - victim].returncode == 1
    last = said.strip().splitlines()[-1]
    assert "another process of this run has ended or does not answer" in last
    assert "Traceback" not in said
    stop = ("--run.stop-after-steps", "12")
    train(folder, (*LONG, *stop))  # by one process, of the same batches
    train(tmp_path / "undisturbed", (*LONG, *stop))
    for ours, theirs in zip(told(folder), told(tmp_path / "undisturbed"), strict=True):
        assert ours == pytest.approx(theirs, rel=5e-4)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_several_processes_end_together_when_asked(tmp_path: Path, strategy: str):
    """The signal reaches one of them; all agree on a step, and save it. Lines are logged rarely,
    which must not matter."""
    folder = tmp_path / "run"
    rarely = ("--run.log-every-steps", "5", "--run.checkpoint-every-steps", "1000")
    more = (*LONG, *rarely, "--run.devices", "2", "--run.strategy", strategy)
    process = subprocess.Popen(
        command(folder, *more),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_steps(folder, 2, [process])
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - asked < 30
    assert process.returncode == 75, said
    saved = load_checkpoint(checkpoints(folder)[-1])["step"]
    assert f"asked to end: saved step {saved};" in said
    assert told(folder)[-1]["step"] == saved < 120


def test_four_processes_give_the_losses_of_one(tmp_path: Path):
    """And two of them, started as two machines that meet at an address."""
    stop: Any = ("--run.stop-after-steps", "4")
    train(tmp_path / "1", stop)
    port = str(free_port())
    meet = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    meet += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "croc", "--max-restarts", "0"]
    run = command(tmp_path / "4", *stop)[1:]
    launch = [sys.executable, "-m", "torch.distributed.run", *meet]
    nodes = [
        subprocess.Popen(
            [*launch, "--local-addr", f"127.0.0.{node + 1}", *run],
            env=os.environ | environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    for each in nodes:
        _, said = each.communicate(timeout=240)
        assert each.returncode == 0, said
    for ours, theirs in zip(told(tmp_path / "1"), told(tmp_path / "4"), strict=True):
        assert ours == pytest.approx(theirs, rel=2e-4)
