"""Inputs for tests of the clustering: tokens of random crops, including degenerate ones."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from einops import rearrange
from torch import Tensor

from croc.config import ClusterConfig
from croc.method.clustering.join_split import cluster
from croc.method.types import Clusters

both = pytest.mark.parametrize("variant", ["paper", "released"])


@dataclass(frozen=True)
class Case:
    """The inputs of `cluster` with the views joined, as the oracles take them, in float64."""

    tokens: Tensor
    positions: Tensor
    saliency: Tensor
    seeds: Tensor
    config: ClusterConfig
    views: int = 2

    def changed(self, **fields) -> "Case":
        return replace(self, **fields)

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        """For an oracle, before the seeds."""
        return self.tokens, self.positions, self.saliency

    @property
    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        """For `cluster`: with an axis of views."""
        return (
            rearrange(self.tokens, "b h (m n) d -> m b h n d", m=self.views),
            rearrange(self.positions, "b (m n) c -> m b n c", m=self.views),
            rearrange(self.saliency, "b h (m n) -> m b h n", m=self.views),
        )

    def image(self, b: int) -> "Case":
        """A batch of one image."""
        names = ("tokens", "positions", "saliency", "seeds")
        return self.changed(**{name: getattr(self, name)[b, None] for name in names})

    def to(self, target: torch.dtype | str) -> "Case":
        """Floating-point inputs in another dtype, or all inputs on another device."""
        names = ("tokens", "positions", "saliency", "seeds")
        names = names[:3] if isinstance(target, torch.dtype) else names
        return self.changed(**{name: getattr(self, name).to(target) for name in names})


def run(case: Case, **options) -> Clusters:
    options = {"seeds": case.seeds} | options
    return cluster(*case.split, case.config, **options)


def crop_positions(rng: np.random.Generator, rows: int, columns: int, disjoint: int | None):
    """Patch centers of a random crop, possibly flipped, within the given third if `disjoint`."""
    width, height = rng.uniform(0.2, 0.9, 2)
    left, top = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
    if disjoint is not None:
        left, width = (disjoint + left) / 3, width / 3
    x = left + width * (np.arange(columns) + 0.5) / columns
    y = top + height * (np.arange(rows) + 0.5) / rows
    if rng.random() < 0.5:
        x = x[::-1]
    return np.stack([np.tile(x, rows), np.repeat(y, columns)], -1)


def draw_tokens(rng: np.random.Generator, layout: str, positions: np.ndarray, d: int, views: int):
    """Tokens of one image and head: noise ("random"), noisy prototypes, some of them in one view
    only ("prototypes"), or noisy prototypes by position in the image ("places")."""
    T = len(positions)
    if layout == "random":
        return rng.normal(size=(T, d))
    number = int(rng.integers(2, 7))
    prototypes = rng.normal(size=(number, d))
    if layout == "prototypes":
        labels = rng.integers(0, number, T)
        for m in range(views):
            own = labels[m * (T // views) : (m + 1) * (T // views)]
            own[own == m] = number - 1
    else:
        anchors = rng.uniform(0, 1, (number, 2))
        labels = ((positions[:, None] - anchors) ** 2).sum(-1).argmin(1)
    return prototypes[labels] + rng.uniform(0.01, 0.4) * rng.normal(size=(T, d))


def draw_saliency(rng: np.random.Generator, variant: str, T: int, views: int, empty: bool):
    """Attention that sums to 1, flat or peaked, zero for some tokens if `empty`; or cosines."""
    if variant == "released":
        return rng.uniform(-1, 1, T)
    logits = rng.uniform(0.1, 3) * rng.normal(size=(views, T // views))
    attention = np.exp(logits)
    if empty:
        none = rng.random(attention.shape) < 0.3
        none[:, 0] = False
        attention[none] = 0.0
    return (attention / attention.sum(-1, keepdims=True) / views).reshape(T)


def make_case(
    seed: int,
    config: ClusterConfig,
    *,
    B: int = 2,
    H: int = 2,
    grid: tuple[int, int] = (3, 4),
    d: int = 8,
    views: int = 2,
    layout: str = "places",
    disjoint: bool = False,
    empty: bool = False,
) -> Case:
    rng = np.random.default_rng(seed)
    T = views * grid[0] * grid[1]
    positions = np.stack(
        [
            [crop_positions(rng, *grid, m if disjoint else None) for m in range(views)]
            for _ in range(B)
        ]
    ).reshape(B, T, 2)
    tokens, saliency, seeds = [], [], []
    for b in range(B):
        for _ in range(H):
            tokens.append(draw_tokens(rng, layout, positions[b], d, views))
            saliency.append(draw_saliency(rng, config.variant, T, views, empty))
            seeds.append(rng.permutation(T)[: config.k_start])
    drawn = (np.stack(each).reshape(B, H, *each[0].shape) for each in (tokens, saliency, seeds))
    tokens, saliency, seeds = map(torch.from_numpy, drawn)
    return Case(tokens, torch.from_numpy(positions), saliency, seeds, config, views)
