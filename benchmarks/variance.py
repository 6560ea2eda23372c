"""How much of the variance of patch tokens is explained by position and by image.

    python -m benchmarks.variance --weights RUN random:vit_small_patch16_224 \\
        --data coco-things-mini:FILE idd-lite:FILE

Features are scaled to deviation 1. `position` is the fraction of variance explained by the mean
over all images, `image` that explained by the mean over an image; `rank` is the effective rank of
the unscaled tokens (croc/train/gauges.py measures the same at every checkpoint). Computed on
the training split, so that they can be used for model selection.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.common import run, this_device
from croc.eval.datasets import open_segmentation
from croc.eval.features import PatchFeatures
from croc.eval.machine import Machine
from croc.train.gauges import token_statistics
from croc.weights.open import open_backbone


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", nargs="+", required=True, help="as for `croc evaluate`")
    parser.add_argument("--data", nargs="+", required=True, help="KIND:PATH, as there")
    parser.add_argument("--image-px", type=int, default=448, help="side of the resized images")
    options = parser.parse_args(arguments)
    device = this_device()
    for weights in options.weights:
        backbone = open_backbone(weights).to(device)
        for data in options.data:
            patches = PatchFeatures(
                backbone,
                Machine(device),
                open_segmentation(data, "train", alone=True),
                image_px=options.image_px,
                label_px=8,
                blocks=1,
            )
            tokens = (features for features, _ in patches.all_batches("features"))
            statistics, _ = token_statistics(tokens)
            record = {"weights": weights, "data": data.partition(":")[0]} | asdict(statistics)
            print(json.dumps(record))


if __name__ == "__main__":
    run(main)
