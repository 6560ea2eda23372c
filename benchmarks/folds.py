"""Scores on a training part alone, for choices: linear in folds, K-means over more seeds.

    python -m benchmarks.folds --weights RUN random:vit_small_patch16_224 \\
        --data coco-things-mini:FILE idd-lite:FILE --most 351

`--hold-out` of `croc evaluate` scores one share of the training part, too few images where all of
it is a few hundred. Here every image is scored once, by a layer that has seen the other folds.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from benchmarks.command import run
from croc.errors import UserError
from croc.eval.command import EvaluateOptions
from croc.eval.datasets import SegmentationData
from croc.eval.evaluate import Machine, find_machine
from croc.eval.features import DenseBackbone, open_backbone
from croc.eval.kmeans import evaluate_kmeans
from croc.eval.linear import evaluate_linear
from croc.eval.parts import ALONE, Subset, open_part, split_training
from croc.eval.protocols import KmeansConfig, LinearConfig, kmeans_protocol, linear_protocol


@dataclass(frozen=True)
class Scores:
    """In percent; the deviations are over folds and over seeds."""

    linear: float
    linear_deviation: float
    kmeans: float
    kmeans_deviation: float


def split_into_folds(data: SegmentationData, count: int) -> list[tuple[Subset, Subset]]:
    """What is trained on and what is scored: image i belongs to fold i modulo `count`."""
    if not 2 <= count <= len(data):
        raise UserError(f"--folds must be in 2 … {len(data)}, the images to be scored: {count}")
    numbers = range(len(data))
    return [
        (
            Subset(data, tuple(number for number in numbers if number % count != fold)),
            Subset(data, tuple(number for number in numbers if number % count == fold)),
        )
        for fold in range(count)
    ]


def score(
    backbone: DenseBackbone,
    data: SegmentationData,
    linear: LinearConfig,
    kmeans: KmeansConfig,
    folds: int,
    machine: Machine,
) -> Scores:
    where = machine.device, machine.workers
    found = [
        100 * evaluate_linear(backbone, train, held, linear, *where).best.iou.mean
        for train, held in split_into_folds(data, folds)
    ]
    clusters = evaluate_kmeans(backbone, data, kmeans, *where)
    return Scores(fmean(found), stdev(found), 100 * clusters.mean, 100 * clusters.deviation)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", nargs="+", required=True, help="as `croc evaluate` takes them")
    parser.add_argument("--data", nargs="+", required=True, help="KIND:PLACE, as there")
    parser.add_argument("--folds", type=int, default=4, help="2 or more")
    parser.add_argument("--seeds", type=int, default=15, help="of K-means")
    parser.add_argument("--steps", type=int, help="of a linear layer; by default the data's own")
    parser.add_argument("--image-px", type=int, help="side of the images; likewise")
    parser.add_argument("--most", type=int, help="images of each set, by their names' hashes")
    chosen = parser.parse_args(arguments)
    for weights in chosen.weights:
        for data in chosen.data:
            kind = data.partition(":")[0]
            linear, kmeans = linear_protocol(kind), kmeans_protocol(kind)
            if chosen.steps:
                linear = replace(linear, steps=chosen.steps, epochs=None)
            if chosen.image_px:
                linear = replace(linear, image_px=chosen.image_px)
                kmeans = replace(kmeans, image_px=chosen.image_px)
            machine = find_machine(EvaluateOptions(weights, data))
            backbone = open_backbone(weights, linear.image_px)
            backbone.to(machine.device, machine.precision)
            part = open_part(data, ALONE)
            if chosen.most and chosen.most < len(part):
                part = split_training(part, chosen.most / len(part))["val"]
            kmeans = replace(kmeans, seeds=chosen.seeds)
            found = score(backbone, part, linear, kmeans, chosen.folds, machine)
            told = {"weights": weights, "data": kind, "images": len(part)}
            rounded = {name: round(value, 2) for name, value in vars(found).items()}
            print(json.dumps(told | rounded), flush=True)


if __name__ == "__main__":
    run(main)
