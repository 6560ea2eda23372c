"""Steps without a finite gradient are not taken, but counted, and nothing waits for the device."""

import math

import torch
from torch import Tensor

from croc.method.distributed import process_count
from croc.method.sharding import is_sharded


class Guard:
    """Stands between the gradients and the optimiser.

    What a skipped step leaves alone: the student and the optimiser's memories. The teacher goes on
    following the student, and the centres take finite values only.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, device: torch.device, skipped: int = 0
    ) -> None:
        """`optimizer` may be as Fabric wrapped it; `skipped` steps were so already."""
        self.optimizer = optimizer
        self._inner = getattr(optimizer, "optimizer", optimizer)
        sharded = any(is_sharded(p) for group in optimizer.param_groups for p in group["params"])
        # With shares the device is waited for: the fused optimiser mixes no kinds of tensors.
        self._asks_itself = device.type == "cuda" and not sharded
        self._skipped = torch.full((), float(skipped), device=device)
        self._in_a_row = torch.zeros((), device=device)

    def step(self, norm: Tensor, loss: Tensor) -> None:
        bad = ~norm.isfinite()
        if process_count() == 1:  # of several, each has a loss of its own, but all the same norm
            bad |= ~loss.isfinite()
        self._skipped += bad
        self._in_a_row = (self._in_a_row + 1) * bad
        if self._asks_itself:  # the fused optimiser, on the device
            self._inner.found_inf = bad.float()  # pyright: ignore[reportAttributeAccessIssue]
            self.optimizer.step()
        elif not bad:
            self.optimizer.step()
        self.optimizer.zero_grad()

    def counts(self) -> tuple[int, int]:
        """Steps skipped in all, and how many of them in a row until now."""
        skipped, in_a_row = torch.stack([self._skipped, self._in_a_row]).tolist()
        return int(skipped), int(in_a_row)


def finite_or_none(values: dict[str, float]) -> dict[str, float | None]:
    """For JSON, which knows neither NaN nor infinity."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
