"""The options of `croc evaluate`: configurations, and the papers' defaults for each dataset.

Nothing here imports torch, so that `croc evaluate --help` is fast.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

from croc.config import POSITIVE, SHARE_BELOW_ONE, Limit, Section, at_least, parse
from croc.errors import UserError

Usual = Literal["linear", "kmeans", "within", "incontext", "video"]
Protocol = Literal[Usual, "fewlabel"]
PROTOCOLS: tuple[Usual, ...] = get_args(Usual)
"""What `all` and tables run by default; `fewlabel` only runs on request."""
SEGMENTATION = tuple(name for name in get_args(Protocol) if name != "video")
PAPERS = ("voc12", "coco-things", "coco-stuff", "coco-stuff-panoptic", "ade20k")
IMAGES = (*PAPERS, "folder", "coco-things-mini", "idd-lite")
VIDEOS = ("davis17", "davis16")
Count = Annotated[int, at_least(1)]
VERSIONS = {"within": 2}
"""By protocol, 1 if not listed: raised by hand when a fix changes all its scores, so that tables
compute them again. Within, 2: clusters are enlarged about the centers of pixels."""
FEW = re.compile(r"all|[1-9]\d*|1/[1-9]\d*")
REGISTERED: dict[str, Callable[[str, str], Any]] = {}
"""Kinds of segmentation datasets registered by `croc.register_dataset`, with their openers."""


def protocols_of(data: str, hold_out: float = 0.0) -> tuple[str, ...]:
    """The protocols that a dataset supports; all for an unknown one, which then fails to open.

    With a hold-out, only those that have a training split.
    """
    kind = data.partition(":")[0]
    if hold_out and kind in VIDEOS:
        raise UserError(f"--hold-out: the video dataset {data} has no training split")
    if kind in (*IMAGES, *REGISTERED) or hold_out:
        return SEGMENTATION
    return ("video",) if kind in VIDEOS else (*SEGMENTATION, "video")


def check_protocol(protocol: str, data: str, hold_out: float) -> None:
    allowed = protocols_of(data, hold_out)
    if protocol not in allowed:
        raise UserError(f"{data} does not support {protocol}; it supports {', '.join(allowed)}")


@dataclass(frozen=True)
class LinearConfig(Section):
    """One linear layer on frozen features. Defaults depend on the dataset in --data."""

    section = "linear"
    image_px: Count = 448
    """Side length of the square input; with --linear.resize keep-ratio, the shorter side."""
    resize: Literal["square", "keep-ratio"] = "square"
    """square: resize images to a square. keep-ratio: as in MMSegmentation, train on crops at random
    scales and score whole images whose shorter side is --linear.image-px; requires --linear.crop
    None and --linear.score-px None."""
    blocks: Count = 4
    """Number of ViT blocks, counted from the last, whose tokens are concatenated."""
    standardize: bool = False
    """Standardize each feature to zero mean and unit variance over the training images."""
    lrs: Annotated[tuple[float, ...], POSITIVE] = (1e-3,)
    """Learning rates of AdamW; one layer is trained with each, and the one with the best mIoU
    on the scored images is reported (use --hold-out to keep the validation split out of this)."""
    poly: Annotated[float, at_least(0)] = 0.0
    """Power of the learning rate's polynomial decay, (1 - step / steps)^power; 0 keeps it
    constant."""
    weight_decay_scale: Annotated[float, at_least(0)] = 0.0
    """AdamW's weight decay is this value divided by the number of training images."""
    batch: Count = 60
    """Images per step."""
    epochs: Annotated[int | None, at_least(1)] = 45
    """Number of training epochs."""
    steps: Annotated[int | None, at_least(1)] = None
    """Training steps, instead of epochs."""
    crop: Annotated[float | None, Limit("must be greater than 0 and at most 1", 1e-12, 1)] = 0.8
    """Train on random crops of at least this fraction of the image area, flipped with probability
    0.5; None trains on whole images, whose features are computed only once."""
    train_px: Count = 448
    """Side length at which the loss is computed; logits are upsampled to it."""
    score_px: Annotated[int | None, at_least(1)] = 448
    """Side length at which predictions are scored; None scores at each image's original size."""
    seed: Annotated[int, at_least(0)] = 0
    """Seed for layer initialization, image order and crops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epochs is None) == (self.steps is None):
            raise UserError(
                "pass exactly one of --linear.epochs and --linear.steps, and None for the other"
            )
        if self.resize == "keep-ratio" and (self.crop is not None or self.score_px is not None):
            raise UserError(
                "--linear.resize keep-ratio needs --linear.crop and --linear.score-px None"
            )


@dataclass(frozen=True)
class WithinConfig(Section):
    """K-means on the features of each image separately, with clusters matched to the image's
    classes. Features are standardized and reduced by PCA."""

    section = "within"
    image_px: Count = 448
    """Images are resized to a square of this side length."""
    label_px: Count = 100
    """Side length at which clusters and labels are compared."""
    blocks: Count = 1
    """Number of ViT blocks, counted from the last, whose tokens are concatenated."""
    pca: Count = 50
    """Number of principal components kept, from a PCA over the tokens of all images; all of them if
    features have fewer."""
    seeds: Count = 5
    """Number of seeds; scores are averaged over them."""
    restarts: Count = 5
    """K-means restarts per seed; the best is kept."""


@dataclass(frozen=True)
class KmeansConfig(WithinConfig):
    """K-means on the features of the validation split, with clusters matched to classes. Defaults
    depend on the dataset in --data."""

    section = "kmeans"
    on: Literal["pixels", "tokens"] = "pixels"
    """pixels: cluster feature maps upsampled to --kmeans.label-px. tokens: cluster patch tokens,
    reduced by PCA."""
    clusters: Annotated[int | None, at_least(2)] = None
    """Number of clusters; by default one per class, matched one to one. With more clusters than
    classes, each cluster is assigned its majority class."""


@dataclass(frozen=True)
class InContextConfig(Section):
    """Label each patch by its nearest neighbors among the patches of the training split:
    Hummingbird's protocol, with a smaller memory and images and labels of 448 px."""

    section = "incontext"
    image_px: Count = 448
    """Images are resized to a square of this side length (open-hummingbird-eval: 512 for patch size
    16)."""
    label_px: Count = 448
    """Side length of stored and scored labels (open-hummingbird-eval: the image size)."""
    blocks: Count = 1
    """Number of ViT blocks, counted from the last, whose tokens are concatenated."""
    memory: Count = 1_024_000
    """Maximum number of stored patches, divided evenly among the images; Hummingbird uses
    10,240,000, open-hummingbird-eval also 1,024,000 and 102,400."""
    neighbors: Count = 30
    """Number of nearest neighbors per patch; all stored patches if there are fewer."""
    temperature: Annotated[float, POSITIVE] = 0.02
    """Temperature of the softmax over cosine similarities that weights the neighbors' labels."""
    seed: Annotated[int, at_least(0)] = 0
    """Seed for sampling the stored patches."""


@dataclass(frozen=True)
class FewLabelConfig(InContextConfig):
    """Run `linear` and `incontext` on random subsets of the training split and report the mean and
    standard deviation over several draws. Features are computed only once."""

    section = "fewlabel"
    label_px: Count = 112
    """Side length of the labels, in training and scoring."""
    seed: Annotated[int, at_least(0)] = 0
    """Seed for the draws, the linear layer and the stored patches."""
    images: tuple[str, ...] = ("1", "5", "20", "100", "all")
    """Numbers of labeled images: counts, fractions such as 1/128, or all."""
    methods: tuple[Literal["linear", "incontext"], ...] = ("linear", "incontext")
    """Protocols to run. On CPUs, `incontext` takes most of the time."""
    draws: Count = 5
    """Number of random draws to average over. Each draw shuffles the training images and takes the
    first N, so larger subsets contain the smaller ones."""
    lr: Annotated[float, POSITIVE] = 1e-3
    """Learning rate of the linear layer (AdamW), on features standardized over the subset."""
    weight_decay_scale: Annotated[float, at_least(0)] = 10.0
    """AdamW's weight decay is this value divided by the number of training images."""
    batch: Count = 32
    """Images per step; the whole subset if it is smaller."""
    steps: Count = 1500
    """Training steps of the linear layer: 50 per labeled image, but at least 200 and at most this
    many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.methods:
            raise UserError("--fewlabel.methods: pass linear, incontext or both")
        if not self.images or not all(map(FEW.fullmatch, self.images)):
            raise UserError(
                f"--fewlabel.images {' '.join(self.images)}: pass counts such as 20, fractions "
                "such as 1/128, or all"
            )

    @property
    def metrics(self) -> tuple[str, ...]:
        names = {"linear": "linear", "incontext": "in-context"}
        return tuple(f"{names[method]} {x}" for method in self.methods for x in self.images)


@dataclass(frozen=True)
class VideoConfig(Section):
    """Propagate the first frame's mask through each video, following DINO's protocol as in the
    paper."""

    section = "video"
    short_px: Count = 480
    """The shorter side of a frame; the longer one is rounded down to a multiple of 64."""
    last_frames: Annotated[int, at_least(0)] = 7
    """Number of previous frames to propagate from, in addition to the first."""
    radius: Annotated[int, at_least(0)] = 12
    """Radius of the search window, in patches."""
    top_k: Count = 5
    """Number of most similar patches to average."""
    temperature: Annotated[float, POSITIVE] = 0.1
    """The most similar patches are weighted by exp(cosine / temperature)."""


def linear_protocol(kind: str) -> LinearConfig:
    """The default configuration for a kind of data."""
    if kind == "ade20k":  # MMSegmentation's 40k schedule
        rates = (1e-3, 8e-4, 3e-4, 1e-4, 8e-5)
        schedule: Any = {"lrs": rates, "poly": 0.9, "batch": 16, "epochs": None, "steps": 40_000}
        sizes: Any = {"image_px": 512, "crop": None, "train_px": 512, "score_px": None}
        return LinearConfig(resize="keep-ratio", **schedule, **sizes)
    if kind in PAPERS:
        return LinearConfig(epochs=45 if kind == "voc12" else 10)
    # Sets of some hundred images: one block, no crops, so that features are computed only once.
    schedule = {"batch": 32, "epochs": None, "steps": 1500}
    sizes = {"crop": None, "train_px": 112, "score_px": 112}
    small = LinearConfig(blocks=1, standardize=True, **schedule, **sizes)
    if kind != "scenes":
        return small
    # Small images and networks: seconds on two cores.
    return dataclasses.replace(
        small, image_px=96, lrs=(3e-2,), poly=1.0, steps=1000, train_px=24, score_px=96
    )


SCENES = {"image_px": 96, "label_px": 96}


def kmeans_protocol(kind: str) -> KmeansConfig:
    """The paper's settings for its datasets; for small ones, those of docs/results.md."""
    if kind == "scenes":
        return KmeansConfig(on="tokens", **SCENES)
    return KmeansConfig() if kind in PAPERS else KmeansConfig(on="tokens")


DEFAULTS: dict[str, Callable[[str], Any]] = {
    "linear": linear_protocol,
    "kmeans": kmeans_protocol,
    "within": lambda kind: WithinConfig(**(SCENES if kind == "scenes" else {})),
    "incontext": lambda kind: InContextConfig(**(SCENES if kind == "scenes" else {})),
    "fewlabel": lambda kind: FewLabelConfig(image_px=96) if kind == "scenes" else FewLabelConfig(),
    "video": lambda kind: VideoConfig(short_px=192 if kind == "scenes" else 480),
}
"""By protocol: from a kind of dataset to the default configuration."""


def default_config(protocol: str, kind: str, flags: Iterable[str] = ()) -> Any:
    """The default configuration for a kind of data. Passing either --linear.epochs or
    --linear.steps replaces the default of the other."""
    config = DEFAULTS[protocol](kind)
    if protocol == "linear" and "--linear.epochs" in flags and config.epochs is None:
        return dataclasses.replace(config, epochs=1, steps=None)
    if protocol == "linear" and "--linear.steps" in flags and config.steps is None:
        return dataclasses.replace(config, epochs=None, steps=1)
    return config


@dataclass(frozen=True)
class Request:
    """One protocol on one dataset; a column of a table."""

    protocol: str
    data: str
    config: Any
    masks: str | None = None
    hold_out: float = 0.0
    """The fraction of the training split to score, instead of the validation split."""

    @property
    def name(self) -> str:
        """K-means with 4 blocks has its own columns, next to those with 1."""
        four = self.protocol == "kmeans" and self.config.blocks == 4
        return "kmeans (4 blocks)" if four else self.protocol

    @property
    def label(self) -> str:
        return f"{self.name} on {self.data}"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The scores that a table shows."""
        if self.protocol == "fewlabel":
            return self.config.metrics
        return ("J&F", "J", "F") if self.protocol == "video" else ("mIoU",)


@dataclass(frozen=True)
class EvaluateOptions(Section):
    """What to evaluate, and how."""

    weights: str
    """Name of bundled weights, a run folder or checkpoint, a weights file, hf:USER/NAME, timm:NAME,
    timm:NAME@FILE, random:NAME, random:RUN (a run's untrained network), or `colors` (a baseline
    without a network: colors and textures of the patches)."""
    data: str
    """KIND:PATH, where PATH is a folder or a .tar and KIND is voc12, coco-things, coco-stuff,
    coco-stuff-panoptic, ade20k, davis17, davis16, folder, coco-things-mini or idd-lite; or
    `scenes`, which needs no path."""
    to: str = "evaluations"
    """Output folder for results.jsonl (results are appended) and pictures."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device type to run on."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the backbone; auto is bfloat16 on a GPU and float32 on the CPU."""
    workers: Annotated[int | None, at_least(0)] = None
    """Data loading workers; by default one per CPU core, at most 16."""
    hold_out: Annotated[float, SHARE_BELOW_ONE] = 0.0
    """For model selection: score on this fraction of the training split, chosen by a hash of the
    image names, train on the rest, and do not use the validation split. Not for videos."""


@dataclass(frozen=True)
class EvaluateVideo(EvaluateOptions):
    masks: str | None = None
    """New folder for the predicted masks, in DAVIS format."""


@dataclass(frozen=True)
class EvaluateAll(EvaluateOptions):
    """Run every protocol that the datasets support (by default all but fewlabel), with the
    defaults for each dataset."""

    data: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    """One or more datasets, as for the individual protocols."""
    protocols: tuple[Protocol, ...] = PROTOCOLS
    """Protocols to run, each on the datasets that support it."""


def run_command(protocol: str, arguments: list[str]) -> bool:
    """Parse the flags and evaluate; False if cells of a table or curve could not be computed."""
    if protocol in ("table", "curve"):
        from croc.eval import curve, table

        return (table if protocol == "table" else curve).run_command(arguments)
    program = f"croc evaluate {protocol}"
    if protocol == "all":
        options, requests = read_options(arguments, EvaluateAll, program)
    else:
        base = EvaluateVideo if protocol == "video" else EvaluateOptions
        config = default_config(protocol, data_kind(arguments), flag_names(arguments))
        options = parse_options(base, {protocol: config}, arguments, program, config.__doc__)
        check_protocol(protocol, options.data, options.hold_out)
        config, masks = getattr(options, protocol), getattr(options, "masks", None)
        requests = [Request(protocol, options.data, config, masks, options.hold_out)]
    from croc.eval.evaluate import evaluate

    evaluate(options, requests)
    return True


def read_options(
    arguments: list[str], base: type[EvaluateAll], program: str, **defaults: Any
) -> tuple[Any, list[Request]]:
    """The options, and a request for each protocol on each dataset, with its own defaults.

    `defaults` are for options that the caller sets itself.
    """

    def parse_for(kind: str) -> Any:
        flags = flag_names(arguments)
        configs = {protocol: default_config(protocol, kind, flags) for protocol in DEFAULTS}
        return parse_options(base, configs, arguments, program, **defaults)

    options = parse_for(data_kind(arguments) or defaults.get("data", ("",))[0].partition(":")[0])
    by_data = {data: parse_for(data.partition(":")[0]) for data in options.data}
    requests = [
        Request(protocol, data, getattr(data_options, protocol), hold_out=options.hold_out)
        for protocol in dict.fromkeys(options.protocols)
        for data, data_options in by_data.items()
        if protocol in protocols_of(data, options.hold_out)
    ]
    for data in by_data.keys() - {request.data for request in requests}:
        raise UserError(f"--protocols {' '.join(options.protocols)}: none can be scored on {data}")
    return options, requests


def parse_options(
    base: type[Section],
    configs: dict[str, Any],
    arguments: list[str],
    program: str,
    doc: str | None = None,
    **defaults: Any,
) -> Any:
    """The options with a section for each protocol's configuration. Its defaults depend on the
    dataset, so that the class is made when the command is run."""
    fields = [(name, type(config), config) for name, config in configs.items()]
    options: Any = dataclasses.make_dataclass(
        base.__name__, fields, bases=(base,), frozen=True, kw_only=True
    )
    options.__doc__ = doc or base.__doc__
    return parse(options, arguments, program, options(**defaults) if defaults else None)


def data_kind(arguments: list[str]) -> str:
    """The kind of dataset in --data. It determines the defaults, so it is read before parsing."""
    return flag_value(arguments, "--data").partition(":")[0]


def flag_value(arguments: list[str], flag: str) -> str:
    """The value of a flag before parsing; empty if the flag was not passed."""
    words = [part for word in arguments for part in word.split("=", 1)]
    values = [value for word, value in pairwise(words) if word == flag]
    return values[-1] if values else ""


def flag_names(arguments: Iterable[str]) -> set[str]:
    return {word.partition("=")[0].replace("_", "-") for word in arguments}
