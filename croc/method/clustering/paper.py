"""Clustering by optimal transport: section 3.3 of the paper, computed in the log domain.

`released.py` does the same as in the authors' code. Every merging step runs on all images and heads
at once: each loses exactly one centroid, so the tensors lose one column. Results do not depend on
which images share a batch.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from croc.config import ClusterConfig
from croc.method.randomness import uniform

LEAST_SALIENCY = 1e-20
"""Replaces a saliency of 0, so that all tokens are assigned, even if an image has no saliency."""

Pair = tuple[Int64[Tensor, "B H 1"], Int64[Tensor, "B H 1"]]


@dataclass(frozen=True)
class Step:
    """The clustering with k centroids, on the way from K_start to 2."""

    assignments: Float[Tensor, "B H T k"]
    cost: Float[Tensor, "B H"]
    """The transport cost d_c."""
    merged: Pair | None
    """The columns of the previous step that were merged; None at the start."""


def draw_seeds(
    probability: Float[Tensor, "B H T"], k: int, keys: Int64[Tensor, "B"]
) -> Int64[Tensor, "B H {k}"]:
    """k distinct tokens, drawn without replacement by probability (Gumbel top-k)."""
    u = uniform(keys, "cluster seeds", *probability.shape[1:])
    gumbel = -(-u.log()).log()
    return (probability.log() + gumbel).topk(k, dim=-1).indices


def paper_steps(
    tokens: Float[Tensor, "B H T d"],
    positions: Float[Tensor, "B T 2"],
    saliency: Float[Tensor, "B H T"],
    seeds: Int64[Tensor, "B H K"],
    config: ClusterConfig,
) -> Iterator[Step]:
    """Cluster unit tokens with K_start centroids, merge two, cluster again, until two are left."""
    rows = saliency.clamp_min(LEAST_SALIENCY)
    # Relative to their corner, so that rounding is not amplified if all positions coincide.
    positions = positions - positions.amin(dim=1, keepdim=True)
    S = diagonal(positions)
    centroids = take(tokens, seeds)
    centroid_positions = take(positions[:, None].expand(-1, tokens.shape[1], -1, -1), seeds)
    importance = take(rows, seeds)  # Yᵀr: averaging columns of Y averages its entries
    pair = None

    while True:
        cost = transport_cost(tokens, centroids, positions, centroid_positions, S, config)
        if config.sizes == "free":
            plan = rows[..., None] * (-config.sharpness * cost).softmax(dim=-1)
        else:
            columns = importance.softmax(dim=-1)
            plan = sinkhorn(cost, rows, columns, config.sharpness, config.sinkhorn_iterations)
        yield Step(plan / plan.sum(dim=-1, keepdim=True), (plan * cost).sum(dim=(-2, -1)), pair)
        if cost.shape[-1] == 2:
            return
        # A column of `free` that underflowed to 0 gets a centroid of 0 and no tokens.
        weights = plan / plan.sum(dim=-2, keepdim=True).clamp_min(torch.finfo(plan.dtype).tiny)
        centroids = torch.einsum("bhtk,bhtd->bhkd", weights, tokens)
        centroid_positions = torch.einsum("bhtk,btc->bhkc", weights, positions)
        unit = F.normalize(centroids, dim=-1)
        pair = closest_pair(unit @ unit.mT)
        centroids, centroid_positions, importance = (
            merge(values, *pair) for values in (centroids, centroid_positions, importance)
        )


def diagonal(positions: Float[Tensor, "B T 2"]) -> Float[Tensor, "B 1 1 1"]:
    """S: diagonal of the bounding box of the joined tokens, whose corner is at 0."""
    return positions.amax(dim=1).norm(dim=-1).clamp_min(1e-12)[:, None, None, None]


def transport_cost(
    tokens: Float[Tensor, "B H T d"],
    centroids: Float[Tensor, "B H K d"],
    positions: Float[Tensor, "B T 2"],
    centroid_positions: Float[Tensor, "B H K 2"],
    S: Float[Tensor, "B 1 1 1"],
    config: ClusterConfig,
) -> Float[Tensor, "B H T K"]:
    """−cosine + λ_pos · distance / S; for λ_pos = ∞, distance / S alone."""
    positional = distances(positions, centroid_positions) / S
    weight = config.position_weight
    if math.isinf(weight):
        return positional
    semantic = -tokens @ F.normalize(centroids, dim=-1).mT
    return semantic + weight * positional


def distances(
    positions: Float[Tensor, "B T 2"], centroid_positions: Float[Tensor, "B H K 2"]
) -> Float[Tensor, "B H T K"]:
    """Euclidean distance of every token to every centroid, in image coordinates."""
    return (positions[:, None, :, None] - centroid_positions[:, :, None]).norm(dim=-1)


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

    The column marginals are then exact, and the row marginals improve with every iteration.
    Computed in the log domain, plan = exp(f + g − λ cost), where no cost underflows.
    """
    logits, log_rows, log_columns = -sharpness * cost, rows.log(), columns.log()
    f = g = torch.zeros_like(cost[..., :1, :1])
    for _ in range(iterations):
        f = log_rows[..., :, None] - (logits + g).logsumexp(dim=-1, keepdim=True)
        g = log_columns[..., None, :] - (logits + f).logsumexp(dim=-2, keepdim=True)
    return (logits + f + g).exp()


def closest_pair(similarity: Float[Tensor, "B H K K"]) -> Pair:
    """The pair i < j with the highest similarity."""
    k = similarity.shape[-1]
    above = torch.ones(k, k, dtype=torch.bool, device=similarity.device).triu(diagonal=1)
    best = similarity.masked_fill(~above, -torch.inf).flatten(2).argmax(dim=-1, keepdim=True)
    return best // k, best % k


def merge(
    values: Float[Tensor, "B H K *c"], i: Int64[Tensor, "B H 1"], j: Int64[Tensor, "B H 1"]
) -> Float[Tensor, "B H k *c"]:
    """The mean of i and j replaces i; j is removed."""
    slots = torch.arange(values.shape[2] - 1, device=values.device)
    rest = take(values, slots + (slots >= j))
    mean = (take(values, i) + take(values, j)) / 2
    is_i = (slots == i).reshape(*rest.shape[:3], *(1 for _ in values.shape[3:]))
    return torch.where(is_i, mean, rest)


def take(
    values: Float[Tensor, "B H K *c"], index: Int64[Tensor, "B H k"]
) -> Float[Tensor, "B H k *c"]:
    """Rows of `values` by index, for each image and head."""
    extra = values.shape[3:]
    shape = (*index.shape, *extra)
    return values.gather(2, index.reshape(*index.shape, *(1 for _ in extra)).expand(shape))
