"""Scores on the training split, for model selection: cross-validated linear, K-means.

    python -m benchmarks.folds --weights RUN random:vit_small_patch16_224 \\
        --data coco-things-mini:FILE idd-lite:FILE --max-images 351

`croc evaluate --hold-out` scores a share of the training split, which is imprecise if it has only
a few hundred images. Here every image is scored once, by a layer trained on the other folds.
Scores are in percent; deviations are over folds (linear) and seeds (K-means).
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from benchmarks.common import run
from croc.errors import UserError
from croc.eval.datasets import SegmentationData, Subset, open_segmentation
from croc.eval.evaluate import split_training
from croc.eval.kmeans import evaluate_kmeans
from croc.eval.linear import evaluate_linear
from croc.eval.machine import Machine, find_machine
from croc.eval.protocols import (
    EvaluateOptions,
    KmeansConfig,
    LinearConfig,
    kmeans_protocol,
    linear_protocol,
)
from croc.weights.backbones import DenseBackbone
from croc.weights.open import open_backbone


def split_into_folds(data: SegmentationData, count: int) -> list[tuple[Subset, Subset]]:
    """Pairs of training and validation sets: image i is validated in fold i modulo `count`."""
    if not 2 <= count <= len(data):
        raise UserError(f"--folds must be between 2 and {len(data)}, the number of images: {count}")
    folds = [tuple(range(fold, len(data), count)) for fold in range(count)]
    rest = [tuple(sorted(set(range(len(data))) - set(fold))) for fold in folds]
    return [(Subset(data, train), Subset(data, fold)) for train, fold in zip(rest, folds)]


def score(
    backbone: DenseBackbone,
    data: SegmentationData,
    linear: LinearConfig,
    kmeans: KmeansConfig,
    folds: int,
    machine: Machine,
) -> dict[str, float]:
    scores = [
        evaluate_linear(backbone, machine, train, scored, linear).scores["mIoU"]
        for train, scored in split_into_folds(data, folds)
    ]
    clusters = evaluate_kmeans(backbone, machine, data, kmeans)
    return {
        "linear": fmean(scores),
        "linear_deviation": stdev(scores),
        "kmeans": clusters.scores["mIoU"],
        "kmeans_deviation": clusters.scores["deviation"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", nargs="+", required=True, help="as for `croc evaluate`")
    parser.add_argument("--data", nargs="+", required=True, help="KIND:PATH, as there")
    parser.add_argument("--folds", type=int, default=4, help="2 or more")
    parser.add_argument("--seeds", type=int, default=15, help="of K-means")
    parser.add_argument("--steps", type=int, help="of a linear layer; default: the dataset's")
    parser.add_argument("--image-px", type=int, help="side of the images; default: the dataset's")
    parser.add_argument(
        "--max-images", type=int, help="images per dataset, chosen by a hash of the name"
    )
    options = parser.parse_args(arguments)
    for weights in options.weights:
        for data in options.data:
            kind = data.partition(":")[0]
            linear = linear_protocol(kind)
            kmeans = replace(kmeans_protocol(kind), seeds=options.seeds)
            if options.steps:
                linear = replace(linear, steps=options.steps, epochs=None)
            if options.image_px:
                linear = replace(linear, image_px=options.image_px)
                kmeans = replace(kmeans, image_px=options.image_px)
            machine = find_machine(EvaluateOptions(weights, data))
            backbone = open_backbone(weights)
            backbone.to(machine.device, machine.precision)
            part = open_segmentation(data, "train", alone=True)
            if options.max_images and options.max_images < len(part):
                part = split_training(part, options.max_images / len(part))["val"]
            scores = score(backbone, part, linear, kmeans, options.folds, machine)
            record = {"weights": weights, "data": kind, "images": len(part)}
            rounded = {name: round(value, 2) for name, value in scores.items()}
            print(json.dumps(record | rounded), flush=True)


if __name__ == "__main__":
    run(main)
