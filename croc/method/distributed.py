"""Sums over processes, and FSDP. With one process, the sums do nothing.

FSDP is for networks that do not fit on one GPU: each process keeps a shard of every parameter, its
gradient and its optimizer state, and the parameters of a block are gathered while it computes.
Checkpoints contain full tensors, so that a run may be resumed with or without FSDP.
"""

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from croc.fabric import Fabric, FabricModule, ModelParallelStrategy

TEACHER_CALLS = {"backbone": ("forward_tokens",), "head": ("images", "clusters")}
"""Methods of the teacher's modules, besides `forward`, that need gathered parameters."""


def process_count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def leave_processes() -> None:
    """Destroy the process group at the end of a run, even after an error."""
    if dist.is_initialized():
        dist.destroy_process_group()


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether another process has ended or timed out; gloo's errors have no class of their own."""
    of_torch = isinstance(error, dist.DistError)
    return process_count() > 1 and (of_torch or "gloo" in str(error))


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on any process; waits for the device if there are several."""
    if process_count() == 1:
        return flag
    return bool(sum_over_processes(torch.full((), float(flag), device=device)).item())


def sum_over_processes(values: Tensor) -> Tensor:
    if process_count() == 1:
        return values
    values = values.clone()
    dist.all_reduce(values)
    return values


def union_over_processes(names: list[str]) -> list[str]:
    """The names of all processes, in the order of the processes."""
    if process_count() == 1:
        return names
    gathered: list[list[str]] = [[] for _ in range(process_count())]
    dist.all_gather_object(gathered, names)
    return [name for part in gathered for name in part]


def fetch(metrics: dict[str, Tensor]) -> dict[str, float]:
    """Sum the metrics over processes and copy them to the host, the only wait of a step."""
    values = sum_over_processes(torch.stack([value.float() for value in metrics.values()]))
    return dict(zip(metrics, values.tolist()))


def skip_gradient_sync(
    fabric: Fabric, student: FabricModule, is_last: bool
) -> AbstractContextManager[None]:
    """Do not all-reduce gradients before the last micro-batch (not with FSDP, where they would have
    to stay unsharded)."""
    sharded = isinstance(fabric.strategy, ModelParallelStrategy)
    return fabric.no_backward_sync(student, enabled=not is_last and not sharded)


def shard_student(student: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard each block separately, and the rest together; in place."""
    _shard_blocks(student, mesh["data_parallel"])
    fully_shard(student, mesh=mesh["data_parallel"])
    return student


def shard_teacher(teacher: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the teacher like the student, so that the moving average needs no communication."""
    _shard_blocks(teacher, mesh["data_parallel"])
    for name, calls in TEACHER_CALLS.items():
        part = teacher.get_submodule(name)
        # There is no backward pass, after which it would be resharded.
        fully_shard(part, mesh=mesh["data_parallel"], reshard_after_forward=True)
        for call in calls:
            if hasattr(part, call):
                register_fsdp_forward_method(part, call)
    fully_shard(teacher, mesh=mesh["data_parallel"])  # the mask token


def _shard_blocks(network: nn.Module, mesh: DeviceMesh) -> None:
    for name, module in network.named_modules():
        if re.search(r"\bblocks\.\d+$", name):
            fully_shard(module, mesh=mesh)


def is_sharded(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor)


def local_shard(tensor: Tensor) -> Tensor:
    """This process's shard, for in-place changes; the whole tensor if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_shards(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [local_shard(tensor) for tensor in tensors]


def full_state(state: Any) -> Any:
    """A state dict whose tensors are full in the first process and empty in the others. All
    processes must call this together."""
    if isinstance(state, DTensor):
        full = state.full_tensor()  # one at a time, since together they may not fit
        return full.cpu() if dist.get_rank() == 0 else full.new_empty(0)
    if isinstance(state, dict):
        return {name: full_state(value) for name, value in state.items()}
    return [full_state(value) for value in state] if isinstance(state, list) else state


def shard_like(value: Any, parameter: Tensor) -> Any:
    """Shard a full tensor like a parameter of the same shape, if that is sharded."""
    same_shape = isinstance(value, Tensor) and value.shape == parameter.shape
    if not (same_shape and isinstance(parameter, DTensor)):
        return value
    mesh = parameter.device_mesh
    moved = cast(Tensor, value).to(torch.device(mesh.device_type))
    return distribute_tensor(moved, mesh, parameter.placements, src_data_rank=None)
