"""Predictions of a whole validation part, counted, and a few of them kept to be looked at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from croc.errors import UserError
from croc.eval.datasets import SegmentationData
from croc.eval.features import DenseBackbone
from croc.eval.inputs import Batch, batches, in_order
from croc.eval.metrics import IouReport, confusion, iou
from croc.eval.tracking import Track, silent
from croc.method.photometric import unnormalise

EXAMPLES = 6

Predict = Callable[[Float[Tensor, "B C h w"]], Float[Tensor, "B classes h w"]]
"""Features to a score for each class, at the features' resolution."""


@dataclass(frozen=True)
class Example:
    """A photograph with the classes of its pixels, true and predicted; the image may be larger."""

    image: UInt8[Tensor, "3 h w"]
    truth: Int64[Tensor, "rows columns"]
    predicted: Int64[Tensor, "rows columns"]


@dataclass(frozen=True)
class SegmentationReport:
    """Scores of a validation part, and its first images."""

    iou: IouReport
    examples: tuple[Example, ...]


def same_classes(train: SegmentationData, val: SegmentationData) -> None:
    if tuple(train.classes) != tuple(val.classes):
        raise UserError("the training and the validation part have different classes")


def check_labelled(counts: Int64[Tensor, "K C"]) -> None:
    if not counts.any():
        raise UserError("no pixel of the scored part is labelled: all are 255, so none counts")


@torch.no_grad()
def score(
    backbone: DenseBackbone,
    val: SegmentationData,
    heads: Sequence[Predict],
    *,
    image_px: int,
    blocks: int,
    score_px: int | None,
    device: torch.device,
    workers: int = 0,
    track: Track = silent,
    batch: int = 32,
    keep_ratio: bool = False,
) -> list[SegmentationReport]:
    """A report for each head, all from one pass over the photographs."""
    classes = len(val.classes)
    counts = [torch.zeros(classes, classes, dtype=torch.long, device=device) for _ in heads]
    examples: list[list[Example]] = [[] for _ in heads]
    order = in_order(len(val), 1 if keep_ratio else batch)
    sizes: dict[str, Any] = {"image_px": image_px, "label_px": score_px}
    sizes["keep_ratio"] = backbone.stride_px if keep_ratio else None
    parts = batches(val, order, **sizes, workers=workers, device=device)
    for part in track(parts, "scores", len(order)):
        features = backbone.features(part.images, blocks)
        for count, kept, head in zip(counts, examples, heads):
            predicted = classify(head(features), part)
            for found, truth in zip(predicted, part.labels):
                count += confusion(found, truth, classes)
            if len(kept) < EXAMPLES:
                kept.extend(make_examples(part, predicted, EXAMPLES - len(kept)))
    check_labelled(counts[0])
    return [
        SegmentationReport(iou(count.cpu()), tuple(kept)) for count, kept in zip(counts, examples)
    ]


def classify(logits: Float[Tensor, "B C h w"], part: Batch) -> list[Int64[Tensor, "_ _"]]:
    """The strongest class at each labelled pixel; image by image, since few fit at full size."""
    return [
        upsample(each[None].float(), truth.shape).argmax(dim=1)[0]
        for each, truth in zip(logits, part.labels)
    ]


def upsample(logits: Float[Tensor, "B C h w"], size: Sequence[int]) -> Float[Tensor, "B C H W"]:
    """Bilinear; it commutes with a linear layer, and logits are narrower than features."""
    return F.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)


def make_examples(part: Batch, predicted: Sequence[Tensor], wanted: int) -> list[Example]:
    pixels = (unnormalise(part.images[:wanted]) * 255).round().clamp(0, 255).byte().cpu()
    return [
        Example(image, truth.cpu(), found.cpu())
        for image, truth, found in zip(pixels, part.labels, predicted)
    ]


def first_batch(data: SegmentationData, count: int, image_px: int, label_px: int) -> Batch:
    """The first images, read here and now."""
    here: dict[str, Any] = {"workers": 0, "device": torch.device("cpu")}
    return next(batches(data, [range(count)], image_px=image_px, label_px=label_px, **here))
