"""`croc show clusters`: from a run and some photographs to the picture of their clusters."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from croc.config import CrocConfig
from croc.lab.show.figures import Found, choose_heads, cluster_figure
from croc.lab.show.look import (
    WHOLE_PX,
    Look,
    grid_of,
    keys_of,
    look_at_run,
    read_photographs,
    to_canvases,
    whole_to_cluster,
)
from croc.method.backbone import Backbone
from croc.method.croc import locate
from croc.method.photometric import unnormalise
from croc.method.types import Canvases, Clusters, Views
from croc.method.views import make_views
from croc.photographs import own_photographs


def show_clusters(run: Path, images: tuple[str, ...], to: str | None, seed: int) -> Path:
    """Write the picture of a run's clusters and return where it lies."""
    return draw_clusters(look_at_run(run), images, to, seed)


def draw_clusters(
    look: Look,
    images: tuple[str, ...],
    to: str | None,
    seed: int,
    heads: Iterable[int] | None = None,
    side_px: int | None = None,
) -> Path:
    """Two augmented views of each image; with a side, instead the whole image at that size."""
    config, path = look.croc, look.picture("clusters", to)
    if not images and look.folder is None:  # weights have no data of their own
        images = own_photographs()
    longest_px = config.data.canvas_px if side_px is None else WHOLE_PX
    pictures = read_photographs(config, images, longest_px)
    if side_px is None:
        found = _in_views(look, pictures, seed)
    else:
        keys = keys_of(seed, len(pictures)).split(1)
        found = [_in_whole(look, *each, side_px) for each in zip(pictures, keys)]
    chosen = choose_heads(heads, found[0].clusters.valid.shape[1])
    tokens, k = config.cluster.tokens, config.cluster.k_start
    cluster_figure(found, chosen, path, f"{look.title}: {tokens}, K from {k}")
    return path


def _in_views(look: Look, pictures: list[np.ndarray], seed: int) -> list[Found]:
    canvases = to_canvases(pictures, look.config.data.canvas_px, seed)
    views, clusters = find_clusters(look.croc, look.backbone, canvases)
    return separate(views, clusters, look.backbone.patch_px)


def _in_whole(look: Look, picture: np.ndarray, key: Int64[Tensor, "1"], side_px: int) -> Found:
    """One by one: their sizes differ."""
    views = whole_to_cluster(look, picture, side_px)
    clusters = find_in_views(look.croc, look.backbone, views, key)
    return separate(views, clusters, look.backbone.patch_px)[0]


def find_clusters(
    config: CrocConfig, backbone: Backbone, canvases: Canvases
) -> tuple[Views, Clusters]:
    """What the training step sees: two augmented views and their joint clusters."""
    views = make_views(canvases, config.views, backbone.patch_px)
    return views, find_in_views(config, backbone, views, canvases.keys)


@torch.no_grad()
def find_in_views(
    config: CrocConfig, backbone: Backbone, views: Views, keys: Int64[Tensor, "B"]
) -> Clusters:
    tokens = backbone.describe(views.pixels, config.cluster.tokens)
    return locate(tokens, views, keys, config.cluster)


def separate(views: Views, clusters: Clusters, patch_px: int) -> list[Found]:
    """Image by image, in colours again."""
    pixels, grid = unnormalise(views.pixels.cpu()), grid_of(views, patch_px)
    return [
        Found(
            pixels[:, b],
            grid,
            Clusters(
                clusters.assignments[:, b : b + 1].cpu(),
                clusters.valid[b : b + 1].cpu(),
                clusters.cost[b : b + 1].cpu(),
                clusters.count[b : b + 1].cpu(),
            ),
        )
        for b in range(pixels.shape[1])
    ]
