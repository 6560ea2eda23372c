"""The optimiser with weight decay where it belongs, and the teacher's moving average."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from croc.config import OptimConfig
from croc.method.distributed import sum_over_processes
from croc.method.muon import Muon
from croc.method.schedules import Settings
from croc.method.sharding import is_sharded, own_shares


def make_optimizer(
    student: nn.Module, device: torch.device, config: OptimConfig | None = None
) -> torch.optim.AdamW | Muon:
    """Biases and one-dimensional parameters are not decayed; rates come with each step."""
    config = config or OptimConfig()
    named = {name: p for name, p in student.named_parameters() if p.requires_grad}
    matrices: dict[str, nn.Parameter] = {}
    if config.matrices == "muon":
        matrices = {name: p for name, p in named.items() if ".blocks." in name and p.ndim == 2}
    rest = [p for name, p in named.items() if name not in matrices]
    groups = [
        {"params": [p for p in rest if p.ndim > 1], "decayed": True, "rate_factor": 1.0},
        {"params": [p for p in rest if p.ndim <= 1], "decayed": False, "rate_factor": 1.0},
    ]
    fused = device.type == "cuda"
    adamw = torch.optim.AdamW(groups, lr=0.0, betas=config.betas, weight_decay=0.0, fused=fused)
    if not matrices:
        return adamw
    return Muon(matrices, adamw, decayed=True, rate_factor=config.muon_rate_factor)


def set_rates(optimizer: torch.optim.Optimizer, settings: Settings) -> None:
    for group in optimizer.param_groups:
        # Checkpoints from before there was a factor have none.
        group["lr"] = settings.rate * group.get("rate_factor", 1.0)
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
