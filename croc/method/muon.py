"""Muon: a matrix moves along its gradient's directions, each by the same length.

The rest of a network's parameters stay with AdamW, and both are one optimiser to those who use it.
PyTorch has Muon too, but takes matrices one by one: 1,346 operations a step for twelve blocks,
where those of one shape together need 140.
"""

import math
from collections import defaultdict
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

QUINTIC = (3.4445, -4.7750, 2.0315)
"""a·s + b·s³ + c·s⁵ drives every singular value from 0 … 1 to near 1: Muon's own coefficients."""
TIMES = 5


class Piece(NamedTuple):
    """Rows of a parameter that are a matrix of their own."""

    parameter: nn.Parameter
    rows: slice

    def of(self, tensor: Tensor) -> Tensor:
        return tensor[self.rows]


class Muon(torch.optim.Optimizer):
    """Group 0 holds the matrices; the others are AdamW's own."""

    found_inf: Tensor | None = None
    """Set by who asks: where 1, a step changes nothing. As PyTorch's fused optimisers have it."""

    def __init__(
        self,
        matrices: dict[str, nn.Parameter],
        adamw: torch.optim.AdamW,
        momentum: float = 0.95,
        **group: Any,
    ) -> None:
        """Queries, keys and values are three matrices, though one parameter (qkv) holds them."""
        self._adamw, self.momentum = adamw, momentum
        given = {"params": list(matrices.values()), "lr": 0.0, "weight_decay": 0.0, **group}
        super().__init__([given], {})
        self.param_groups += adamw.param_groups
        self._share()
        self._alike: dict[torch.Size, list[Piece]] = defaultdict(list)
        for name, parameter in matrices.items():
            rows = len(parameter) // (3 if name.endswith("qkv.weight") else 1)
            for first in range(0, len(parameter), rows):
                piece = Piece(parameter, slice(first, first + rows))
                self._alike[piece.of(parameter).shape].append(piece)

    def _share(self) -> None:
        """AdamW keeps its memories and settings where ours are, so that a checkpoint has both."""
        self._adamw.param_groups, self._adamw.state = self.param_groups[1:], self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Nothing in it waits for the device."""
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
        for shape, pieces in self._alike.items():
            length = 0.2 * math.sqrt(max(shape))  # so that AdamW's rates suit
            self._move([p for p in pieces if p.parameter.grad is not None], taken, length)

    def _move(self, pieces: list[Piece], taken: Float[Tensor, ""], length: float) -> None:
        if not pieces:
            return
        gradients = torch.stack([p.of(cast(Tensor, p.parameter.grad)) for p in pieces]).float()
        gradients = torch.where(taken > 0, gradients, 0.0)
        memories = [piece.of(self._memory(piece.parameter)) for piece in pieces]
        kept = torch.where(taken > 0, self.momentum, 1.0)
        torch._foreach_mul_(memories, kept)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(memories, gradients.unbind())  # pyright: ignore[reportPrivateImportUsage]
        ahead = gradients + self.momentum * torch.stack(memories)  # Nesterov's
        moves = orthogonalise(ahead) * (-self.param_groups[0]["lr"] * length * taken)
        targets = [piece.of(piece.parameter) for piece in pieces]
        torch._foreach_add_(targets, moves.unbind())  # pyright: ignore[reportPrivateImportUsage]

    def _memory(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter, dtype=torch.float32)
        return state["momentum"]


def orthogonalise(matrices: Float[Tensor, "n r c"]) -> Float[Tensor, "n r c"]:
    """The same singular vectors, the singular values near 1; by products of matrices alone."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    x = x.bfloat16() if x.is_cuda else x
    a, b, c = QUINTIC
    for _ in range(TIMES):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).float()
