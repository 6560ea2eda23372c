"""Clustering exactly as in the authors' released code (docs/method.md).

That code produced the paper's results; use this to compare with them. Its costs are scaled over the
whole batch, so the clusters of an image depend on the rest of the batch.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor

from croc.config import ClusterConfig
from croc.method.clustering.paper import Step, closest_pair, distances, take

SALIENCY_TEMPERATURE = 2.0
"""Temperature of the softmax that turns cosines into probabilities."""


def released_steps(
    tokens: Float[Tensor, "B H T d"],
    positions: Float[Tensor, "B T 2"],
    cosine: Float[Tensor, "B H T"],
    seeds: Int64[Tensor, "B H K"],
    config: ClusterConfig,
    views: int,
) -> Iterator[Step]:
    """Cluster unit tokens with K_start centroids, merge two, cluster again, until two are left."""
    rows = (cosine / SALIENCY_TEMPERATURE).softmax(dim=-1)
    columns = (take(cosine, seeds) / SALIENCY_TEMPERATURE).softmax(dim=-1)
    centroids = take(tokens, seeds)
    centroid_positions = take(positions[:, None].expand(-1, tokens.shape[1], -1, -1), seeds)
    pair = None

    while True:
        cost = batch_cost(tokens, centroids, distances(positions, centroid_positions), config)
        plan = released_sinkhorn(cost, rows, columns, config)
        yield Step(share_of_view(plan, views), (plan * cost).sum(dim=(-2, -1)), pair)
        if cost.shape[-1] == 2:
            return
        updated = torch.einsum("bhtk,bhtd->bhkd", share(plan), tokens)
        pair = closest_pair(updated @ updated.mT)
        weights = share(add_columns(plan, *pair))
        centroids = torch.einsum("bhtk,bhtd->bhkd", weights, tokens)
        centroid_positions = torch.einsum("bhtk,btc->bhkc", weights, positions)
        columns = torch.einsum("bht,bhtk->bhk", rows, weights)
        columns = columns / columns.sum(dim=-1, keepdim=True)


def batch_cost(
    tokens: Float[Tensor, "B H T d"],
    centroids: Float[Tensor, "B H K d"],
    distance: Float[Tensor, "B H T K"],
    config: ClusterConfig,
) -> Float[Tensor, "B H T K"]:
    """−cosine + λ_pos · distance / largest distance, min–max scaled to [0, 1] over the batch; for
    λ_pos = ∞, the distance alone."""
    cost = distance / distance.amax(dim=(-2, -1), keepdim=True).clamp_min(1e-12)
    if not math.isinf(config.position_weight):
        semantic = -tokens @ F.normalize(centroids, dim=-1).mT
        cost = semantic + config.position_weight * cost
    return (cost - cost.amin()) / (cost.amax() - cost.amin()).clamp_min(1e-12)


def released_sinkhorn(
    cost: Float[Tensor, "B H T K"],
    rows: Float[Tensor, "B H T"],
    columns: Float[Tensor, "B H K"],
    config: ClusterConfig,
) -> Float[Tensor, "B H T K"]:
    """Sinkhorn on exp(−λ cost), without logarithms; NaNs are replaced by 1e-8."""
    plan = torch.exp(-config.sharpness * cost)
    plan = plan / plan.sum(dim=(-2, -1), keepdim=True)
    for _ in range(config.sinkhorn_iterations):
        plan = plan * (rows / plan.sum(dim=-1))[..., None]
        plan = plan * (columns / plan.sum(dim=-2))[..., None, :]
    return plan.nan_to_num(nan=1e-8)


def share(plan: Float[Tensor, "*batch T K"]) -> Float[Tensor, "*batch T K"]:
    """W: every column divided by its sum."""
    return plan / plan.sum(dim=-2, keepdim=True)


def share_of_view(plan: Float[Tensor, "B H T K"], views: int) -> Float[Tensor, "B H T K"]:
    """Every column divided by its sum within each view."""
    split = rearrange(plan, "b h (m n) k -> b h m n k", m=views)
    return rearrange(share(split), "b h m n k -> b h (m n) k")


def add_columns(
    plan: Float[Tensor, "B H T K"], i: Int64[Tensor, "B H 1"], j: Int64[Tensor, "B H 1"]
) -> Float[Tensor, "B H T k"]:
    """Remove the columns i < j and append their sum."""
    columns = plan.mT
    slots = torch.arange(columns.shape[2] - 2, device=plan.device)
    others = slots + (slots >= i)
    others = others + (others >= j)
    total = take(columns, i) + take(columns, j)
    return torch.cat([take(columns, others), total], dim=2).mT
