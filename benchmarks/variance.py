"""What the patch tokens of a set vary by: where they lie, which image they are of, or neither.

    python -m benchmarks.variance --weights RUN random:vit_small_patch16_224 \\
        --data coco-things-mini:FILE idd-lite:FILE

Each feature has deviation 1, as where tokens are clustered or segmented. `position` is the share
of the variance that the mean over all images explains, `image` the share that the mean over an
image explains. Of the training parts, so that what is chosen by it is not chosen by what is scored.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from croc.evals.features import DenseBackbone, open_backbone
from croc.evals.inputs import PatchFeatures
from croc.evals.parts import ALONE, open_part


@dataclass(frozen=True)
class Shares:
    """Of the variance of all tokens."""

    position: float
    image: float


def shares_of(parts: Iterable[Float[Tensor, "_ C h w"]]) -> Shares:
    """Of tokens that come in parts, so that they need not be held together."""
    count, squares, by_place = 0, torch.zeros(()), torch.zeros(())
    image_means: list[Tensor] = []
    for part in parts:
        tokens = part.double().cpu().flatten(2)
        count, by_place = count + len(tokens), by_place + tokens.sum(dim=0)
        squares = squares + tokens.square().mean(dim=2).sum(dim=0)
        image_means.append(tokens.mean(dim=2))
    means = torch.cat(image_means)
    mean = means.mean(dim=0)
    variance = squares / count - mean.square()
    varies = variance > 1e-9 * squares / count  # a constant feature has no share in anything
    by_position = (by_place / count - mean[:, None]).square().mean(dim=1)
    by_image = (means - mean).square().mean(dim=0)
    position, image = ((each / variance)[varies].mean().item() for each in (by_position, by_image))
    return Shares(position, image)


def measure(backbone: DenseBackbone, data: str, image_px: int, device: torch.device) -> Shares:
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
    return shares_of(features for features, _ in patches.passes("features"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", nargs="+", required=True, help="as `croc evaluate` takes them")
    parser.add_argument("--data", nargs="+", required=True, help="KIND:PLACE, as there")
    parser.add_argument(
        "--image-px", type=int, default=448, help="side to which images are squashed"
    )
    chosen = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for weights in chosen.weights:
        backbone = open_backbone(weights, chosen.image_px).to(device)
        for data in chosen.data:
            found = measure(backbone, data, chosen.image_px, device)
            print(json.dumps({"weights": weights, "data": data.partition(":")[0]} | asdict(found)))


if __name__ == "__main__":
    main()
