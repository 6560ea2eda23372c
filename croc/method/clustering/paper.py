"""Locate, as the paper's text describes it, computed in the log domain.

Every step runs all images and heads at once: each loses exactly one centroid per step, so the
tensors get one column narrower. Nothing depends on which images share a batch.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from croc.config import ClusterConfig
from croc.method.clustering.steps import Step, closest_pair, distances, sinkhorn, take

# Instead of 0, so that tokens without saliency are assigned too, and images without any.
LEAST_SALIENCY = 1e-20


def paper_steps(
    tokens: Float[Tensor, "B H T d"],
    positions: Float[Tensor, "B T 2"],
    saliency: Float[Tensor, "B H T"],
    seeds: Int64[Tensor, "B H K"],
    config: ClusterConfig,
) -> Iterator[Step]:
    """Cluster with K_start centroids, merge two, cluster again, down to two; unit tokens."""
    rows = saliency.clamp_min(LEAST_SALIENCY)
    # Relative to their own corner, so that rounding is not amplified where they all coincide.
    positions = positions - positions.amin(dim=1, keepdim=True)
    span = diagonal(positions)
    centroids = take(tokens, seeds)
    centres = take(positions[:, None].expand(-1, tokens.shape[1], -1, -1), seeds)
    importance = take(rows, seeds)  # Yᵀr: averaging columns of Y averages its entries
    pair = None

    while True:
        cost = transport_cost(tokens, centroids, positions, centres, span, config)
        columns = importance.softmax(dim=-1)
        plan = sinkhorn(cost, rows, columns, config.sharpness, config.sinkhorn_iterations)
        yield Step(plan / plan.sum(dim=-1, keepdim=True), (plan * cost).sum(dim=(-2, -1)), pair)
        if cost.shape[-1] == 2:
            return
        weights = plan / plan.sum(dim=-2, keepdim=True)
        centroids = torch.einsum("bhtk,bhtd->bhkd", weights, tokens)
        centres = torch.einsum("bhtk,btc->bhkc", weights, positions)
        unit = F.normalize(centroids, dim=-1)
        pair = closest_pair(unit @ unit.mT)
        centroids, centres, importance = (
            merge(values, *pair) for values in (centroids, centres, importance)
        )


def diagonal(positions: Float[Tensor, "B T 2"]) -> Float[Tensor, "B 1 1 1"]:
    """S: diagonal of the box around the joined tokens, from its corner at 0; none is farther."""
    return positions.amax(dim=1).norm(dim=-1).clamp_min(1e-12)[:, None, None, None]


def transport_cost(
    tokens: Float[Tensor, "B H T d"],
    centroids: Float[Tensor, "B H K d"],
    positions: Float[Tensor, "B T 2"],
    centres: Float[Tensor, "B H K 2"],
    span: Float[Tensor, "B 1 1 1"],
    config: ClusterConfig,
) -> Float[Tensor, "B H T K"]:
    """−cosine + λ_pos · distance / S; for λ_pos = ∞, distance / S alone."""
    positional = distances(positions, centres) / span
    weight = config.position_weight
    if math.isinf(weight):
        return positional
    semantic = -tokens @ F.normalize(centroids, dim=-1).mT
    return semantic + weight * positional


def merge(
    values: Float[Tensor, "B H K *c"], i: Int64[Tensor, "B H 1"], j: Int64[Tensor, "B H 1"]
) -> Float[Tensor, "B H k *c"]:
    """The mean of i and j replaces i; j is removed."""
    slots = torch.arange(values.shape[2] - 1, device=values.device)
    kept = take(values, slots + (slots >= j))
    mean = (take(values, i) + take(values, j)) / 2
    here = (slots == i).reshape(*kept.shape[:3], *(1 for _ in values.shape[3:]))
    return torch.where(here, mean, kept)
