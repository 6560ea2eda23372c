"""Triton kernels for what a GPU does faster this way than by the definition in PyTorch.

Each is tested against its definition. Triton is not everywhere, and slow to import: `find` is the
only place that decides, and that imports the modules that need it.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_AVAILABLE = find_spec("triton") is not None and torch.version.cuda is not None
_enabled = True


def use_kernels(enabled: bool) -> None:
    """Or leave everything to the definitions."""
    global _enabled
    _enabled = enabled


def serve(tensor: Tensor) -> bool:
    """Whether kernels can run on this tensor's device."""
    return _AVAILABLE and _enabled and tensor.is_cuda and _has_bfloat16(tensor.device)


def find(name: str, tensor: Tensor) -> Any:
    """The module croc.kernels.NAME if its kernels can run on this tensor's device, else None."""
    if not serve(tensor):
        return None
    from croc.kernels import attention, clustering, distil, gelu, views

    modules = {"attention": attention, "clustering": clustering, "distil": distil}
    return {**modules, "gelu": gelu, "views": views}[name]


@torch.compiler.assume_constant_result
def _has_bfloat16(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)
