"""Linear segmentation: one 1×1 layer on frozen features, scored by mean IoU."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from croc.data.loader import batch_indices
from croc.errors import UserError
from croc.evals.datasets import SegmentationData
from croc.evals.features import DenseBackbone
from croc.evals.inputs import batches, extract, in_order
from croc.evals.metrics import IGNORED, IouReport, confusion, iou


@dataclass(frozen=True)
class LinearConfig:
    """The defaults are the protocol for sets of some hundred images."""

    image_px: int = 448
    """Side to which images are squashed."""
    blocks: int = 1
    """Last blocks of a ViT whose tokens are concatenated."""
    standardise: bool = True
    """Bring each feature to mean 0 and deviation 1 over the training part."""
    rate: float = 1e-3
    """Adam's rate."""
    batch: int = 32
    """Images a step."""
    steps: int = 1500
    """Steps of training."""
    train_px: int = 112
    """Side of the labels in the loss, to which the logits are upsampled."""
    score_px: int = 112
    """Side of the labels that are scored."""
    seed: int = 0
    """Of the layer and the order of the images."""


def evaluate_linear(
    backbone: DenseBackbone,
    train: SegmentationData,
    val: SegmentationData,
    config: LinearConfig,
    device: torch.device,
    workers: int = 0,
) -> IouReport:
    """Train the layer on one part, score it on the other."""
    if len(train.classes) != len(val.classes):
        raise UserError("the training and the validation part have different classes")
    options: dict[str, Any] = {"device": device, "workers": workers}
    features, labels = extract(
        backbone, train, config.image_px, config.train_px, config.blocks, **options
    )
    layer, scale = fit(features, labels, len(train.classes), config)
    del features, labels
    counts = torch.zeros(len(val.classes), len(val.classes), dtype=torch.long)
    order = in_order(len(val), config.batch)
    sizes: dict[str, Any] = {"image_px": config.image_px, "label_px": config.score_px}
    for batch in batches(val, order, **sizes, **options):
        found = scale(backbone.features(batch.images, config.blocks))
        predicted = upsample(layer(found), config.score_px).argmax(dim=1)
        counts += confusion(predicted, batch.labels, len(val.classes)).cpu()
    return iou(counts)


class Scale(nn.Module):
    """Features to mean 0 and deviation 1, by the training part's; or as they are."""

    def __init__(self, features: Float[Tensor, "n C rows columns"], standardise: bool) -> None:
        super().__init__()
        self.mean: Tensor | float = 0.0
        self.deviation: Tensor | float = 1.0
        if standardise:
            self.mean = features.mean(dim=(0, 2, 3), keepdim=True)
            self.deviation = features.std(dim=(0, 2, 3), keepdim=True).clamp_min(1e-6)

    def forward(self, features: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        return (features - self.mean) / self.deviation


def fit(
    features: Float[Tensor, "n C rows columns"],
    labels: Int64[Tensor, "n px px"],
    classes: int,
    config: LinearConfig,
) -> tuple[nn.Module, Scale]:
    """Adam on the cross-entropy of upsampled logits; the same seed gives the same layer."""
    scale = Scale(features, config.standardise)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        layer = nn.Conv2d(features.shape[1], classes, kernel_size=1)
    layer = layer.to(features.device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=config.rate)
    for chosen in _order(len(features), config):
        logits = upsample(layer(scale(features[chosen])), config.train_px)
        loss = F.cross_entropy(logits, labels[chosen], ignore_index=IGNORED, reduction="sum")
        scored = (labels[chosen] != IGNORED).sum().clamp_min(1)  # a batch may have none
        optimizer.zero_grad()
        (loss / scored).backward()
        optimizer.step()
    return layer.eval().requires_grad_(False), scale


def _order(count: int, config: LinearConfig) -> Iterator[Int64[Tensor, "b"]]:
    """Whole batches of each epoch, every epoch in an order of its own."""
    batch = min(config.batch, count)
    for step in range(config.steps):
        _, chosen = batch_indices(step, count, batch, config.seed)
        yield torch.tensor(chosen)


def upsample(logits: Float[Tensor, "B C h w"], side: int) -> Float[Tensor, "B C side side"]:
    """Bilinear; it commutes with the linear layer, and logits are narrower than features."""
    return F.interpolate(logits, size=(side, side), mode="bilinear", align_corners=False)
