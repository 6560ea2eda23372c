"""Entropic optimal transport by Sinkhorn's scalings."""

import torch
from jaxtyping import Float
from torch import Tensor


def sinkhorn(
    cost: Float[Tensor, "*batch T K"],
    rows: Float[Tensor, "*batch T"],
    columns: Float[Tensor, "*batch K"],
    sharpness: float,
    iterations: int,
) -> Float[Tensor, "*batch T K"]:
    """The transport plan near argmin ⟨Q, cost⟩ − H(Q)/λ with the given marginals.

    plan = exp(−λ cost)
    repeat: for n: plan[n, :] *= rows[n] / sum(plan[n, :])
            for k: plan[:, k] *= columns[k] / sum(plan[:, k])

    The columns then hold exactly, the rows better with every iteration. Computed in the log
    domain, plan = exp(f + g − λ cost), where no cost underflows.
    """
    logits, log_rows, log_columns = -sharpness * cost, rows.log(), columns.log()
    f = g = torch.zeros_like(cost[..., :1, :1])
    for _ in range(iterations):
        f = log_rows[..., :, None] - (logits + g).logsumexp(dim=-1, keepdim=True)
        g = log_columns[..., None, :] - (logits + f).logsumexp(dim=-2, keepdim=True)
    return (logits + f + g).exp()
