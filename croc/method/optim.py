"""AdamW, or Muon for the blocks' matrices; gradient clipping; skipping of non-finite steps."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from croc.config import OptimConfig
from croc.method.distributed import is_sharded, local_shards, process_count, sum_over_processes
from croc.method.types import ScheduleState

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Muon's coefficients: a·s + b·s³ + c·s⁵ moves singular values in 0 … 1 close to 1."""
QUINTIC_ITERATIONS = 5


def make_optimizer(
    student: nn.Module, device: torch.device, config: OptimConfig | None = None
) -> "torch.optim.AdamW | Muon":
    """Biases and one-dimensional parameters have no weight decay; `set_lr` sets learning rates."""
    config = config or OptimConfig()
    named = {name: p for name, p in student.named_parameters() if p.requires_grad}
    matrices: dict[str, nn.Parameter] = {}
    if config.matrix_optimizer == "muon":
        matrices = {name: p for name, p in named.items() if ".blocks." in name and p.ndim == 2}
    depth = max((layer_of(name, 0) for name in named), default=0)
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for name, p in sorted(named.items(), key=lambda item: item[1].ndim <= 1):  # stable
        if name not in matrices:
            kind = p.ndim > 1, config.layer_decay ** (depth + 1 - layer_of(name, depth))
            empty = {"params": [], "decayed": kind[0], "rate_factor": kind[1]}
            groups.setdefault(kind, empty)["params"].append(p)
    fused = device.type == "cuda"
    adamw = torch.optim.AdamW(
        [*groups.values()], lr=0.0, betas=config.betas, weight_decay=0.0, fused=fused
    )
    if not matrices:
        return adamw
    return Muon(matrices, adamw, decayed=True, rate_factor=config.muon_lr_factor)


def layer_of(name: str, depth: int) -> int:
    """0 for the embeddings of a backbone, then its blocks, then the norm and the heads."""
    block = re.match(r"backbone\.vit\.blocks\.(\d+)", name)
    if block:
        return 1 + int(block[1])
    above = not name.startswith("backbone.") or name.startswith("backbone.vit.norm.")
    return depth + 1 if above else 0


def set_lr(optimizer: torch.optim.Optimizer, schedule: ScheduleState) -> None:
    for group in optimizer.param_groups:
        # Older checkpoints have no factor.
        group["lr"] = schedule.lr * group.get("rate_factor", 1.0)
        group["weight_decay"] = schedule.weight_decay if group["decayed"] else 0.0


def clip_gradient(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Clip the gradient, unless max_norm is 0, and return its norm before, without waiting."""
    parameters = [p for p in parameters if p.grad is not None]
    gradients = local_shards(p.grad for p in parameters if p.grad is not None)
    norms = torch._foreach_norm(gradients)  # pyright: ignore[reportPrivateImportUsage]
    # In float64, so that zero gradients (CrOC with α = 0) do not change the rounding.
    norm = torch.stack(norms).double().norm()
    if any(is_sharded(p) for p in parameters):
        norm = sum_over_processes(norm.square()).sqrt()
    norm = norm.float()
    if max_norm > 0:
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)  # pyright: ignore[reportPrivateImportUsage]
    return norm


class Guard:
    """Steps the optimizer unless the gradient is not finite; nothing waits for the device.

    A skipped step does not change the student and the optimizer's state. The teacher still follows
    the student, and centers only take finite values.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        """`optimizer` may be Fabric's wrapper."""
        self.optimizer = optimizer
        self._inner = getattr(optimizer, "optimizer", optimizer)
        sharded = any(is_sharded(p) for group in optimizer.param_groups for p in group["params"])
        # FSDP has to wait for the device: the fused optimizer does not mix kinds of tensors.
        self._skips_on_device = device.type == "cuda" and not sharded
        self._skipped = torch.zeros((), device=device)
        self._in_a_row = torch.zeros((), device=device)

    def step(self, norm: Tensor, loss: Tensor) -> None:
        bad = ~norm.isfinite()
        if process_count() == 1:  # several processes have different losses, but the same norm
            bad |= ~loss.isfinite()
        self._skipped += bad
        self._in_a_row = (self._in_a_row + 1) * bad
        if self._skips_on_device:  # the fused optimizer reads found_inf there
            self._inner.found_inf = bad.float()  # pyright: ignore[reportAttributeAccessIssue]
            self.optimizer.step()
        elif not bad:
            self.optimizer.step()
        self.optimizer.zero_grad()

    def add_skipped(self, steps: int) -> None:
        """Add the steps skipped in earlier starts of the run."""
        self._skipped += steps

    def counts(self) -> tuple[int, int]:
        """Number of steps skipped in total, and of the latest consecutive ones."""
        skipped, in_a_row = torch.stack([self._skipped, self._in_a_row]).tolist()
        return int(skipped), int(in_a_row)


class Piece(NamedTuple):
    """Rows of a parameter that form a matrix of their own."""

    parameter: nn.Parameter
    rows: slice

    def of(self, tensor: Tensor) -> Tensor:
        return tensor[self.rows]


class Muon(torch.optim.Optimizer):
    """Muon for the matrices (group 0), AdamW for the rest (the other groups), as one optimizer.

    A matrix moves by the same length along each singular direction of its gradient. PyTorch's Muon
    updates one matrix at a time, in 1,346 operations per step for twelve blocks; batching matrices
    of the same shape takes 140.
    """

    found_inf: Tensor | None = None
    """If 1, a step changes nothing, as in PyTorch's fused optimizers."""

    def __init__(
        self,
        matrices: dict[str, nn.Parameter],
        adamw: torch.optim.AdamW,
        momentum: float = 0.95,
        **group: Any,
    ) -> None:
        """Queries, keys and values are three matrices in a single parameter (qkv)."""
        self._adamw, self.momentum = adamw, momentum
        first = {"params": list(matrices.values()), "lr": 0.0, "weight_decay": 0.0, **group}
        super().__init__([first], {})
        self.param_groups += adamw.param_groups
        self._share_state()
        self._by_shape: dict[torch.Size, list[Piece]] = defaultdict(list)
        for name, parameter in matrices.items():
            rows = len(parameter) // (3 if name.endswith("qkv.weight") else 1)
            for start in range(0, len(parameter), rows):
                piece = Piece(parameter, slice(start, start + rows))
                self._by_shape[piece.of(parameter).shape].append(piece)

    def _share_state(self) -> None:
        """AdamW shares our state and settings, so that a checkpoint contains both."""
        self._adamw.param_groups, self._adamw.state = self.param_groups[1:], self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share_state()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Never waits for the device."""
        self._adamw.found_inf = self.found_inf  # pyright: ignore[reportAttributeAccessIssue]
        self._adamw.step()
        group = self.param_groups[0]
        moved = [p for p in group["params"] if p.grad is not None]
        if not moved:
            return
        taken = torch.ones((), device=moved[0].device)
        if self.found_inf is not None:
            taken = taken - self.found_inf
        decay = 1 - group["lr"] * group["weight_decay"] * taken
        torch._foreach_mul_(moved, decay)  # pyright: ignore[reportPrivateImportUsage]
        for shape, pieces in self._by_shape.items():
            length = 0.2 * math.sqrt(max(shape))  # so that AdamW's learning rates fit
            self._move([p for p in pieces if p.parameter.grad is not None], taken, length)

    def _move(self, pieces: list[Piece], taken: Float[Tensor, ""], length: float) -> None:
        if not pieces:
            return
        gradients = torch.stack([p.of(cast(Tensor, p.parameter.grad)) for p in pieces]).float()
        gradients = torch.where(taken > 0, gradients, 0.0)
        averages = [piece.of(self._average(piece.parameter)) for piece in pieces]
        momentum = torch.where(taken > 0, self.momentum, 1.0)
        torch._foreach_mul_(averages, momentum)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(averages, gradients.unbind())  # pyright: ignore[reportPrivateImportUsage]
        ahead = gradients + self.momentum * torch.stack(averages)  # Nesterov
        moves = orthogonalize(ahead) * (-self.param_groups[0]["lr"] * length * taken)
        targets = [piece.of(piece.parameter) for piece in pieces]
        torch._foreach_add_(targets, moves.unbind())  # pyright: ignore[reportPrivateImportUsage]

    def _average(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter, dtype=torch.float32)
        return state["momentum"]


def orthogonalize(matrices: Float[Tensor, "n r c"]) -> Float[Tensor, "n r c"]:
    """The same singular vectors with singular values near 1, by matrix products alone."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    x = x.bfloat16() if x.is_cuda else x
    a, b, c = QUINTIC
    for _ in range(QUINTIC_ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).float()
