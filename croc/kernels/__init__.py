"""Triton kernels, for what a GPU does faster so than by the definition in PyTorch.

Each is tested against its definition. Triton is not everywhere, and slow to import: modules that
import it are themselves imported only where `serve` says yes.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

_AVAILABLE = find_spec("triton") is not None and torch.version.cuda is not None
_wanted = True


def use_kernels(wanted: bool) -> None:
    """Or leave everything to the definition."""
    global _wanted
    _wanted = wanted


def serve(tensor: Tensor) -> bool:
    """Whether kernels may be called where this tensor lies."""
    return _AVAILABLE and _wanted and tensor.is_cuda and _has_bfloat16(tensor.device)


@torch.compiler.assume_constant_result
def _has_bfloat16(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)
