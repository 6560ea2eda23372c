"""Two crops through a network: their joint clusters, the merging, similarities of patches.

The clusters are those of `method.croc.locate` for the same boxes; nothing is augmented, so the page
shows what the user pointed at.
"""

import base64
import io
import os
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from PIL import Image
from starlette.exceptions import HTTPException
from torch import Tensor

from croc.lab.app.models import Model
from croc.lab.app.pictures import Picture
from croc.lab.app.requests import Box, Query
from croc.lab.show.look import whole_view
from croc.method.clustering.paper import softness
from croc.method.clustering.trace import Trace, trace_views
from croc.method.croc import locate, saliency
from croc.method.photometric import normalise
from croc.method.randomness import sample_key
from croc.method.types import Tokens, Views
from croc.method.views import Crops, crop, patch_centres

MAX_WAITING = 64
MAX_THREADS = 8
CACHED = 24
"""Tokens of two crops take some 2 MB for a ViT-S."""


class Worker:
    """One thread that answers in order; torch's threads belong to it. Used by one other thread."""

    def __init__(self) -> None:
        # One core is left to browser and server: each of torch's operations waits for all of its
        # threads, so competing for cores would slow answers down several times.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = max(1, min(MAX_THREADS, (cores or 1) - 1))
        self._pool = ThreadPoolExecutor(1, "croc explorer", torch.set_num_threads, (threads,))
        self._waiting: dict[Hashable, Future[Any]] = {}

    def submit(self, lane: Hashable, work: Callable[[], Any]) -> Future[Any]:
        """Cancels the request of the same lane if it still waits; None replaces nothing."""
        self._waiting = {old: job for old, job in self._waiting.items() if not job.done()}
        if lane in self._waiting:
            self._waiting[lane].cancel()
        elif len(self._waiting) > MAX_WAITING:
            raise HTTPException(503, "Too many requests are waiting: try again in a moment.")
        future = self._pool.submit(torch.inference_mode()(work))
        self._waiting[object() if lane is None else lane] = future
        return future

    def close(self) -> None:
        """Ends the thread after its current job; those that wait are cancelled."""
        self._pool.shutdown(cancel_futures=True)


class Explorer:
    """Answers queries, in the worker's thread only. The last tokens are cached, so that sliders
    only cluster again."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models = models
        self._look = lru_cache(CACHED)(self._look_at_crops)
        self._look_whole = lru_cache(CACHED)(self._look_at_whole)

    def clusters(self, query: Query) -> dict[str, Any]:
        """The maps of all heads, so that the page can switch heads by itself."""
        start = time.perf_counter()
        views, tokens = self._views(query)
        seen = time.perf_counter()
        clusters = locate(tokens, views, _keys(query), query.config)
        clustered = time.perf_counter()
        columns, grid = int(clusters.count.max()), self.models[query.model].grid
        maps = cluster_tiles(clusters.assignments[:, 0, ..., :columns].transpose(0, 1), grid)
        spent = (seen - start, clustered - seen, time.perf_counter() - start)
        largest = softness(clusters.assignments)[1]
        heads = zip(
            *(v[0].tolist() for v in (clusters.count, clusters.valid, clusters.cost, largest))
        )
        return {
            "grid": grid,
            "columns": columns,
            "heads": [
                {"k": k, "valid": valid[:k], "shared": sum(valid), "cost": cost, "share": share}
                for k, valid, cost, share in heads
            ],
            "maps": maps,
            "ms": dict(zip(("network", "clusters", "all"), (round(1000 * s, 1) for s in spent))),
        }

    def trace(self, query: Query) -> dict[str, Any]:
        """The merging of one head from K_start to 2."""
        views, tokens = self._views(query)
        weights = saliency(tokens, query.config)
        trace = trace_views(tokens.heads, views.positions, weights, query.config, keys=_keys(query))
        head, k_start = query.head, query.config.k_start
        colours = follow_colours(trace, head)
        shares = [
            F.pad(step.assignments[:, 0, head], (0, k_start - step.assignments.shape[-1]))
            for step in trace.steps
        ]
        grid = self.models[query.model].grid
        return {
            "grid": grid,
            "columns": k_start,
            "chosen": int(trace.count[0, head]),
            "steps": [
                {
                    "k": step.valid.shape[-1],
                    "cost": float(step.cost[0, head]),
                    "share": float(softness(step.assignments)[1][0, head]),
                    "valid": step.valid[0, head].tolist(),
                    "colours": colours[step.valid.shape[-1]],
                }
                for step in trace.steps
            ],
            "maps": cluster_tiles(torch.stack(shares), grid),
        }

    def similarity(self, query: Query) -> dict[str, Any]:
        """Cosines of one patch with all patches of both crops and of the whole photograph."""
        _, tokens = self._views(query)
        whole, rows = self._look_whole(query.model, query.picture, query.config.tokens)
        patches = F.normalize(tokens.heads[:, 0, query.head], dim=-1)
        patch = patches[query.view, query.patch]
        near, far = patches @ patch, F.normalize(whole[query.head], dim=-1) @ patch
        low = float(torch.minimum(near.amin(), far.amin()))
        span = max(1 - low, 1e-6)
        grid = self.models[query.model].grid
        return {
            "grid": grid,
            "low": low,
            "crops": to_png(((near - low) / span).reshape(-1, grid)),
            "whole": to_png(((far - low) / span).reshape(rows, -1)),
        }

    def _views(self, query: Query) -> tuple[Views, Tokens]:
        return self._look(query.model, query.picture, query.boxes, query.config.tokens)

    def _look_at_crops(
        self, number: int, picture: Picture, boxes: tuple[Box, Box], kind: str
    ) -> tuple[Views, Tokens]:
        model = self.models[number]
        places = torch.tensor(boxes, dtype=torch.float32)[:, None]
        flips = torch.zeros(2, 1, dtype=torch.bool)
        sizes = torch.tensor([[picture.height, picture.width]])
        pixels = normalise(crop(picture.canvas[None], Crops(places, flips), model.view_px))
        patch_px = model.backbone.patch_px
        positions = patch_centres(places, flips, sizes, model.view_px, patch_px)
        return Views(pixels, positions), model.backbone.describe(pixels, kind)

    def _look_at_whole(
        self, number: int, picture: Picture, kind: str
    ) -> tuple[Float[Tensor, "H N d"], int]:
        """The photograph's tokens, seen at twice a crop's side, and their number of rows."""
        model = self.models[number]
        patch_px = model.backbone.patch_px
        image = picture.canvas[:, : picture.height, : picture.width].permute(1, 2, 0).numpy()
        pixels = whole_view(image, 2 * model.grid * patch_px, patch_px).pixels
        return model.backbone.describe(pixels, kind).heads[0, 0], pixels.shape[-2] // patch_px


def _keys(query: Query) -> Tensor:
    return torch.tensor([sample_key(query.seed, 0, 0)])


def follow_colours(trace: Trace, head: int) -> dict[int, list[int]]:
    """For each k the colours of its columns, so that a cluster keeps its colour as others merge.

    Those of the chosen step are 0, 1, 2 …, as outside the merging. Where two clusters become one,
    it keeps the first one's colour; on the way up, the second of the two gets the next new one.
    """
    chosen = int(trace.count[0, head])
    into = {
        step.valid.shape[-1] + 1: step.into[0, head].tolist()
        for step in trace.steps
        if step.into is not None
    }
    colours = {chosen: list(range(chosen))}
    for k in range(chosen + 1, trace.steps[0].valid.shape[-1] + 1):
        targets, below = into[k], colours[k - 1]
        is_new = [target in targets[:column] for column, target in enumerate(targets)]
        colours[k] = [k - 1 if new else below[target] for new, target in zip(is_new, targets)]
    for k in range(chosen, 2, -1):
        colours[k - 1] = [colours[k][into[k].index(column)] for column in range(k - 1)]
    return colours


def cluster_tiles(assignments: Float[Tensor, "L M N K"], rows: int) -> str:
    """One PNG: a row of tiles for each of L layers (heads or steps) and view, a column for each
    cluster. The shares of a patch sum to 1, so 8 bits suffice in both variants; a row of the
    released variant may be all zero."""
    shares = assignments / assignments.sum(dim=-1, keepdim=True).clamp_min(1e-12)
    return to_png(rearrange(shares, "l m (r c) k -> (l m r) (k c)", r=rows))


def to_png(values: Float[Tensor, "h w"]) -> str:
    """Values in 0 … 1 as a gray PNG, in a data URL."""
    gray = (values * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    file = io.BytesIO()
    Image.fromarray(gray).save(file, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
