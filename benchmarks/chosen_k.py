"""Which K the clustering chooses, and what it depends on: the image, the head, or the seeds.

    python -m benchmarks.chosen_k --run runs/a runs/b --to k.png

Each image keeps its two views; only the tokens that the centroids start from are drawn anew, so
`seeds` is the share of K's variance that is chance. What is left is split between the means of the
images, those of the heads, and the two together. All are estimates without bias, so that a share of
nothing may come out a little below 0. The figures go to k.json, beside the picture.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Int64
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from benchmarks.command import run
from benchmarks.surroundings import hardware, versions
from croc.data import open_source
from croc.lab.show.figures import PALETTE
from croc.lab.show.look import Look, keys_of, look_at_run, readable, to_canvases
from croc.method.croc import locate
from croc.method.views import make_views

AT_ONCE = 32


@dataclass(frozen=True)
class ChosenK:
    """Of one run. The shares add up to 1; where K never varies they are 0."""

    run: str
    mean: float
    variance: float
    seeds: float
    images: float
    heads: float
    both: float
    histogram: dict[int, float]
    """Share of the (seed, image, head) triples that chose this K."""


@torch.no_grad()
def choose(look: Look, images: int, seeds: int, device: torch.device) -> Int64[Tensor, "S B H"]:
    """The K of every seed, image and head."""
    config, backbone = look.croc, look.backbone.to(device)
    pictures = list(islice(readable(open_source(config.data, config.run.seed)), images))
    found: list[Tensor] = []
    for start in range(0, len(pictures), AT_ONCE):
        part = pictures[start : start + AT_ONCE]
        canvases = to_canvases(part, config.data.canvas_px, start).to(device)
        views = make_views(canvases, config.views, backbone.patch_px)
        tokens = backbone.describe(views.pixels, config.cluster.tokens)
        drawn = (keys_of(seed, len(pictures))[start : start + AT_ONCE] for seed in range(seeds))
        counts = [locate(tokens, views, k.to(device), config.cluster).count for k in drawn]
        found.append(torch.stack(counts).cpu())
    return torch.cat(found, dim=1)


def analyse(run: str, k: Int64[Tensor, "S B H"]) -> ChosenK:
    seeds, images, heads = k.shape
    values = k.double()
    chance = values.var(dim=0).mean()
    cells = values.mean(dim=0)  # images, heads; in each mean some of the chance is left
    between = cells.var(correction=0) - chance / seeds
    by_image = cells.mean(dim=1).var(correction=0) - chance / (seeds * heads)
    by_head = cells.mean(dim=0).var(correction=0) - chance / (seeds * images)
    total = chance + between
    parts = torch.stack([chance, by_image, by_head, between - by_image - by_head])
    of_seeds, of_images, of_heads, of_both = (
        parts / total if total > 0 else torch.zeros(4)
    ).tolist()
    counted = {int(each): (k == each).double().mean().item() for each in k.unique()}
    return ChosenK(
        run,
        mean=values.mean().item(),
        variance=total.item(),
        seeds=of_seeds,
        images=of_images,
        heads=of_heads,
        both=of_both,
        histogram=counted,
    )


def draw(found: Sequence[ChosenK], to: Path) -> None:
    figure = Figure(figsize=(7, 3.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(found)
    for place, each in enumerate(found):
        across = [k + (place - (len(found) - 1) / 2) * width for k in each.histogram]
        label = f"{each.run}: mean {each.mean:.1f}, {each.seeds:.0%} of the variance by chance"
        colour = PALETTE[place % len(PALETTE)].tolist()
        axes.bar(across, list(each.histogram.values()), width, color=colour, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("K", fontsize=9)
    axes.set_ylabel("share of images and heads", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper left", frameon=False, fontsize=8)
    figure.savefig(to)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", nargs="+", type=Path, required=True, help="folders of runs")
    parser.add_argument("--images", type=int, default=256, help="of the runs' data, the first")
    parser.add_argument("--seeds", type=int, default=8, help="clusterings of each image, 2 or more")
    parser.add_argument("--to", type=Path, required=True, help="the picture's file")
    chosen = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = [
        analyse(run.name, choose(look_at_run(run), chosen.images, chosen.seeds, device))
        for run in chosen.run
    ]
    draw(found, chosen.to)
    page = {"hardware": hardware(device), "versions": versions()} | vars(chosen)
    page |= {"run": [str(run) for run in chosen.run], "to": str(chosen.to)}
    page |= {"runs": [asdict(each) for each in found]}
    chosen.to.with_suffix(".json").write_text(json.dumps(page, indent=1) + "\n")
    for each in found:
        print(json.dumps(asdict(each)))


if __name__ == "__main__":
    run(main)
