"""AdamW with weight decay where it belongs, and the teacher's moving average."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from croc.distributed import sum_over_processes
from croc.schedules import Settings
from croc.sharding import is_sharded, own_shares


def make_optimizer(
    student: nn.Module, device: torch.device, betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.AdamW:
    """Biases and one-dimensional parameters are not decayed; rates come with each step."""
    parameters = [p for p in student.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "decayed": True},
        {"params": [p for p in parameters if p.ndim <= 1], "decayed": False},
    ]
    fused = device.type == "cuda"
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, weight_decay=0.0, fused=fused)


def set_rates(optimizer: torch.optim.Optimizer, settings: Settings) -> None:
    for group in optimizer.param_groups:
        group["lr"] = settings.rate
        group["weight_decay"] = settings.weight_decay if group["decayed"] else 0.0


def clip_gradient(parameters: Iterable[nn.Parameter], largest: float) -> Tensor:
    """The gradient's norm before it was clipped; 0 clips nothing. Never waits for the device."""
    parameters = [p for p in parameters if p.grad is not None]
    gradients = own_shares(p.grad for p in parameters if p.grad is not None)
    norms = torch._foreach_norm(gradients)  # pyright: ignore[reportPrivateImportUsage]
    # In float64, so that parameters without a gradient (CrOC's with α = 0) change no digit.
    norm = torch.stack(norms).double().norm()
    if any(is_sharded(p) for p in parameters):
        norm = sum_over_processes(norm.square()).sqrt()
    norm = norm.float()
    if largest > 0:
        shorter = (largest / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, shorter)  # pyright: ignore[reportPrivateImportUsage]
    return norm


@torch.no_grad()
def update_teacher(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """teacher ← momentum · teacher + (1 − momentum) · student."""
    averages: list[Tensor] = own_shares(p.data for p in teacher.parameters())
    latest: list[Tensor] = own_shares(p.data for p in student.parameters())
    torch._foreach_lerp_(averages, latest, 1 - momentum)  # pyright: ignore[reportPrivateImportUsage]
