"""What the patch tokens of a set vary by: where they lie, which image they are of, or neither.

    python -m benchmarks.variance --weights RUN random:vit_small_patch16_224 \\
        --data coco-things-mini:FILE idd-lite:FILE

Each feature has deviation 1, as where tokens are clustered or segmented. `place` is the share of
the variance that the mean over all images explains, `image` the share that the mean over an image
explains; `rank` is the effective rank of the tokens as they are (croc/train/gauges.py measures the
same at every checkpoint of a run). Of the training parts, so that what is chosen by it is not
chosen by what is scored.
With --kmeans, also what K-means scores on the tokens as they are and on tokens of other shares:
without what their place explains, without it and with the image's mean doubled, and the image's
mean alone. It tells which share K-means suffers from. `within` is K-means in each image by itself.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.command import run
from croc.eval.features import DenseBackbone, open_backbone
from croc.eval.inputs import PatchFeatures
from croc.eval.kmeans import evaluate_kmeans
from croc.eval.parts import ALONE, open_part
from croc.eval.protocols import KmeansConfig, WithinConfig
from croc.eval.within import evaluate_within
from croc.train.gauges import token_statistics


class Reweighted:
    """A backbone whose tokens lose what their place explains, and have other shares of the rest."""

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


def tokens_of(
    backbone: DenseBackbone, data: str, image_px: int, device: torch.device
) -> Iterator[Float[Tensor, "_ C h w"]]:
    """In parts."""
    patches = PatchFeatures(
        backbone,
        open_part(data, ALONE),
        image_px=image_px,
        label_px=8,
        blocks=1,
        device=device,
        workers=0,
        held_bytes=0,
    )
    return (features for features, _ in patches.passes("features"))


def score_kmeans(
    backbone: DenseBackbone,
    place: Float[Tensor, "C h w"],
    data: str,
    image_px: int,
    device: torch.device,
) -> dict[str, tuple[float, float]]:
    """Mean and deviation over five seeds, for each kind of tokens."""
    config, own = KmeansConfig(reading="tokens", image_px=image_px), WithinConfig(image_px=image_px)
    place = place.float().to(device)
    kinds = {
        "": backbone,
        " without place": Reweighted(backbone, place, image=1, own=1),
        " image doubled": Reweighted(backbone, place, image=2, own=1),
        " image alone": Reweighted(backbone, place, image=1, own=0),
    }
    part = open_part(data, ALONE)
    found = {
        f"kmeans{kind}": evaluate_kmeans(each, part, config, device) for kind, each in kinds.items()
    }
    found |= {
        f"within{kind}": evaluate_within(each, part, own, device) for kind, each in kinds.items()
    }
    return {kind: (100 * report.mean, 100 * report.deviation) for kind, report in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", nargs="+", required=True, help="as `croc evaluate` takes them")
    parser.add_argument("--data", nargs="+", required=True, help="KIND:PLACE, as there")
    parser.add_argument(
        "--image-px", type=int, default=448, help="side to which images are squashed"
    )
    parser.add_argument("--kmeans", action="store_true", help="and what K-means makes of them")
    chosen = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for weights in chosen.weights:
        backbone = open_backbone(weights, chosen.image_px).to(device)
        for data in chosen.data:
            asked = (data, chosen.image_px, device)
            statistics, place = token_statistics(tokens_of(backbone, *asked))
            told = {"weights": weights, "data": data.partition(":")[0]} | asdict(statistics)
            told |= score_kmeans(backbone, place, *asked) if chosen.kmeans else {}
            print(json.dumps(told))


if __name__ == "__main__":
    run(main)
