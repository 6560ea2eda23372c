"""What the patch tokens of a dataset vary by: their place, their image, or neither.

    python -m benchmarks.variance --weights RUN random:vit_small_patch16_224 \\
        --data coco-things-mini:FILE idd-lite:FILE

Features are scaled to deviation 1. `place` is the share of the variance explained by the mean over
all images, `image` the share explained by the mean over an image; `rank` is the effective rank of
the unscaled tokens (croc/train/gauges.py measures the same at every checkpoint). Training parts
are used, so that a choice by these figures does not use the validation images.
With --kmeans, also the K-means scores of the tokens as they are, without the part their place
explains, without it and with the image's mean doubled, and of the image's mean alone: this shows
which share K-means suffers from. `within` is K-means in each image separately.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.common import run, this_device
from croc.eval.datasets import open_segmentation
from croc.eval.features import PatchFeatures
from croc.eval.kmeans import evaluate_kmeans, evaluate_within
from croc.eval.protocols import KmeansConfig, WithinConfig
from croc.train.gauges import token_statistics
from croc.weights.open import DenseBackbone, open_backbone


class Reweighted:
    """A backbone without what the tokens' place explains, and with other shares of the rest."""

    def __init__(
        self, backbone: DenseBackbone, place: Float[Tensor, "C h w"], image: float, own: float
    ) -> None:
        self.name, self.stride_px = backbone.name, backbone.stride_px
        self._backbone, self._place, self._image, self._own = backbone, place, image, own

    def features(
        self, images: Float[Tensor, "B 3 h w"], blocks: int = 1
    ) -> Float[Tensor, "B C rows columns"]:
        tokens = self._backbone.features(images, blocks) - self._place
        mean = tokens.mean(dim=(2, 3), keepdim=True)
        return self._image * mean + self._own * (tokens - mean)


def score_kmeans(
    backbone: DenseBackbone,
    place: Float[Tensor, "C h w"],
    data: str,
    image_px: int,
    device: torch.device,
) -> dict[str, tuple[float, float]]:
    """Mean and deviation over five seeds, for each kind of tokens."""
    place, part = place.float().to(device), open_segmentation(data, "train", alone=True)
    kinds = {
        "": backbone,
        " without place": Reweighted(backbone, place, image=1, own=1),
        " image doubled": Reweighted(backbone, place, image=2, own=1),
        " image alone": Reweighted(backbone, place, image=1, own=0),
    }
    kmeans, within = (
        KmeansConfig(reading="tokens", image_px=image_px),
        WithinConfig(image_px=image_px),
    )
    reports = {
        f"kmeans{kind}": evaluate_kmeans(b, part, kmeans, device) for kind, b in kinds.items()
    }
    reports |= {
        f"within{kind}": evaluate_within(b, part, within, device) for kind, b in kinds.items()
    }
    return {kind: (x.scores["mIoU"], x.scores["deviation"]) for kind, x in reports.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", nargs="+", required=True, help="as for `croc evaluate`")
    parser.add_argument("--data", nargs="+", required=True, help="KIND:PLACE, as there")
    parser.add_argument(
        "--image-px", type=int, default=448, help="side to which images are squashed"
    )
    parser.add_argument("--kmeans", action="store_true", help="also the K-means scores")
    options = parser.parse_args(arguments)
    device = this_device()
    for weights in options.weights:
        backbone = open_backbone(weights, options.image_px).to(device)
        for data in options.data:
            patches = PatchFeatures(
                backbone,
                open_segmentation(data, "train", alone=True),
                image_px=options.image_px,
                label_px=8,
                blocks=1,
                device=device,
                workers=0,
                held_bytes=0,
            )
            tokens = (features for features, _ in patches.passes("features"))
            statistics, place = token_statistics(tokens)
            record = {"weights": weights, "data": data.partition(":")[0]} | asdict(statistics)
            if options.kmeans:
                record |= score_kmeans(backbone, place, data, options.image_px, device)
            print(json.dumps(record))


if __name__ == "__main__":
    run(main)
