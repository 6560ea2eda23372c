"""FSDP: of every parameter, its gradient and the optimiser's memories each process holds a share.

For networks that one GPU cannot hold. A block's parameters are brought together while it computes.
Checkpoints hold whole tensors, so that a run may go on with or without shares.
"""

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

TEACHER_CALLS = {"backbone": ("describe",), "head": ("images", "clusters")}
"""What is called of a teacher's parts besides `forward`, and has to bring their parameters too."""


def shard_student(student: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Block by block, and the rest as one; in place."""
    shares = mesh["data_parallel"]
    _shard_blocks(student, shares)
    fully_shard(student, mesh=shares)
    return student


def shard_teacher(teacher: nn.Module, mesh: DeviceMesh) -> None:
    """The same shares as the student's, so that the moving average needs no other process."""
    shares = mesh["data_parallel"]
    _shard_blocks(teacher, shares)
    for name, calls in TEACHER_CALLS.items():
        part = teacher.get_submodule(name)
        # It has no backward, at whose end it would be taken apart again.
        fully_shard(part, mesh=shares, reshard_after_forward=True)
        for call in calls:
            if hasattr(part, call):
                register_fsdp_forward_method(part, call)


def _shard_blocks(network: nn.Module, shares: DeviceMesh) -> None:
    for name, module in network.named_modules():
        if re.search(r"\bblocks\.\d+$", name):
            fully_shard(module, mesh=shares)


def hold_gradients(
    fabric: Fabric, student: _FabricModule, more: bool
) -> AbstractContextManager[None]:
    """While `more` parts of a batch are to come, gradients stay here: all travel with the last.
    Not those of shares, which would have to stay whole."""
    alone = not isinstance(fabric.strategy, ModelParallelStrategy)
    return fabric.no_backward_sync(student, enabled=more and alone)


def is_sharded(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor)


def own_share(tensor: Tensor) -> Tensor:
    """This process's part, in place; all of a tensor that is not in shares."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def own_shares(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [own_share(tensor) for tensor in tensors]


def whole(state: Any) -> Any:
    """A state with every tensor whole on the first process, and empty on the others, which must
    ask for it at the same time."""
    if isinstance(state, DTensor):
        full = state.full_tensor()  # one after the other, as they need not fit at once
        return full.cpu() if dist.get_rank() == 0 else full.new_empty(0)
    if isinstance(state, dict):
        return {name: whole(value) for name, value in state.items()}
    return [whole(value) for value in state] if isinstance(state, list) else state


def shared_like(value: Any, parameter: Tensor) -> Any:
    """A whole tensor in the parameter's shares, if it has any and the tensor is of its shape."""
    like = isinstance(value, Tensor) and value.shape == parameter.shape
    if not (like and isinstance(parameter, DTensor)):
        return value
    mesh = parameter.device_mesh
    moved = cast(Tensor, value).to(torch.device(mesh.device_type))
    return distribute_tensor(moved, mesh, parameter.placements, src_data_rank=None)
