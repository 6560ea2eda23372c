"""What a run computes on: devices, processes, precision, and whether it compiles."""

import os
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from lightning.fabric.strategies.ddp import DDPStrategy
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from lightning.fabric.strategies.strategy import Strategy

from croc.config import RunConfig
from croc.errors import UserError
from croc.method.sharding import shard_student

INTERACTIVE = ("bash", "interactive")
"""Names of SLURM jobs whose user starts processes by hand, as Lightning has it."""


def compiles(run: RunConfig, device: torch.device) -> bool:
    """On a GPU torch.compile needs Triton, which is not everywhere."""
    if run.compile == "auto":
        return device.type == "cuda" and find_spec("triton") is not None
    return run.compile


def in_bfloat16(run: RunConfig, accelerator: str) -> bool:
    """Older GPUs only imitate it."""
    if run.precision == "auto":
        return accelerator == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return run.precision == "bfloat16"


class BFloat16AsGiven(MixedPrecision):
    """Autocast to bfloat16; what is bfloat16 already stays so, where Lightning would widen it."""

    def convert_input(self, data: Any) -> Any:
        return data


def processes_and_nodes(run: RunConfig) -> tuple[int | str, int]:
    """Processes a node, and nodes: as asked for, or as torchrun or srun have started them."""
    given = os.environ
    if run.devices != "auto":
        return run.devices, run.nodes
    if "LOCAL_WORLD_SIZE" in given:
        here = int(given["LOCAL_WORLD_SIZE"])
        return here, int(given["WORLD_SIZE"]) // here
    if "SLURM_NTASKS" in given and given.get("SLURM_JOB_NAME") not in INTERACTIVE:
        tasks, nodes = int(given["SLURM_NTASKS"]), int(given.get("SLURM_NNODES", 1))
        if tasks > 1 and "SLURM_STEP_ID" not in given:
            raise UserError(f"SLURM has {tasks} tasks, but srun did not start this: srun croc …")
        if tasks % nodes:
            raise UserError(f"SLURM's {tasks} tasks do not fill {nodes} nodes: --ntasks-per-node")
        return tasks // nodes, nodes
    return "auto", run.nodes


def make_fabric(run: RunConfig) -> Fabric:
    """Devices, processes and precision."""
    accelerator = run.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    devices, nodes = processes_and_nodes(run)
    if devices == "auto" and accelerator == "cpu":
        devices = 1
    half = in_bfloat16(run, accelerator)
    if half and accelerator == "cpu":
        raise UserError("--run.precision bfloat16 is for GPUs; leave it at auto on the CPU")
    try:
        return Fabric(
            accelerator=accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy=_strategy(run, devices, nodes),
            plugins=BFloat16AsGiven("bf16-mixed", accelerator) if half else None,
        )
    except (RuntimeError, ValueError) as error:  # Lightning's misconfigurations are such
        raise UserError(
            f"--run.accelerator {run.accelerator} --run.devices {run.devices}: {error}"
        ) from None


def _strategy(run: RunConfig, devices: int | str, nodes: int) -> Strategy | str:
    count = nodes * (torch.cuda.device_count() if devices == "auto" else int(devices))
    timeout = timedelta(seconds=run.timeout_s)
    if run.strategy == "fsdp":
        sizes: Any = {"data_parallel_size": count, "tensor_parallel_size": 1}
        return ModelParallelStrategy(shard_student, **sizes, timeout=timeout)
    return DDPStrategy(timeout=timeout) if count > 1 else "auto"


def processes_here(fabric: Fabric, run: RunConfig) -> int:
    return fabric.world_size // processes_and_nodes(run)[1]
