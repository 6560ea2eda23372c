"""Parts of a clustering step: its result, distances, the closest pair, Sinkhorn in logarithms."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

Pair = tuple[Int64[Tensor, "B H 1"], Int64[Tensor, "B H 1"]]


@dataclass(frozen=True)
class Step:
    """The clustering with k centroids, on the way from K_start to 2."""

    assignments: Float[Tensor, "B H T k"]
    cost: Float[Tensor, "B H"]
    """The transport cost d_c."""
    merged: Pair | None
    """The columns of the step before that became one; None at the start."""


def distances(
    positions: Float[Tensor, "B T 2"], centres: Float[Tensor, "B H K 2"]
) -> Float[Tensor, "B H T K"]:
    """Euclidean distance of every token to every centroid in the image's frame."""
    return (positions[:, None, :, None] - centres[:, :, None]).norm(dim=-1)


def take(
    values: Float[Tensor, "B H K *c"], index: Int64[Tensor, "B H k"]
) -> Float[Tensor, "B H k *c"]:
    """Rows of `values` by index, for each image and head."""
    extra = values.shape[3:]
    shape = (*index.shape, *extra)
    return values.gather(2, index.reshape(*index.shape, *(1 for _ in extra)).expand(shape))


def closest_pair(similarity: Float[Tensor, "B H K K"]) -> Pair:
    """The pair i < j of the highest similarity."""
    k = similarity.shape[-1]
    above = torch.ones(k, k, dtype=torch.bool, device=similarity.device).triu(diagonal=1)
    best = similarity.masked_fill(~above, -torch.inf).flatten(2).argmax(dim=-1, keepdim=True)
    return best // k, best % k


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
