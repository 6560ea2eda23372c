"""Triton kernels for the parts of a step that are slower in PyTorch.

Each is tested against its PyTorch reference. Triton is not available everywhere and is slow to
import, so `find` alone decides whether kernels are used, and imports their modules.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_AVAILABLE = find_spec("triton") is not None and torch.version.cuda is not None
_enabled = True


def use_kernels(enabled: bool) -> None:
    """Enable the kernels, or use the PyTorch reference everywhere."""
    global _enabled
    _enabled = enabled


def can_run(tensor: Tensor) -> bool:
    """Whether kernels can run on this tensor's device."""
    return _AVAILABLE and _enabled and tensor.is_cuda and _has_bfloat16(tensor.device)


def find(name: str, tensor: Tensor) -> Any:
    """The module croc.kernels.NAME if its kernels can run on this tensor's device, else None."""
    if not can_run(tensor):
        return None
    from croc.kernels import attention, clustering, distill, gelu, views

    modules = {"attention": attention, "clustering": clustering, "distill": distill}
    return {**modules, "gelu": gelu, "views": views}[name]


@torch.compiler.assume_constant_result
def _has_bfloat16(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)
