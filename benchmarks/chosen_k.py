"""Which K the clustering chooses, and what it depends on: the image, the head, or the seeds.

    python -m benchmarks.chosen_k --run runs/a runs/b

The views of an image are fixed and only the initial centroids are drawn again, so `seeds` is the
share of K's variance that is due to chance. The rest is split between the means of images, the
means of heads, and their interaction (`both`). The estimates are unbiased, so a share of zero may
be slightly negative.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from benchmarks.common import run, this_device
from croc.data.sources import open_source, read_images
from croc.lab.show.look import Look, keys_of, look_at_run, to_canvases
from croc.method.croc import cluster_tokens
from croc.method.views import make_views

BATCH = 32


@torch.no_grad()
def choose(look: Look, images: int, seeds: int, device: torch.device) -> Int64[Tensor, "S B H"]:
    """K for every seed, image and head."""
    config, backbone = look.croc, look.backbone.to(device)
    source = open_source(config.data, config.run.seed)
    pictures = [x for _, x in islice(read_images(source, range(len(source))), images)]
    chosen: list[Tensor] = []
    for start in range(0, len(pictures), BATCH):
        part = pictures[start : start + BATCH]
        canvases = to_canvases(part, config.data.max_side_px, start).to(device)
        views = make_views(canvases, config.views, backbone.patch_px)
        tokens = backbone.forward_tokens(views.pixels, config.cluster.tokens)
        keys = (keys_of(seed, len(pictures))[start : start + BATCH] for seed in range(seeds))
        counts = [cluster_tokens(tokens, views, k.to(device), config.cluster).count for k in keys]
        chosen.append(torch.stack(counts).cpu())
    return torch.cat(chosen, dim=1)


def analyze(run: str, k: Int64[Tensor, "S B H"]) -> dict[str, Any]:
    """Mean, variance, its shares (with sum 1, or all 0 if K is constant), and histogram."""
    seeds, images, heads = k.shape
    values = k.double()
    chance = values.var(dim=0).mean()
    cells = values.mean(dim=0)  # images, heads; the means still contain some chance
    between = cells.var(correction=0) - chance / seeds
    by_image = cells.mean(dim=1).var(correction=0) - chance / (seeds * heads)
    by_head = cells.mean(dim=0).var(correction=0) - chance / (seeds * images)
    total = chance + between
    parts = torch.stack([chance, by_image, by_head, between - by_image - by_head])
    shares = (parts / total if total > 0 else torch.zeros(4)).tolist()
    return {
        "run": run,
        "mean": values.mean().item(),
        "variance": total.item(),
        **dict(zip(("seeds", "images", "heads", "both"), shares)),
        "histogram": {int(value): (k == value).double().mean().item() for value in k.unique()},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", nargs="+", required=True, help="folders of runs")
    parser.add_argument("--images", type=int, default=256, help="number of training images")
    parser.add_argument("--seeds", type=int, default=8, help="clusterings of each image, 2 or more")
    options = parser.parse_args(arguments)
    for folder in map(Path, options.run):
        k = choose(look_at_run(folder), options.images, options.seeds, this_device())
        print(json.dumps(analyze(folder.name, k)))


if __name__ == "__main__":
    run(main)
