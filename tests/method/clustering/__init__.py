"""Inputs for the clustering's tests: tokens of crops, with all that may go wrong with them."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from croc.config import ClusterConfig

Layout = Literal["random", "prototypes", "places"]


@dataclass(frozen=True)
class Case:
    """What `cluster` takes, in float64."""

    tokens: Tensor
    positions: Tensor
    saliency: Tensor
    seeds: Tensor
    config: ClusterConfig
    views: int = 2

    def changed(self, **fields) -> "Case":
        return replace(self, **fields)

    def picture(self, b: int) -> "Case":
        """One image of the batch, alone."""
        part = slice(b, b + 1)
        return self.changed(
            tokens=self.tokens[part],
            positions=self.positions[part],
            saliency=self.saliency[part],
            seeds=self.seeds[part],
        )

    def to(self, *args) -> "Case":
        """Floats to another type, or everything to another device."""
        device_only = [arg for arg in args if not isinstance(arg, torch.dtype)]
        return self.changed(
            tokens=self.tokens.to(*args),
            positions=self.positions.to(*args),
            saliency=self.saliency.to(*args),
            seeds=self.seeds.to(*device_only) if device_only else self.seeds,
        )

    @property
    def arguments(self) -> tuple:
        """For `cluster`, or for an oracle after the seeds."""
        return self.tokens, self.positions, self.saliency


def crop_positions(rng: np.random.Generator, rows: int, columns: int, disjoint: int | None):
    """Patch centres of a random crop, perhaps flipped; a `disjoint` crop keeps to its own third."""
    width, height = rng.uniform(0.2, 0.9, 2)
    left, top = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
    if disjoint is not None:
        left, width = (disjoint + left) / 3, width / 3
    x = left + width * (np.arange(columns) + 0.5) / columns
    y = top + height * (np.arange(rows) + 0.5) / rows
    if rng.random() < 0.5:
        x = x[::-1]
    return np.stack([np.tile(x, rows), np.repeat(y, columns)], -1)


def draw_tokens(
    rng: np.random.Generator, layout: Layout, positions: np.ndarray, d: int, views: int
):
    """One head's tokens of one image: noise, a few prototypes of which some belong to one view
    alone, or a few prototypes by their place in the image."""
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
    """Attention that sums to 1, flat or peaked, perhaps with tokens that have none; or cosines."""
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
    layout: Layout = "places",
    disjoint: bool = False,
    empty: bool = False,
) -> Case:
    rng = np.random.default_rng(seed)
    T = views * grid[0] * grid[1]
    positions = np.stack(
        [
            np.concatenate(
                [crop_positions(rng, *grid, m if disjoint else None) for m in range(views)]
            )
            for _ in range(B)
        ]
    )
    tokens, saliency, seeds = [], [], []
    for b in range(B):
        for _ in range(H):
            tokens.append(draw_tokens(rng, layout, positions[b], d, views))
            saliency.append(draw_saliency(rng, config.variant, T, views, empty))
            seeds.append(rng.permutation(T)[: config.k_start])
    return Case(
        tokens=torch.from_numpy(np.stack(tokens).reshape(B, H, T, d)),
        positions=torch.from_numpy(positions),
        saliency=torch.from_numpy(np.stack(saliency).reshape(B, H, T)),
        seeds=torch.from_numpy(np.stack(seeds).reshape(B, H, config.k_start)),
        config=config,
        views=views,
    )
