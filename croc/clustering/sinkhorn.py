"""Entropic optimal transport by Sinkhorn's scalings."""

from jaxtyping import Float
from torch import Tensor, finfo


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

    So the columns hold exactly and the rows ever better. The first pass is done on logarithms,
    where no cost can underflow; after it every row and column has a share that it cannot lose.
    """
    logits = (-sharpness * cost).log_softmax(dim=-1) + rows.log()[..., None]
    logits = logits - logits.logsumexp(dim=-2, keepdim=True) + columns.log()[..., None, :]
    plan = logits.exp()
    least = finfo(plan.dtype).tiny
    for _ in range(iterations - 1):
        plan = plan * (rows / plan.sum(dim=-1).clamp_min(least))[..., None]
        plan = plan * (columns / plan.sum(dim=-2).clamp_min(least))[..., None, :]
    return plan
