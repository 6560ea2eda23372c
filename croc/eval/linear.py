"""Linear segmentation: one 1×1 layer on frozen features, scored by mean IoU."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from croc.data.loader import batch_indices
from croc.errors import UserError
from croc.eval.datasets import SegmentationData
from croc.eval.features import Crop, Moments, PatchFeatures, Report, score, upsample
from croc.eval.machine import Machine
from croc.eval.metrics import IGNORED
from croc.eval.protocols import LinearConfig
from croc.method.photometric import IMAGENET_MEAN
from croc.method.randomness import sample_key
from croc.weights.backbones import DenseBackbone

LEAST_STEPS, STEPS_PER_IMAGE = 200, 50
MEAN_COLOR = np.round(255 * np.array(IMAGENET_MEAN)).astype(np.uint8)
Pixels = UInt8[np.ndarray, "h w 3"]
Labels = UInt8[np.ndarray, "h w"]


def evaluate_linear(
    backbone: DenseBackbone,
    machine: Machine,
    train: SegmentationData,
    val: SegmentationData,
    config: LinearConfig,
) -> Report:
    """Train one layer per learning rate on one split, score them on the other, report the best."""
    sizes = (config.image_px, config.train_px, config.blocks)
    layers = train_linear(PatchFeatures(backbone, machine, train, *sizes), config)
    sizes, keep_ratio = (config.image_px, config.score_px, config.blocks), config.resize != "square"
    patches = PatchFeatures(backbone, machine, val, *sizes, keep_ratio=keep_ratio)
    by_rate = dict(zip(config.lrs, score(patches, layers)))
    best = max(by_rate, key=lambda rate: by_rate[rate].scores["mIoU"])
    if len(by_rate) == 1:
        return by_rate[best]
    rates = {f"{rate:g}": report.scores["mIoU"] for rate, report in by_rate.items()}
    scores = {**by_rate[best].scores, "best rate": f"{best:g}", "by rate": rates}
    return replace(by_rate[best], scores=scores)


def few_label_steps(images: int, steps: int) -> int:
    """Fewer steps for few images, since more do not help: 50 per image, at least 200."""
    return min(steps, max(LEAST_STEPS, STEPS_PER_IMAGE * images))


def train_linear(patches: PatchFeatures, config: LinearConfig) -> list[nn.Module]:
    """One layer per learning rate, from features "B C h w" to logits "B classes h w".

    AdamW on the cross-entropy of upsampled logits; all layers are initialized alike. Features of
    whole images are computed once if they fit in memory, those of random crops in each step.
    """
    train, device, crop = patches.data, patches.device, training_crop(config)
    if crop is None:
        patches.keep()
    moments = Moments() if config.standardize else None
    if moments:
        for features, _ in patches.all_batches("features"):
            moments.add(features)
    # An epoch has whole batches only, as in pre-training.
    batch = min(config.batch, len(train))
    steps = config.steps or (config.epochs or 0) * (len(train) // batch)
    order = [batch_indices(i, len(train), batch, config.seed)[1].tolist() for i in range(steps)]
    layers: list[nn.Module] = []
    optimizers: list[torch.optim.Adam] = []
    labeled = torch.zeros((), dtype=torch.bool, device=device)
    batches = patches.progress(patches.batches(order, crop), "training", steps)
    for step, (features, labels) in enumerate(batches):
        labeled |= (labels != IGNORED).any()
        if not layers:
            for rate in config.lrs:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(config.seed)
                    layer = Layer(features.shape[1], len(train.classes), moments)
                layers.append(layer.to(device))
                decay = config.weight_decay_scale / len(train)
                optimizers.append(torch.optim.AdamW(layer.parameters(), rate, weight_decay=decay))
        for layer, optimizer, rate in zip(layers, optimizers, config.lrs):
            optimizer.param_groups[0]["lr"] = rate * (1 - step / steps) ** config.poly
            optimizer.zero_grad()
            segmentation_loss(layer(features), labels).backward()
            optimizer.step()
    if not labeled:
        raise UserError("no training pixel is labeled: all labels are 255")
    return [layer.eval().requires_grad_(False) for layer in layers]


class Layer(nn.Module):
    """A 1×1 convolution, of standardized features if their moments are given; in float32."""

    def __init__(self, width: int, classes: int, moments: Moments | None) -> None:
        super().__init__()
        self.linear = nn.Conv2d(width, classes, kernel_size=1)
        mean = moments.mean if moments else torch.zeros(width)
        deviation = moments.deviation if moments else torch.ones(width)
        self.mean, self.deviation = (nn.Buffer(x[:, None, None]) for x in (mean, deviation))

    def forward(self, features: Float[Tensor, "B C h w"]) -> Float[Tensor, "B classes h w"]:
        return F.conv2d(features.float(), *self.folded())

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weight and bias for features that are not standardized. Large features are thus read
        once, in half the time on a CPU."""
        weight = self.linear.weight / self.deviation
        return weight, F.conv2d(-self.mean[None], weight, self.linear.bias).flatten()


def segmentation_loss(
    logits: Float[Tensor, "B classes h w"], labels: Int64[Tensor, "B px px"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy over the labeled pixels; 0 for a batch without any."""
    large = upsample(logits, labels.shape[1:])
    loss = F.cross_entropy(large, labels, ignore_index=IGNORED, reduction="sum")
    return loss / (labels != IGNORED).sum().clamp_min(1)


def training_crop(config: LinearConfig) -> Crop | None:
    whole = config.resize == "square" and config.crop is None
    return None if whole else partial(random_crop, config=config)


def random_crop(
    image: Pixels, labels: Labels, step: int, index: int, *, config: LinearConfig
) -> tuple[np.ndarray, np.ndarray]:
    """A part of the image, or a window at a random scale, mirrored half of the time; the same for
    the same seed, step and image."""
    key = sample_key(config.seed, step, index) % 2**63
    draws = np.random.Generator(np.random.Philox(key)).random(5).tolist()
    if config.crop is None:
        scale, y, x, flip, _ = draws
        image, labels = scaled_window(image, labels, scale, y, x)
    else:
        area, aspect, x, y, flip = draws
        area = config.crop + (1 - config.crop) * area
        top, left, height, width = crop_box(labels.shape, area, aspect, x, y)
        part = np.s_[top : top + height, left : left + width]
        image, labels = image[part], labels[part]
    turn = np.s_[:, ::-1] if flip < 0.5 else np.s_[:, :]
    return np.ascontiguousarray(image[turn]), np.ascontiguousarray(labels[turn])


def crop_box(
    shape: tuple[int, ...], area: float, aspect: float, x: float, y: float
) -> tuple[int, int, int, int]:
    """Top, left, height, width of a part of the image; aspect, x and y are draws in 0 … 1.

    The aspect is relative to the image's, log-uniform in ¾ … 4⁄3 as far as such a part fits.
    """
    ratio = math.exp((2 * aspect - 1) * min(math.log(4 / 3), -math.log(area)))
    height = min(shape[0], max(1, round(shape[0] * math.sqrt(area / ratio))))
    width = min(shape[1], max(1, round(shape[1] * math.sqrt(area * ratio))))
    return int(y * (shape[0] - height + 1)), int(x * (shape[1] - width + 1)), height, width


def scaled_window(
    image: Pixels, labels: Labels, scale: float, y: float, x: float
) -> tuple[np.ndarray, np.ndarray]:
    """A square window of the image at a random scale; scale, y and x are draws in 0 … 1.

    As semantic segmentation is trained: the image is scaled so that its shorter side is 1/2 to 2
    times the window's (but the longer at most four times that), and a window is cut; outside the
    image it has the mean color and is ignored.
    """
    shorter = max(min(labels.shape), max(labels.shape) / 4)
    side = max(1, round(shorter / (0.5 + 1.5 * scale)))
    height, width = labels.shape
    rows, columns = min(side, height), min(side, width)
    top, left = int(y * (height - rows + 1)), int(x * (width - columns + 1))
    part = np.s_[top : top + rows, left : left + columns]
    window = np.full((side, side, 3), MEAN_COLOR)
    truth = np.full((side, side), IGNORED, np.uint8)
    window[:rows, :columns], truth[:rows, :columns] = image[part], labels[part]
    return window, truth
