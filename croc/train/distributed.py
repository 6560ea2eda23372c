"""Devices, processes, precision, and how several processes agree to stop."""

import os
import time
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch

from croc.config import RunConfig
from croc.errors import UserError
from croc.fabric import DDPStrategy, Fabric, MixedPrecision, ModelParallelStrategy, Strategy
from croc.method.distributed import any_process, shard_student, sum_over_processes

INTERACTIVE = ("bash", "interactive")
"""Names of SLURM jobs in which the user starts processes interactively, as in Lightning."""
STOP_CHECK_S, MAX_STEPS_BETWEEN_CHECKS = 3.0, 10
"""How often the processes exchange whether one of them has received a signal."""


def compiles(run: RunConfig, device: torch.device) -> bool:
    """On a GPU, torch.compile needs Triton, which is not installed everywhere."""
    if run.compile == "auto":
        return device.type == "cuda" and find_spec("triton") is not None
    return run.compile


def in_bfloat16(run: RunConfig, accelerator: str) -> bool:
    """Whether to use bfloat16; older GPUs only emulate it."""
    if run.precision == "auto":
        return accelerator == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return run.precision == "bfloat16"


class BFloat16AsGiven(MixedPrecision):
    """Autocast to bfloat16. Unlike Lightning's, it does not convert bfloat16 inputs to float32."""

    def convert_input(self, data: Any) -> Any:
        return data


def processes_and_nodes(run: RunConfig) -> tuple[int | str, int]:
    """Processes per node and number of nodes, from the options, torchrun or srun."""
    environment = os.environ
    if run.devices != "auto":
        return run.devices, run.nodes
    if "LOCAL_WORLD_SIZE" in environment:
        here = int(environment["LOCAL_WORLD_SIZE"])
        return here, int(environment["WORLD_SIZE"]) // here
    if "SLURM_NTASKS" in environment and environment.get("SLURM_JOB_NAME") not in INTERACTIVE:
        tasks, nodes = int(environment["SLURM_NTASKS"]), int(environment.get("SLURM_NNODES", 1))
        if tasks > 1 and "SLURM_STEP_ID" not in environment:
            raise UserError(f"the Slurm job has {tasks} tasks: start croc with srun (srun croc …)")
        if tasks % nodes:
            raise UserError(f"{tasks} Slurm tasks do not fill {nodes} nodes: set --ntasks-per-node")
        return tasks // nodes, nodes
    return "auto", run.nodes


def processes_here(fabric: Fabric, run: RunConfig) -> int:
    return fabric.world_size // processes_and_nodes(run)[1]


def make_fabric(run: RunConfig) -> Fabric:
    accelerator = run.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    devices, nodes = processes_and_nodes(run)
    if devices == "auto" and accelerator == "cpu":
        devices = 1
    half = in_bfloat16(run, accelerator)
    if half and accelerator == "cpu":
        raise UserError("--run.precision bfloat16 is for GPUs; leave it at auto on the CPU")
    count = nodes * (torch.cuda.device_count() if devices == "auto" else int(devices))
    timeout = timedelta(seconds=run.timeout_s)
    # Buffers are constants: DDP need not broadcast them at every step.
    ddp = DDPStrategy(timeout=timeout, broadcast_buffers=False)
    strategy: Strategy | str = ddp if count > 1 else "auto"
    if run.strategy == "fsdp":
        sizes: Any = {"data_parallel_size": count, "tensor_parallel_size": 1}
        strategy = ModelParallelStrategy(shard_student, **sizes, timeout=timeout)
    try:
        return Fabric(
            accelerator=accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=strategy,
            plugins=BFloat16AsGiven("bf16-mixed", accelerator) if half else None,
        )
    except (RuntimeError, ValueError) as error:  # Lightning's misconfigurations
        raise UserError(
            f"--run.accelerator {run.accelerator} --run.devices {run.devices}: {error}"
        ) from None


class StopRequest:
    """Whether any process has received a signal. Several processes exchange this only every few
    steps, all of them at the same steps."""

    def __init__(self, fabric: Fabric, signals: list[int], step: int) -> None:
        self._fabric, self._signals = fabric, signals
        self._every, self._last_step, self._last_time = 1, step, time.perf_counter()

    def __call__(self, step: int) -> bool:
        checks = self._fabric.world_size == 1 or step % self._every == 0
        return checks and any_process(bool(self._signals), self._fabric.device)

    def set_pace(self, step: int) -> None:
        """From the mean step time of all processes, since their clocks differ."""
        now = time.perf_counter()
        mine = (now - self._last_time) / (step - self._last_step)
        self._last_step, self._last_time = step, now
        total = sum_over_processes(torch.tensor(mine, device=self._fabric.device)).item()
        steps = int(STOP_CHECK_S / (total / self._fabric.world_size))
        self._every = min(max(steps, 1), MAX_STEPS_BETWEEN_CHECKS)
