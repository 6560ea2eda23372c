"""All merging steps, for plots; `cluster` returns only the chosen one.

Computed by the PyTorch reference; the kernel does not write its steps.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from croc.config import ClusterConfig
from croc.method.clustering.join_split import merge_steps, prepare, select_k, split
from croc.method.clustering.paper import Step, merge
from croc.method.clustering.released import add_columns


@dataclass(frozen=True)
class TraceStep:
    """The clusters at k centroids, as `Clusters` has them for the chosen K."""

    assignments: Float[Tensor, "M B H N k"]
    valid: Bool[Tensor, "B H k"]
    cost: Float[Tensor, "B H"]
    merged: Int64[Tensor, "B H 2"] | None
    """The two columns of the previous step that were merged; None at K_start."""
    into: Int64[Tensor, "B H before"] | None
    """For every column of the previous step, its column here; None at K_start."""


@dataclass(frozen=True)
class Trace:
    """The steps from K_start to 2, and the K that the PyTorch reference chooses."""

    steps: tuple[TraceStep, ...]
    count: Int[Tensor, "B H"]

    def at(self, k: int) -> TraceStep:
        return self.steps[len(self.steps) + 1 - k]

    @property
    def costs(self) -> Float[Tensor, "B H steps"]:
        return torch.stack([step.cost for step in self.steps], dim=-1)


@torch.no_grad()
def trace_views(
    tokens: Float[Tensor, "M B H N d"],
    positions: Float[Tensor, "M B N 2"],
    saliency: Float[Tensor, "M B H N"],
    config: ClusterConfig,
    *,
    seeds: Int[Tensor, "B H K"] | None = None,
    keys: Int64[Tensor, "B"] | None = None,
) -> Trace:
    """Every step of `cluster` with the same arguments."""
    with torch.autocast(tokens.device.type, enabled=False):
        positions, saliency, seeds = prepare(tokens, positions, saliency, config, seeds, keys)
        steps = list(merge_steps(tokens, positions, saliency, seeds, config))
        _, _, count = select_k(iter(steps), config)
        return Trace(tuple(_split(step, config, len(tokens)) for step in steps), count)


def _split(step: Step, config: ClusterConfig, views: int) -> TraceStep:
    k = step.assignments.shape[-1]
    count = torch.full_like(step.cost, k, dtype=torch.long)
    clusters = split(step.assignments, step.cost, count, config, views)
    merged = None if step.merged is None else torch.cat(step.merged, dim=-1)
    into = None if step.merged is None else _follow(*step.merged, k + 1, config)
    return TraceStep(clusters.assignments, clusters.valid, step.cost, merged, into)


def _follow(
    i: Int64[Tensor, "B H 1"], j: Int64[Tensor, "B H 1"], before: int, config: ClusterConfig
) -> Int64[Tensor, "B H before"]:
    """Where each column went: the variant's merge, applied to one-hot codes of the columns."""
    names = torch.eye(before, device=i.device).expand(*i.shape[:2], -1, -1)
    moved = add_columns(names, i, j) if config.variant == "released" else merge(names, i, j).mT
    return moved.argmax(dim=-1)
