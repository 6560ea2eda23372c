"""Two crops through a network: their joint clusters, the merging, similarities of patches.

What is clustered here is what `method.croc.locate` clusters for the same boxes; nothing is
augmented, so that the page shows what a user pointed at.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from croc.lab.app.asked import Asked, Box
from croc.lab.app.maps import cluster_tiles, to_png
from croc.lab.app.models import Model
from croc.lab.app.pictures import Picture
from croc.lab.app.recent import Recent
from croc.method.clustering.softness import softness
from croc.method.clustering.trace import Trace, trace_views
from croc.method.croc import locate, saliency
from croc.method.photometric import normalise
from croc.method.randomness import sample_key
from croc.method.types import Clusters, Tokens, Views
from croc.method.views import Crops, crop, patch_centres

HELD = 24
"""Tokens of two crops are some 2 MB for a ViT-S."""
WHOLE = 2
"""The whole photograph is seen at this many times a crop's side."""
# Keeps a map of equal values from being divided by nothing.
LEAST_SPAN = 1e-6


class Explorer:
    """Belongs to the worker's thread: nothing here is locked."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models = models
        self._seen: Recent[tuple[Any, ...], tuple[Views, Tokens]] = Recent(HELD)
        self._wholes: Recent[tuple[Any, ...], tuple[Tensor, int]] = Recent(HELD)

    def clusters(self, asked: Asked) -> dict[str, Any]:
        """The maps of all heads: with them the page can change heads without asking."""
        start = time.perf_counter()
        views, tokens = self.look(asked)
        looked = time.perf_counter()
        found = locate(tokens, views, _keys(asked), asked.config)
        located = time.perf_counter()
        shares = found.assignments[:, 0].transpose(0, 1)
        rows = self.models[asked.model].grid
        maps = cluster_tiles(shares[..., : int(found.count.max())], rows)
        end = time.perf_counter()
        return {
            "grid": rows,
            "columns": int(found.count.max()),
            "heads": _describe_heads(found),
            "maps": maps,
            "ms": _milliseconds(network=looked - start, clusters=located - looked, all=end - start),
        }

    def trace(self, asked: Asked) -> dict[str, Any]:
        """The merging of one head from K_start to 2."""
        views, tokens = self.look(asked)
        weights = saliency(tokens, asked.config)
        places = (tokens.heads, views.positions, weights)
        trace = trace_views(*places, asked.config, keys=_keys(asked))
        head, k_start = asked.head, asked.config.k_start
        shares = [
            F.pad(step.assignments[:, 0, head], (0, k_start - step.assignments.shape[-1]))
            for step in trace.steps
        ]
        rows = self.models[asked.model].grid
        return {
            "grid": rows,
            "columns": k_start,
            "chosen": int(trace.count[0, head]),
            "steps": _describe_steps(trace, head),
            "maps": cluster_tiles(torch.stack(shares), rows),
        }

    def similarity(self, asked: Asked) -> dict[str, Any]:
        """Cosines of one patch with all of both crops, and with the whole photograph's."""
        _, tokens = self.look(asked)
        whole, rows = self.look_at_whole(asked)
        patches = F.normalize(tokens.heads[:, 0, asked.head], dim=-1)
        picked = patches[asked.view, asked.patch]
        near, far = patches @ picked, F.normalize(whole[asked.head], dim=-1) @ picked
        low = float(torch.minimum(near.amin(), far.amin()))
        span = max(1 - low, LEAST_SPAN)
        grid = self.models[asked.model].grid
        return {
            "grid": grid,
            "low": low,
            "crops": to_png(((near - low) / span).reshape(-1, grid)),
            "whole": to_png(((far - low) / span).reshape(rows, -1)),
        }

    def look(self, asked: Asked) -> tuple[Views, Tokens]:
        """Both crops through the network; what was seen a moment ago is remembered."""
        key = (asked.model, asked.picture.id, asked.boxes, asked.config.tokens)
        seen = self._seen.get(key)
        if seen is None:
            model = self.models[asked.model]
            views = cut(asked.picture, asked.boxes, model)
            seen = views, model.backbone.describe(views.pixels, asked.config.tokens)
            self._seen.put(key, seen)
        return seen

    def look_at_whole(self, asked: Asked) -> tuple[Float[Tensor, "H N d"], int]:
        """The photograph's tokens, and the number of their rows."""
        key = (asked.model, asked.picture.id, asked.config.tokens)
        seen = self._wholes.get(key)
        if seen is None:
            model, picture = self.models[asked.model], asked.picture
            pixels = _whole_pixels(picture, model)
            tokens = model.backbone.describe(pixels[None], asked.config.tokens)
            seen = tokens.heads[0, 0], pixels.shape[-2] // model.backbone.patch_px
            self._wholes.put(key, seen)
        return seen


def cut(picture: Picture, boxes: tuple[Box, Box], model: Model) -> Views:
    """The boxes as the network's views, and where their patches lie."""
    places = torch.tensor(boxes, dtype=torch.float32)[:, None]
    flips = torch.zeros(len(boxes), 1, dtype=torch.bool)
    sizes = torch.tensor([[picture.height, picture.width]])
    pixels = crop(picture.canvas[None], Crops(places, flips), model.view_px)
    patch_px = model.backbone.patch_px
    positions = patch_centres(places, flips, sizes, model.view_px, patch_px)
    return Views(normalise(pixels), positions)


def _whole_pixels(picture: Picture, model: Model) -> Float[Tensor, "1 3 h w"]:
    """The whole photograph in whole patches, its shape kept as nearly as they allow."""
    image = picture.canvas[None, :, : picture.height, : picture.width] / 255
    patches = WHOLE * model.grid / max(picture.height, picture.width)
    sides = [max(1, round(side * patches)) for side in (picture.height, picture.width)]
    size = [side * model.backbone.patch_px for side in sides]
    return normalise(F.interpolate(image, size=size, mode="bicubic", antialias=True).clamp(0, 1))


def _keys(asked: Asked) -> Tensor:
    return torch.tensor([sample_key(asked.seed, 0, 0)])


def _describe_heads(found: Clusters) -> list[dict[str, Any]]:
    largest = softness(found.assignments)[1]
    parts = (each[0].tolist() for each in (found.count, found.valid, found.cost, largest))
    return [
        {"k": k, "valid": kept[:k], "shared": sum(kept), "cost": at, "share": share}
        for k, kept, at, share in zip(*parts)
    ]


def _describe_steps(trace: Trace, head: int) -> list[dict[str, Any]]:
    colours = follow_colours(trace, head)
    return [
        {
            "k": step.valid.shape[-1],
            "cost": float(step.cost[0, head]),
            "share": float(softness(step.assignments)[1][0, head]),
            "valid": step.valid[0, head].tolist(),
            "colours": colours[step.valid.shape[-1]],
        }
        for step in trace.steps
    ]


def follow_colours(trace: Trace, head: int) -> dict[int, list[int]]:
    """For each k the colours of its columns, so that a cluster keeps its colour as others merge.

    The chosen step's are 0, 1, 2 …, as outside of the merging. Of two that become one on the way
    down, the one keeps its colour; on the way up, the second of the two gets the next new one.
    """
    chosen = int(trace.count[0, head])
    into = {
        step.valid.shape[-1] + 1: step.into[0, head].tolist()
        for step in trace.steps
        if step.into is not None
    }
    colours = {chosen: list(range(chosen))}
    for k in range(chosen + 1, trace.steps[0].valid.shape[-1] + 1):
        targets = into[k]
        fresh = [target in targets[:column] for column, target in enumerate(targets)]
        below = colours[k - 1]
        colours[k] = [k - 1 if new else below[target] for new, target in zip(fresh, targets)]
    for k in range(chosen, 2, -1):
        first = {target: column for column, target in reversed(list(enumerate(into[k])))}
        colours[k - 1] = [colours[k][first[column]] for column in range(k - 1)]
    return colours


def _milliseconds(**seconds: float) -> dict[str, float]:
    return {name: round(value * 1000, 1) for name, value in seconds.items()}
