"""Several processes: losses equal to one process, FSDP, signals, lost peers, SLURM."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from subprocess import PIPE

import pytest

from croc.cli import main
from croc.config import RunConfig
from croc.errors import UserError
from croc.signals import is_first_process, process_number
from croc.train.distributed import processes_and_nodes
from croc.train.loop import pretrain
from croc.weights.checkpoint import checkpoints, load_checkpoint
from tests.tiny import tiny_config, tiny_mae
from tests.train import in_soak, metrics_of, train
from tests.train.kills import command, environment, same_weights

LONG = ("--optim.epochs", "40")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO = ("--nproc-per-node", "2")


def launch(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    variables = environment() | variables
    return subprocess.Popen(arguments, env=variables, stdout=PIPE, stderr=PIPE, text=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for_steps(folder: Path, steps: int, processes: list[subprocess.Popen[str]]) -> None:
    deadline, path = time.monotonic() + 120, folder / "metrics.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < steps:
        assert time.monotonic() < deadline
        exited = [each.communicate() for each in processes if each.poll() is not None]
        assert not exited, exited
        time.sleep(0.02)


def assert_close(run: Path, expected: Path, rel: float = 5e-4, strict: bool = True) -> None:
    """Randomness is keyed by sample, and means are over all processes."""
    for line, expected_line in zip(metrics_of(run), metrics_of(expected), strict=strict):
        assert line == pytest.approx(expected_line, rel=rel)


@in_soak
@pytest.mark.parametrize("centering", ["sinkhorn", "mean"])
def test_two_torchrun_processes_equal_one(tmp_path: Path, centering: str):
    more = ("--loss.centering", centering)
    two = launch(*TORCHRUN, "--standalone", *TWO, *command(tmp_path / "2", *more)[1:])
    train(tmp_path / "1", *more)
    _, errors = two.communicate(timeout=240)
    assert two.returncode == 0, errors
    assert_close(tmp_path / "2", tmp_path / "1")


@in_soak
def test_two_nodes_of_two_processes_equal_one(tmp_path: Path):
    stop = ("--run.stop-after-steps", "4")
    rendezvous = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    rendezvous += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "croc"]
    run = command(tmp_path / "4", *stop)[1:]
    nodes = [
        launch(*TORCHRUN, *rendezvous, "--local-addr", f"127.0.0.{node + 1}", *run)
        for node in range(2)
    ]
    for each in nodes:
        _, errors = each.communicate(timeout=240)
        assert each.returncode == 0, errors
    train(tmp_path / "1", *stop)
    assert_close(tmp_path / "4", tmp_path / "1")


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("ddp", marks=in_soak)])
def test_processes_stop_together_and_one_process_resumes(tmp_path: Path, strategy: str, capsys):
    """One process gets the signal; all agree on a step and save it, even between logged steps."""
    folder = tmp_path / "run"
    rarely = ("--run.log-every-steps", "5", "--run.checkpoint-every-steps", "1000")
    process = launch(
        *command(folder, *LONG, *rarely, "--run.devices", "2", "--run.strategy", strategy)
    )
    wait_for_steps(folder, 2, [process])
    assert main(command(folder, *LONG, *rarely)[3:]) == 2
    assert f"{folder} is in use by process {process.pid}" in capsys.readouterr().err
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    saved = load_checkpoint(checkpoints(folder)[-1])["step"]
    assert f"interrupted: saved step {saved};" in errors
    assert "2 × cpu" in errors
    assert metrics_of(folder)[-1]["step"] == saved < 120
    stop = (*LONG, *rarely, "--run.stop-after-steps", str(saved + 2))
    train(folder, *stop)
    train(tmp_path / "whole", *stop)
    lines = {line["step"]: line for line in metrics_of(tmp_path / "whole")}
    for line in metrics_of(folder):  # the interrupted step is logged by this run alone
        assert line["step"] not in lines or line == pytest.approx(lines[line["step"]], rel=5e-4)


@pytest.mark.parametrize(
    ("victim", "how", "timeout_s", "strategy"),
    [
        pytest.param(1, signal.SIGKILL, 600, "ddp", id="killed"),
        pytest.param(0, signal.SIGKILL, 600, "fsdp", id="first is killed", marks=in_soak),
        pytest.param(1, signal.SIGSTOP, 4, "ddp", id="stopped responding", marks=in_soak),
    ],
)
def test_processes_equal_one_until_a_lost_peer_ends_the_run(
    tmp_path: Path, victim: int, how: signal.Signals, timeout_s: int, strategy: str
):
    """Without torchrun, which would end all processes when one exits."""
    folder, port = tmp_path / "run", free_port()
    more = (*LONG, "--run.timeout-s", str(timeout_s), "--run.strategy", strategy)
    common = {"GROUP_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    common |= {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        launch(*command(folder, *more), **common, RANK=str(number), LOCAL_RANK=str(number))
        for number in range(2)
    ]
    try:
        wait_for_steps(folder, 5, processes)
        processes[victim].send_signal(how)
        lost_at = time.monotonic()
        _, errors = processes[1 - victim].communicate(timeout=60)
        assert time.monotonic() - lost_at < 30
    finally:
        for each in processes:
            each.kill()
            each.communicate()
    assert processes[1 - victim].returncode == 1
    last = errors.strip().splitlines()[-1]
    assert "another process of this run has exited or stopped responding" in last
    assert "Traceback" not in errors
    assert load_checkpoint(checkpoints(folder)[-1])["step"] >= 4
    train(tmp_path / "1", *LONG, "--run.stop-after-steps", "5")
    assert_close(folder, tmp_path / "1", strict=False)


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize("make", [tiny_config, pytest.param(tiny_mae, marks=in_soak)])
def test_fsdp_with_one_process_equals_ddp_and_resumes_its_checkpoints(make, tmp_path):
    whole, sharded = tmp_path / "whole", tmp_path / "sharded"
    common = {"micro_batch": 3, "report": make is tiny_config}
    pretrain(make(whole, strategy="ddp", stop_after_steps=6, **common), "demo")
    for strategy, end in (("fsdp", 2), ("ddp", 4), ("fsdp", 6)):
        pretrain(make(sharded, strategy=strategy, stop_after_steps=end, **common), "demo")
    assert metrics_of(sharded) == metrics_of(whole)
    assert same_weights(sharded, whole)


@pytest.mark.cuda
@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize("compile", [False, True])
def test_fsdp_equals_ddp_on_gpu(tmp_path: Path, compile: bool):
    """In bfloat16, with the fused optimizer and our kernels."""
    gpu = {"accelerator": "cuda", "devices": 1, "compile": compile, "cuda_graph": False}
    pretrain(tiny_config(tmp_path / "whole", **gpu), "demo")
    pretrain(tiny_config(tmp_path / "sharded", strategy="fsdp", **gpu), "demo")
    assert_close(tmp_path / "sharded", tmp_path / "whole", rel=2e-2)


def test_two_fsdp_processes_hold_half_each_and_skip_the_same_step():
    two = launch(*TORCHRUN, "--standalone", *TWO, "-m", "tests.train.fsdp_of_two")
    output, errors = two.communicate(timeout=240)
    assert two.returncode == 0, errors
    assert output.count("passed") == 2


SRUN = {"SLURM_JOB_NAME": "croc", "SLURM_STEP_ID": "0", "SLURM_NNODES": "2"}


LAUNCHER = ("RANK", "LOCAL_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SLURM_") or name in LAUNCHER:
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_launcher")
def test_process_number_of_lightnings_own_launcher(monkeypatch: pytest.MonkeyPatch):
    """Of two processes on each of two nodes; the node may be an interactive SLURM job's."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert process_number() == "0"
    numbers = []
    for node, local in product("01", "01"):
        monkeypatch.setenv("NODE_RANK", node)
        monkeypatch.setenv("LOCAL_RANK", local)
        numbers.append(process_number())
    assert numbers == ["0", "1", "1.0", "1.1"]


@pytest.mark.usefixtures("no_launcher")
def test_processes_and_nodes_follow_the_launcher(monkeypatch: pytest.MonkeyPatch):
    for variables, expected in (
        ({}, ("auto", 1)),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "bash"}, ("auto", 1)),  # an interactive job
        (SRUN | {"SLURM_NTASKS": "7"}, "do not fill 2 nodes"),
        (SRUN | {"SLURM_NTASKS": "16", "SLURM_PROCID": "9"}, (8, 2)),
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "RANK": "5"}, (4, 2)),  # torchrun in SLURM
    ):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if isinstance(expected, str):
            with pytest.raises(UserError, match=expected):
                processes_and_nodes(RunConfig())
        else:
            assert processes_and_nodes(RunConfig()) == expected
        if "SLURM_PROCID" in variables:
            assert (process_number(), is_first_process()) == ("9", False)
            assert processes_and_nodes(RunConfig(devices=1)) == (1, 1)  # overrides SLURM
    assert process_number() == "5"
    for name in ("LOCAL_WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name)
    with pytest.raises(UserError, match="start croc with srun"):
        processes_and_nodes(RunConfig())


@pytest.mark.parametrize(("code", "requeued"), [(75, True), (2, False)])
def test_slurm_script_requeues_only_interrupted_runs(tmp_path: Path, code: int, requeued: bool):
    for name, body in {"srun": f"exit {code}", "scontrol": "exit 0"}.items():
        stub = tmp_path / name
        stub.write_text(f'#!/bin/bash\necho "{name} $@" >> "{tmp_path}/calls"\n{body}\n')
        stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    script = Path(__file__).parents[2] / "docs" / "slurm.sh"
    arguments = ["coco-vits16", "--data.root", "/data/with space"]
    done = subprocess.run(["bash", str(script), *arguments], env=os.environ | paths)
    assert done.returncode == code
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].endswith("croc pretrain coco-vits16 --data.root /data/with space --resume auto")
    assert ("scontrol requeue 7" in calls) == requeued
