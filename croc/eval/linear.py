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
from croc.eval.crops import Crops, ResizedCrops, ScaledCrops
from croc.eval.datasets import SegmentationData
from croc.eval.features import DenseBackbone
from croc.eval.inputs import PatchFeatures, batches
from croc.eval.metrics import IGNORED
from croc.eval.moments import Moments
from croc.eval.protocols import LinearConfig
from croc.eval.scoring import SegmentationReport, same_classes, score, upsample
from croc.eval.tracking import Track, silent


@dataclass(frozen=True)
class LinearReport:
    """Of the layer that scored best, and the scores of all."""

    best: SegmentationReport
    rate: float
    """Adam's, of the best layer."""
    by_rate: dict[float, float]
    """Mean IoU of each layer."""


def evaluate_linear(
    backbone: DenseBackbone,
    train: SegmentationData,
    val: SegmentationData,
    config: LinearConfig,
    device: torch.device,
    workers: int = 0,
    track: Track = silent,
) -> LinearReport:
    """Train a layer for each rate on one part, score them on the other."""
    same_classes(train, val)
    options: dict[str, Any] = {"device": device, "workers": workers, "track": track}
    source = TrainingFeatures(backbone, train, config, **options)
    steps = track(source.batches(), "training", source.steps)
    layers = fit(steps, source.moments, len(train.classes), source.steps, config)
    reports = score(
        backbone,
        val,
        layers,
        image_px=config.image_px,
        blocks=config.blocks,
        score_px=config.score_px,
        keep_ratio=config.framing == "keep",
        **options,
    )
    scores = [report.iou.mean for report in reports]
    best = max(range(len(scores)), key=scores.__getitem__)
    return LinearReport(reports[best], config.rates[best], dict(zip(config.rates, scores)))


class TrainingFeatures:
    """Features of whole images, found once if they fit; of random crops, found anew each step."""

    def __init__(
        self,
        backbone: DenseBackbone,
        train: SegmentationData,
        config: LinearConfig,
        *,
        device: torch.device,
        workers: int,
        track: Track = silent,
    ) -> None:
        self._backbone, self._train, self._config = backbone, train, config
        self._options: dict[str, Any] = {"device": device, "workers": workers}
        batch = min(config.batch, len(train))
        # An epoch has whole batches only, as the order of pre-training's samples has.
        self.steps = config.steps or (config.epochs or 0) * (len(train) // batch)
        chosen = (batch_indices(i, len(train), batch, config.seed)[1] for i in range(self.steps))
        self._order: list[list[int]] = [numbers.tolist() for numbers in chosen]
        self._sizes = {"image_px": config.image_px, "label_px": config.train_px}
        self._held: tuple[Tensor, Tensor] | None = None
        self.moments: Moments | None = Moments() if config.standardise else None
        whole_images = training_crops(config) is None
        if self.moments or whole_images:
            whole = PatchFeatures(
                backbone, train, **self._sizes, blocks=config.blocks, **self._options, track=track
            )
            for features, _ in whole.passes("features"):
                if self.moments:
                    self.moments.add(features)
            self._held = whole.held if whole_images else None

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Features "B C rows columns" and labels "B px px" of each step."""
        if self._held:
            features, labels = self._held
            for chosen in map(torch.tensor, self._order):
                yield features[chosen], labels[chosen].long()
            return
        crops = training_crops(self._config)
        for part in batches(self._train, self._order, **self._sizes, **self._options, crops=crops):
            assert isinstance(part.labels, Tensor)
            yield self._backbone.features(part.images, self._config.blocks), part.labels


def training_crops(config: LinearConfig) -> Crops | None:
    if config.framing == "keep":
        return ScaledCrops(config.seed)
    return None if config.crop is None else ResizedCrops(config.crop, config.seed)


class Layer(nn.Module):
    """A 1×1 convolution of features, brought to mean 0 and deviation 1 if their moments are given.

    float32, whatever the features are.
    """

    def __init__(self, width: int, classes: int, moments: Moments | None) -> None:
        super().__init__()
        self.linear = nn.Conv2d(width, classes, kernel_size=1)
        mean = moments.mean if moments else torch.zeros(width)
        deviation = moments.deviation if moments else torch.ones(width)
        self.mean, self.deviation = (nn.Buffer(x[:, None, None]) for x in (mean, deviation))

    def forward(self, features: Float[Tensor, "B C h w"]) -> Float[Tensor, "B classes h w"]:
        return self.linear((features.float() - self.mean) / self.deviation)


def fit(
    steps: Iterator[tuple[Float[Tensor, "B C h w"], Int64[Tensor, "B px px"]]],
    moments: Moments | None,
    classes: int,
    total: int,
    config: LinearConfig,
) -> list[nn.Module]:
    """Adam on the cross-entropy of upsampled logits, a layer a rate, all from the same start."""
    layers: list[nn.Module] = []
    optimizers: list[torch.optim.Adam] = []
    labelled = torch.zeros(())
    for step, (features, labels) in enumerate(steps):
        labelled = labelled.to(labels.device) + (labels != IGNORED).any()
        if not layers:
            for rate in config.rates:
                layers.append(_start(features.shape[1], classes, moments, config.seed))
                layers[-1].to(features.device)
                optimizers.append(torch.optim.Adam(layers[-1].parameters(), lr=rate))
        for layer, optimizer, rate in zip(layers, optimizers, config.rates):
            optimizer.param_groups[0]["lr"] = rate * (1 - step / total) ** config.poly
            optimizer.zero_grad()
            segmentation_loss(layer(features), labels).backward()
            optimizer.step()
    if not labelled:
        raise UserError("no pixel of the training part is labelled: all are 255, so none teaches")
    return [layer.eval().requires_grad_(False) for layer in layers]


def _start(width: int, classes: int, moments: Moments | None, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Layer(width, classes, moments)


def segmentation_loss(
    logits: Float[Tensor, "B classes h w"], labels: Int64[Tensor, "B px px"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy over the labelled pixels; a batch without any has loss 0."""
    large = upsample(logits, labels.shape[1:])
    loss = F.cross_entropy(large, labels, ignore_index=IGNORED, reduction="sum")
    return loss / (labels != IGNORED).sum().clamp_min(1)
