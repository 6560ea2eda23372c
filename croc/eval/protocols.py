"""What an evaluation is: frozen configurations, and which of them a data set's papers use.

Nothing here imports torch, so that `croc evaluate --help` answers at once.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from croc.config import require_finite, require_least
from croc.errors import UserError

SEGMENTATION = ("linear", "kmeans", "within", "incontext")
PROTOCOLS = (*SEGMENTATION, "video")
PAPERS = ("voc12", "coco-things", "coco-stuff", "coco-stuff-panoptic", "ade20k")
IMAGES = (*PAPERS, "folder", "coco-things-mini", "idd-lite")
VIDEOS = ("davis17", "davis16")
ADDED: dict[str, Callable[[str, str], Any]] = {}
"""Kinds of segmentation data that added.py was told of, and who opens them."""


def protocols_of(data: str, hold_out: float = 0.0) -> tuple[str, ...]:
    """Which protocols a data set allows; for an unknown one all, and its reader complains.

    With a share held out, only those that have a training part to hold it out of.
    """
    kind = data.partition(":")[0]
    if hold_out and kind in VIDEOS:
        raise UserError(f"--hold-out: {data} has no training part, as videos have none")
    if kind in (*IMAGES, *ADDED) or hold_out:
        return SEGMENTATION
    return ("video",) if kind in VIDEOS else PROTOCOLS


@dataclass(frozen=True)
class LinearConfig:
    """Linear segmentation, as the paper has it for VOC12 unless the data ask for other values."""

    image_px: int = 448
    """Side to which images are squashed."""
    framing: Literal["squash", "keep"] = "squash"
    """keep: windows of images at random scales in training, whole images with image_px as their
    shorter side in scoring, as MMSegmentation has it; crop and score_px are then None."""
    blocks: int = 4
    """Last blocks of a ViT whose tokens are concatenated."""
    standardise: bool = False
    """Bring each feature to mean 0 and deviation 1 over the training part."""
    rates: tuple[float, ...] = (1e-3,)
    """Adam's rates; a layer is trained with each, the best by its score is reported."""
    poly: float = 0.0
    """The rate falls as (1 - step / steps) to this power; 0 keeps it."""
    batch: int = 60
    """Images a step."""
    epochs: int | None = 45
    """Passes over the training part."""
    steps: int | None = None
    """Steps of training, instead of epochs."""
    crop: float | None = 0.8
    """Train on random crops of this share of the image at least, mirrored at times; None: on whole
    images, whose features need be found only once."""
    train_px: int = 448
    """Side of the labels in the loss, to which the logits are upsampled."""
    score_px: int | None = 448
    """Side of the labels that are scored; None is each image's own size."""
    seed: int = 0
    """Of the layer, the order of the images and the crops."""

    def __post_init__(self) -> None:
        require_finite("linear", self)
        require_least(self, "linear", 1, "image_px", "blocks", "batch", "epochs", "steps")
        require_least(self, "linear", 1, "train_px", "score_px")
        require_least(self, "linear", 0, "poly", "seed")
        require_least(self, "linear", 1e-12, "rates")
        if (self.epochs is None) == (self.steps is None):
            raise UserError(
                "training ends after --linear.epochs or --linear.steps: give one of them, and "
                "None to the other"
            )
        if self.crop is not None and not 0 < self.crop <= 1:
            raise UserError(f"--linear.crop must be in 0 … 1: {self.crop}")
        if self.framing == "keep" and (self.crop is not None or self.score_px is not None):
            raise UserError("--linear.framing keep needs --linear.crop and --linear.score-px None")


@dataclass(frozen=True)
class KmeansConfig:
    """Unsupervised segmentation, as the paper has it unless the data ask for other values."""

    reading: Literal["pixels", "tokens"] = "pixels"
    """What is clustered."""
    image_px: int = 448
    """Side to which images are squashed."""
    label_px: int = 100
    """Side at which clusters and labels are compared."""
    blocks: int = 1
    """Last blocks of a ViT whose tokens are concatenated."""
    clusters: int | None = None
    """By default one a class, matched one to one; more are matched many to one."""
    pca: int = 50
    """Dimensions that PCA leaves, in the reading `tokens`."""
    seeds: int = 5
    """Runs whose scores are averaged."""
    restarts: int = 5
    """Starts of a run, of which the best is taken."""

    def __post_init__(self) -> None:
        require_least(self, "kmeans", 1, "image_px", "label_px", "blocks", "pca")
        require_least(self, "kmeans", 1, "seeds", "restarts")
        require_least(self, "kmeans", 2, "clusters")


@dataclass(frozen=True)
class WithinConfig:
    """Within-image segmentation; tokens are prepared as by K-means' reading `tokens`."""

    image_px: int = 448
    """Side to which images are squashed."""
    label_px: int = 100
    """Side at which clusters and labels are compared."""
    blocks: int = 1
    """Last blocks of a ViT whose tokens are concatenated."""
    pca: int = 50
    """Dimensions kept by PCA over the tokens of all images."""
    seeds: int = 5
    """Runs whose scores are averaged."""
    restarts: int = 5
    """Starts of K-means on each image, of which the best is taken."""

    def __post_init__(self) -> None:
        require_least(self, "within", 1, "image_px", "label_px", "blocks", "pca")
        require_least(self, "within", 1, "seeds", "restarts")


@dataclass(frozen=True)
class InContextConfig:
    """Neighbours and temperature are Hummingbird's; the images' size is our other protocols'."""

    image_px: int = 448
    """Side to which images are squashed (open-hummingbird-eval's table: 512 for patches of 16)."""
    label_px: int = 448
    """Side of the labels, those remembered and those scored; theirs is the images'."""
    blocks: int = 1
    """Last blocks of a ViT whose tokens are concatenated."""
    memory: int = 1_024_000
    """Patches remembered at most, shared out evenly among the images; Hummingbird's own figures
    are at 10,240,000, open-hummingbird-eval's also at 1,024,000 and 102,400."""
    neighbours: int = 30
    """Remembered patches that are asked for each patch; all of them if there are fewer."""
    temperature: float = 0.02
    """Of the softmax over the neighbours' cosines, by which their labels are weighted."""
    seed: int = 0
    """Of the choice of the patches remembered."""

    def __post_init__(self) -> None:
        require_finite("incontext", self)
        require_least(self, "incontext", 1, "image_px", "label_px", "blocks")
        require_least(self, "incontext", 1, "memory", "neighbours")
        require_least(self, "incontext", 1e-12, "temperature")
        require_least(self, "incontext", 0, "seed")


@dataclass(frozen=True)
class VideoConfig:
    """The paper's protocol, which is DINO's."""

    short_px: int = 480
    """The shorter side of a frame; the longer one is floored to a multiple of 64."""
    last_frames: int = 7
    """Frames before the current one that vote, beside the first."""
    radius: int = 12
    """Patches away from which a vote may come, in rows and columns."""
    best: int = 5
    """Votes that count for each patch."""
    temperature: float = 0.1
    """Votes weigh exp(cosine / this)."""

    def __post_init__(self) -> None:
        require_finite("video", self)
        require_least(self, "video", 1, "short_px", "best")
        require_least(self, "video", 0, "last_frames", "radius")
        require_least(self, "video", 1e-12, "temperature")


def linear_protocol(kind: str) -> LinearConfig:
    """The protocol that a kind of data is scored by, unless asked otherwise."""
    paper = LinearConfig()
    if kind == "voc12":
        return paper
    if kind in PAPERS and kind != "ade20k":
        return dataclasses.replace(paper, epochs=10)
    if kind == "ade20k":  # MMSegmentation's 40k schedule
        return LinearConfig(
            image_px=512,
            framing="keep",
            rates=(1e-3, 8e-4, 3e-4, 1e-4, 8e-5),
            poly=0.9,
            batch=16,
            epochs=None,
            steps=40_000,
            crop=None,
            train_px=512,
            score_px=None,
        )
    if kind == "scenes":  # small pictures and networks: seconds on two cores
        return LinearConfig(
            image_px=96,
            blocks=1,
            standardise=True,
            rates=(3e-2,),
            poly=1.0,
            batch=32,
            epochs=None,
            steps=1000,
            crop=None,
            train_px=24,
            score_px=96,
        )
    # Sets of some hundred images: one block, no crops, so that features are found only once.
    small = dataclasses.replace(
        paper, blocks=1, standardise=True, batch=32, epochs=None, steps=1500, crop=None
    )
    return dataclasses.replace(small, train_px=112, score_px=112)


def kmeans_protocol(kind: str) -> KmeansConfig:
    """The paper's reading for its data sets; for small sets the one that their figures have."""
    if kind == "scenes":
        return KmeansConfig(reading="tokens", image_px=96, label_px=96)
    return KmeansConfig() if kind in PAPERS else KmeansConfig(reading="tokens")


def within_protocol(kind: str) -> WithinConfig:
    """The same for all data, but scenes are small."""
    return WithinConfig(image_px=96, label_px=96) if kind == "scenes" else WithinConfig()


def incontext_protocol(kind: str) -> InContextConfig:
    """Scenes are small; all else is as it is."""
    return InContextConfig(image_px=96, label_px=96) if kind == "scenes" else InContextConfig()


def video_protocol(kind: str) -> VideoConfig:
    """Scenes are small; all else is as it is."""
    return VideoConfig(short_px=192) if kind == "scenes" else VideoConfig()
