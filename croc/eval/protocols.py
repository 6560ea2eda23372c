"""Configurations of the evaluations, and which of them the papers use for a data set.

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
"""Kinds of segmentation data added by `croc.add_data`, with their openers."""


def protocols_of(data: str, hold_out: float = 0.0) -> tuple[str, ...]:
    """Which protocols a data set allows; all for an unknown one, whose opening then fails.

    With a hold-out, only those with a training split to hold it out of.
    """
    kind = data.partition(":")[0]
    if hold_out and kind in VIDEOS:
        raise UserError(f"--hold-out: {data} has no training split, as videos have none")
    if kind in (*IMAGES, *ADDED) or hold_out:
        return SEGMENTATION
    return ("video",) if kind in VIDEOS else PROTOCOLS


@dataclass(frozen=True)
class LinearConfig:
    """Linear segmentation. Defaults depend on the dataset: give --data to see them."""

    image_px: int = 448
    """Images are resized to a square of this side length."""
    framing: Literal["squash", "keep"] = "squash"
    """squash: resize to a square. keep: as in MMSegmentation, train on crops at random scales and
    score whole images with shorter side image_px; needs crop and score_px None."""
    blocks: int = 4
    """Number of last ViT blocks whose tokens are concatenated."""
    standardise: bool = False
    """Standardize each feature to zero mean and unit variance over the training split."""
    rates: tuple[float, ...] = (1e-3,)
    """Learning rates of Adam; a layer is trained with each, and the best score is reported."""
    poly: float = 0.0
    """Power of the polynomial learning rate decay (1 - step / steps); 0 keeps it constant."""
    batch: int = 60
    """Images per step."""
    epochs: int | None = 45
    """Passes over the training split."""
    steps: int | None = None
    """Training steps, instead of epochs."""
    crop: float | None = 0.8
    """Train on random crops of at least this fraction of the image, flipped with probability 0.5;
    None: on whole images, whose features are computed only once."""
    train_px: int = 448
    """Side length at which the loss is computed; logits are upsampled to it."""
    score_px: int | None = 448
    """Side length at which predictions are scored; None is each image's own size."""
    seed: int = 0
    """Seed for layer initialization, image order and crops."""

    def __post_init__(self) -> None:
        _check(self, "linear")
        if (self.epochs is None) == (self.steps is None):
            raise UserError(
                "training ends after --linear.epochs or --linear.steps: give one of them, and "
                "None for the other"
            )
        if self.crop is not None and not 0 < self.crop <= 1:
            raise UserError(f"--linear.crop must be in 0 … 1: {self.crop}")
        if self.framing == "keep" and (self.crop is not None or self.score_px is not None):
            raise UserError("--linear.framing keep needs --linear.crop and --linear.score-px None")


@dataclass(frozen=True)
class WithinConfig:
    """Within-image segmentation; tokens are preprocessed as with --kmeans.reading tokens."""

    image_px: int = 448
    """Images are resized to a square of this side length."""
    label_px: int = 100
    """Side length at which clusters and labels are compared."""
    blocks: int = 1
    """Number of last ViT blocks whose tokens are concatenated."""
    pca: int = 50
    """Number of dimensions of a PCA over the tokens of all images."""
    seeds: int = 5
    """Number of runs with different seeds whose scores are averaged."""
    restarts: int = 5
    """K-means restarts; the best is kept."""

    def __post_init__(self) -> None:
        _check(self, "within")


@dataclass(frozen=True)
class KmeansConfig(WithinConfig):
    """Unsupervised segmentation. Defaults depend on the dataset: give --data to see them."""

    reading: Literal["pixels", "tokens"] = "pixels"
    """Cluster features resized to label_px, or patch tokens; only tokens are reduced by PCA."""
    clusters: int | None = None
    """Number of clusters: by default one per class, matched 1:1; more are matched many to one."""

    def __post_init__(self) -> None:
        _check(self, "kmeans")


@dataclass(frozen=True)
class InContextConfig:
    """In-context segmentation with Hummingbird's settings, at the other protocols' image size."""

    image_px: int = 448
    """Images are resized to this square (open-hummingbird-eval: 512 for patch size 16)."""
    label_px: int = 448
    """Side length of stored and scored labels (open-hummingbird-eval: the image size)."""
    blocks: int = 1
    """Number of last ViT blocks whose tokens are concatenated."""
    memory: int = 1_024_000
    """Maximum number of stored patches, divided evenly among the images; Hummingbird uses
    10,240,000, open-hummingbird-eval also 1,024,000 and 102,400."""
    neighbours: int = 30
    """Number of nearest neighbors per patch; all stored patches if there are fewer."""
    temperature: float = 0.02
    """Temperature of the softmax over cosine similarities that weights the neighbors' labels."""
    seed: int = 0
    """Seed for sampling the stored patches."""

    def __post_init__(self) -> None:
        _check(self, "incontext")


@dataclass(frozen=True)
class VideoConfig:
    """Video object segmentation by DINO's protocol, as in the paper."""

    short_px: int = 480
    """The shorter side of a frame; the longer one is rounded down to a multiple of 64."""
    last_frames: int = 7
    """Number of previous frames to propagate from, in addition to the first."""
    radius: int = 12
    """Radius of the search window, in patches."""
    best: int = 5
    """Number of most similar patches (top-k) to average."""
    temperature: float = 0.1
    """Temperature: patches are weighted by exp(cosine / temperature)."""

    def __post_init__(self) -> None:
        _check(self, "video")


def _check(config: Any, section: str) -> None:
    """Counts and sizes start at 1, rates and temperatures above 0."""
    require_finite(section, config)
    least = {"poly": 0, "seed": 0, "last_frames": 0, "radius": 0, "clusters": 2}
    least |= {"rates": 1e-12, "temperature": 1e-12, "crop": 0}
    for field in dataclasses.fields(config):
        if field.type is not bool:
            require_least(config, section, least.get(field.name, 1), field.name)


def linear_protocol(kind: str) -> LinearConfig:
    """The default configuration for a kind of data."""
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
    if kind in PAPERS:
        return LinearConfig(epochs=45 if kind == "voc12" else 10)
    # Sets of some hundred images: one block, no crops, so that features are computed only once.
    small = LinearConfig(
        blocks=1,
        standardise=True,
        batch=32,
        epochs=None,
        steps=1500,
        crop=None,
        train_px=112,
        score_px=112,
    )
    if kind != "scenes":
        return small
    # Small images and networks: seconds on two cores.
    return dataclasses.replace(
        small, image_px=96, rates=(3e-2,), poly=1.0, steps=1000, train_px=24, score_px=96
    )


def kmeans_protocol(kind: str) -> KmeansConfig:
    """The paper's reading for its data sets; for small sets the one of their published scores."""
    if kind == "scenes":
        return KmeansConfig(reading="tokens", image_px=96, label_px=96)
    return KmeansConfig() if kind in PAPERS else KmeansConfig(reading="tokens")


def _same_for_all(config: Any, **scenes: int) -> Callable[[str], Any]:
    """One configuration for all data, but scenes are small."""
    return lambda kind: dataclasses.replace(config, **scenes) if kind == "scenes" else config


DEFAULTS: dict[str, Callable[[str], Any]] = {
    "linear": linear_protocol,
    "kmeans": kmeans_protocol,
    "within": _same_for_all(WithinConfig(), image_px=96, label_px=96),
    "incontext": _same_for_all(InContextConfig(), image_px=96, label_px=96),
    "video": _same_for_all(VideoConfig(), short_px=192),
}
"""From a kind of data to a protocol's configuration."""


@dataclass(frozen=True)
class Request:
    """One protocol on one data set; a column of a table."""

    protocol: str
    data: str
    config: Any
    masks: str | None = None
    overlays: str | None = None
    adapts: bool = False
    """Whether a size that does not fit the patches may be changed; not if the user set it."""
    hold_out: float = 0.0
    """The share of the training split to score, instead of the validation split."""

    @property
    def name(self) -> str:
        """K-means with 4 blocks has columns of its own beside those with 1."""
        four = self.protocol == "kmeans" and self.config.blocks == 4
        return "kmeans (4 blocks)" if four else self.protocol

    @property
    def place(self) -> str:
        return f"{self.name} on {self.data}"

    @property
    def size_field(self) -> str:
        return "short_px" if self.protocol == "video" else "image_px"
