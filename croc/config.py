"""Configurations: frozen dataclasses with a docstring per field, validated on construction.

The defaults are the paper's for COCO (its implementation section and appendix); recipes.py has
named configurations. A run's config.json is such a configuration on disk.
"""

import contextlib
import dataclasses
import io
import json
import math
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typeguard
import tyro
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from croc.errors import UserError
from croc.io import replacing

CONFIG_FILE = "config.json"


class Limit(NamedTuple):
    """The allowed range of an option, as metadata of its field; not for None and strings."""

    text: str
    low: float | int
    high: float | int = math.inf
    rising: bool = False
    """For pairs: the second must not be less than the first."""


_TINY, _BELOW_ONE = math.ulp(0.0), math.nextafter(1.0, 0.0)
SHARE = Limit("must be between 0 and 1 (inclusive)", 0, 1)
SHARE_BELOW_ONE = Limit("must be at least 0 and less than 1", 0, _BELOW_ONE)
BETWEEN = Limit("must be greater than 0 and less than 1", _TINY, _BELOW_ONE)
POSITIVE = Limit("must be positive", _TINY)
RISING = Limit("must be positive, the second value not below the first", _TINY, rising=True)
RISING_SHARE = Limit(
    "must be in 0 … 1, the second value not below the first", _TINY, 1, rising=True
)


def required_if_empty(default: str) -> str:
    """The end of an option's help, for tuples whose empty default is refused."""
    return f"(default: {default})" if default else "(required for training)"


def at_least(low: float | int) -> Limit:
    return Limit(f"must be at least {low}", low)


def require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


class Section:
    """A part of a configuration; options are checked against the limits in their annotations."""

    section = ""

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(type(self), include_extras=True).items():
            flag = "--" + f"{self.section}.{name}".removeprefix(".").replace("_", "-")
            value = getattr(self, name)
            values = value if isinstance(value, tuple) else (value,)
            numbers = [x for x in values if isinstance(x, int | float)]
            for limit in getattr(hint, "__metadata__", ()):
                if isinstance(limit, Limit):
                    fits = all(limit.low <= x <= limit.high for x in numbers)
                    rises = not limit.rising or numbers == sorted(numbers)
                    require(fits and rises, f"{flag} {limit.text}: {value}")
            # An infinite λ_pos is clustering by position alone.
            if (flag, value) != ("--cluster.position-weight", math.inf):
                is_finite = all(abs(x) < math.inf for x in numbers)
                require(is_finite, f"{flag} must be finite: {value}")


@dataclass(frozen=True)
class DataConfig(Section):
    """The training images."""

    section = "data"
    root: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint=required_if_empty)] = ()
    """Image folder(s), searched recursively; tar shard(s) such as 'coco-{000..009}.tar'; a
    folder made by `croc data pack`; or `scenes` for synthetic scenes."""
    subfolders: tuple[str, ...] = ()
    """Subfolders to read, if a root contains them (COCO: train2017); other roots are read in
    full."""
    max_side_px: Annotated[int, at_least(16)] = 640
    """Maximum length of the longer side, in pixels; larger images are downscaled when decoded. Keep
    it large enough that the smallest crops need not be upscaled to the view size."""
    workers: Annotated[int | None, at_least(0)] = None
    """Data loading workers per training process; by default the CPU cores divided by the number of
    training processes, at most 16."""
    scenes: Annotated[int, at_least(1)] = 1024
    """Number of synthetic scenes, with --data.root scenes."""
    max_corrupt_fraction: Annotated[float, SHARE] = 0.01
    """Stop the run if more than this fraction of the files read so far cannot be decoded. Three
    files are always tolerated, unless this is 0."""


@dataclass(frozen=True)
class ViewsConfig(Section):
    """The two augmented crops of an image."""

    section = "views"
    size_px: Annotated[int, at_least(1)] = 224
    """Side length of a view, in pixels."""
    early_px: Annotated[int | None, at_least(1)] = None
    """Side length of a view in the first epochs, if different: smaller views train faster. Their
    blur is scaled down proportionally."""
    early_epochs: Annotated[int, at_least(0)] = 0
    """Number of epochs with views of size --views.early-px."""
    scale: Annotated[tuple[float, float], RISING_SHARE] = (0.25, 1.0)
    """Minimum and maximum area of a crop, as a fraction of the image area."""
    ratio: Annotated[tuple[float, float], RISING] = (3 / 4, 4 / 3)
    """Minimum and maximum aspect ratio of a crop, width / height."""
    flip: Annotated[float, SHARE] = 0.5
    """Probability of a horizontal flip."""
    jitter: Annotated[float, SHARE] = 0.8
    """Probability of color jitter."""
    brightness: Annotated[float, SHARE] = 0.4
    """Color jitter: the brightness factor is drawn uniformly from 1 ± this value."""
    contrast: Annotated[float, SHARE] = 0.4
    """Color jitter: the contrast factor is drawn uniformly from 1 ± this value."""
    saturation: Annotated[float, SHARE] = 0.2
    """Color jitter: the saturation factor is drawn uniformly from 1 ± this value."""
    hue: Annotated[float, Limit("must be in 0 … 0.5", 0, 0.5)] = 0.1
    """Color jitter: the hue shift is drawn uniformly from ± this value; 1 is the full circle."""
    grayscale: Annotated[float, SHARE] = 0.2
    """Probability of conversion to grayscale."""
    blur: Annotated[tuple[float, float], SHARE] = (1.0, 0.1)
    """Probability of Gaussian blur in the first and in the second view."""
    blur_sigma: Annotated[tuple[float, float], RISING] = (0.1, 2.0)
    """Minimum and maximum sigma of the blur, in pixels."""
    solarize: Annotated[tuple[float, float], SHARE] = (0.0, 0.2)
    """Probability of solarization in the first and in the second view."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.early_px is None) == (self.early_epochs == 0),
            "--views.early-px and --views.early-epochs belong together: pass both or neither",
        )

    def at_epoch(self, epoch: int) -> "ViewsConfig":
        """Smaller views, with proportionally less blur, in the early epochs."""
        if self.early_px is None or epoch >= self.early_epochs:
            return self
        low, high = (sigma * self.early_px / self.size_px for sigma in self.blur_sigma)
        return replace(self, size_px=self.early_px, blur_sigma=(low, high))


@dataclass(frozen=True)
class ModelConfig(Section):
    """The backbone: a ViT with a CLS token, of timm's VisionTransformer or Eva family."""

    section = "model"
    name: str = "vit_small_patch16_224"
    """Name of a timm architecture; no weights are downloaded. With --init, the weights determine
    the network, unless you pass its name, patch size or depth."""
    patch_px: Annotated[int | None, at_least(1)] = None
    """Patch size, if different from the named model's."""
    depth: Annotated[int | None, at_least(1)] = None
    """Number of blocks, if different from the named model's."""
    drop_path: Annotated[float, SHARE_BELOW_ONE] = 0.1
    """Stochastic depth rate of the student's last block; it increases linearly over the blocks."""
    position_window: Annotated[tuple[float, float], RISING_SHARE] = (1.0, 1.0)
    """During training, each view gets the position embeddings of a random window of the grid, so
    that tokens cannot tell where in the view they are. Minimum and maximum side of the window as a
    fraction of the grid's; 1 1 is the whole grid, as in the paper."""
    init: Annotated[str | None, tyro.conf.arg(prefix_name=False)] = None
    """Weights to initialize the backbone from: a run, timm:NAME, hf:USER/NAME, a file, or the name
    of bundled weights; random by default."""
    train_blocks: Annotated[int | None, at_least(1)] = None
    """Train only the last N blocks and the final norm, and freeze the rest; by default everything
    is trained."""
    grad_checkpointing: bool = False
    """Recompute the activations of the student's blocks in the backward pass instead of keeping
    them: less memory, a third more time. For large networks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.init != "", "--init is empty: pass weights, or omit it")


@dataclass(frozen=True)
class ImageHeadConfig(Section):
    """The projection head: a trunk and an output layer for images."""

    section = "head"
    layers: Annotated[int, at_least(1)] = 3
    """Number of linear layers in the trunk, including the bottleneck layer."""
    hidden: Annotated[int, at_least(1)] = 2048
    """Hidden dimension of the trunk."""
    bottleneck: Annotated[int, at_least(1)] = 256
    """Dimension of the bottleneck, the input of the prototypes."""
    image_prototypes: Annotated[int, at_least(2)] = 65_536
    """Number of prototypes for images."""
    unit_prototypes: bool = False
    """Normalize the prototypes to unit length (DINO's norm_last_layer)."""


@dataclass(frozen=True)
class HeadConfig(ImageHeadConfig):
    """The projection head: a shared trunk, an output layer for images and one for clusters."""

    cluster_prototypes: Annotated[int, at_least(2)] = 8_192
    """Number of prototypes for clusters."""


@dataclass(frozen=True)
class DecoderConfig(Section):
    """MAE's masking, and its decoder."""

    section = "decoder"
    mask_ratio: Annotated[float, BETWEEN] = 0.75
    """Fraction of the patches that are masked."""
    width: Annotated[int, at_least(1)] = 512
    """Width of the decoder."""
    depth: Annotated[int, at_least(1)] = 8
    """Number of decoder blocks."""
    heads: Annotated[int, at_least(1)] = 16
    """Number of attention heads per decoder block."""
    normalize_patches: bool = True
    """Normalize each target patch to mean 0 and standard deviation 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.width % (4 * self.heads) == 0,
            f"--decoder.width {self.width} must be a multiple of 4 × --decoder.heads {self.heads}",
        )


@dataclass(frozen=True)
class ClusterConfig(Section):
    """Online clustering of the tokens of both views together."""

    section = "cluster"
    variant: Literal["paper", "released"] = "paper"
    """paper: as the paper describes it. released: exactly as in the authors' code. docs/method.md
    lists the differences."""
    k_start: Annotated[int, at_least(2)] = 12
    """Initial number of centroids. They are merged until two are left, and the best K along the way
    is chosen (--cluster.k-select)."""
    tokens: Literal["values", "keys", "queries", "last"] = "values"
    """Tokens to cluster: the last block's values, keys or queries (per head), or its output tokens
    (`last`)."""
    position_weight: Annotated[float, at_least(0)] = 4.0
    """λ_pos, the weight of the spatial distance; pass inf to cluster by position alone."""
    sharpness: Annotated[float, POSITIVE] = 20.0
    """λ, the inverse strength of the entropic regularization; higher values give harder
    assignments."""
    sinkhorn_iterations: Annotated[int, at_least(1)] = 5
    """Number of Sinkhorn iterations; each normalizes rows, then columns."""
    saliency: Literal["attention", "uniform"] = "attention"
    """The weight of each token: its CLS attention, as in the paper, or the same for all. Initial
    centroids are sampled in proportion to it, and clusters are balanced by total weight."""
    sizes: Literal["balanced", "free"] = "balanced"
    """balanced: clusters have nearly equal total weights, as in the paper. free: each token is
    assigned by softmax(−λ · cost), whatever the sizes of the clusters."""
    k_max: int | None = None
    """The largest K that may be chosen; by default --cluster.k-start."""
    k_select: Literal["cost", "fixed"] = "cost"
    """Choose the K with the lowest transport cost, or fix K to --cluster.k-max (for ablations)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.k_max is None or 2 <= self.k_max <= self.k_start,
            f"--cluster.k-max must be in 2 … k-start ({self.k_start}): {self.k_max}",
        )
        require(
            self.k_select == "cost" or self.k_max is not None,
            "--cluster.k-select fixed needs --cluster.k-max for the K",
        )
        require(
            self.variant == "paper" or (self.saliency, self.sizes) == ("attention", "balanced"),
            "--cluster.saliency uniform and --cluster.sizes free need --cluster.variant paper",
        )
        require(
            self.variant == "paper" or self.sharpness <= 80,
            f"--cluster.sharpness {self.sharpness:g} needs --cluster.variant paper: the released "
            "code's exp() overflows float32 above 80",
        )

    @property
    def k_range(self) -> tuple[int, int]:
        """The smallest and the largest K that may be chosen."""
        largest = self.k_max or self.k_start
        return (largest if self.k_select == "fixed" else 2), largest


@dataclass(frozen=True)
class DistillationConfig(Section):
    """Self-distillation."""

    section = "loss"
    student_temp: Annotated[float, POSITIVE] = 0.1
    """Student temperature τ_s."""
    teacher_temp: Annotated[float, POSITIVE] = 0.07
    """Teacher temperature τ_t after its warm-up."""
    teacher_temp_start: Annotated[float, POSITIVE] = 0.04
    """Teacher temperature τ_t at the start of its warm-up. There is no warm-up if
    --loss.temp-warmup-epochs is 0 or 1."""
    temp_warmup_epochs: Annotated[int, at_least(0)] = 30
    """Epochs over which τ_t is warmed up; it is updated once per epoch."""
    centering: Literal["mean", "sinkhorn"] = "mean"
    """How the teacher's outputs are centered. mean: subtract their moving average (the paper,
    DINO). sinkhorn: make the batch use all prototypes equally (SwAV, DINOv2)."""
    center_momentum: Annotated[float, SHARE] = 0.9
    """Momentum of the moving average used for centering."""
    teacher_momentum: Annotated[float, SHARE] = 0.996
    """EMA momentum of the teacher at the start; it increases to 1 at the end."""
    frozen_prototype_epochs: Annotated[int, at_least(0)] = 1
    """Epochs at the start during which the prototypes are frozen."""
    mask_ratio: Annotated[float, SHARE_BELOW_ONE] = 0.0
    """Fraction of the patches that are masked for the student in half of the images; it predicts
    the teacher's tokens there, as in iBOT. 0 disables masking, as in the paper."""


@dataclass(frozen=True)
class AnchorConfig(Section):
    """Post-training: keep the similarities between patches close to those of the network that the
    run started from (--init), as DINOv3's Gram anchoring does."""

    section = "anchor"
    weight: Annotated[float, at_least(0)] = 0.0
    """Weight of the anchor loss at the start; 0 disables it."""
    weight_end: Annotated[float | None, at_least(0)] = None
    """Weight of the anchor loss at the end, reached by a cosine schedule; by default it is
    constant."""


@dataclass(frozen=True)
class LossConfig(DistillationConfig):
    """Self-distillation at image and cluster level, with shared temperatures."""

    alpha: Annotated[float, at_least(0)] = 1.0
    """Weight of the cluster loss relative to the image loss."""


@dataclass(frozen=True)
class OptimConfig(Section):
    """The optimizer and its schedules."""

    section = "optim"
    batch: Annotated[int, at_least(1)] = 256
    """Global batch size: images per step, over all processes."""
    epochs: Annotated[int, at_least(1)] = 300
    """Number of epochs."""
    lr: Annotated[float, at_least(0)] = 5e-4
    """Learning rate at batch size 256; scaled linearly with the batch size."""
    lr_end: Annotated[float, at_least(0)] = 1e-5
    """Final learning rate; not scaled with the batch size."""
    warmup_epochs: Annotated[int, at_least(0)] = 10
    """Epochs of linear learning rate warm-up."""
    weight_decay: Annotated[float, at_least(0)] = 0.04
    """Weight decay at the start."""
    weight_decay_end: Annotated[float, at_least(0)] = 0.4
    """Weight decay at the end."""
    clip_gradient: Annotated[float, at_least(0)] = 0.0
    """Maximum gradient norm; 0 disables clipping."""
    betas: Annotated[tuple[float, float], SHARE_BELOW_ONE] = (0.9, 0.999)
    """AdamW's β₁ and β₂."""
    matrix_optimizer: Literal["adamw", "muon"] = "adamw"
    """Optimizer for the weight matrices of the ViT blocks: AdamW as in the paper, or Muon, which
    needed a third as many samples in a short experiment. AdamW optimizes all other
    parameters."""
    muon_lr_factor: Annotated[float, at_least(0)] = 1.0
    """Muon's learning rate as a multiple of --optim.lr."""
    layer_decay: Annotated[float, Limit("must be above 0 and at most 1", _TINY, 1)] = 1.0
    """Layer-wise decay: the learning rate of each block as a fraction of the next block's, so that
    the first blocks change the least. For post-training; 1 disables it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.warmup_epochs < self.epochs,
            f"--optim.warmup-epochs ({self.warmup_epochs}) must be below --optim.epochs "
            f"({self.epochs}); lower one or raise the other",
        )


@dataclass(frozen=True)
class RunConfig(Section):
    """How the run is executed. Only --run.seed, --run.precision and --run.stop-after-steps (and,
    with `released` clustering, the number of processes) change the result by more than rounding
    error."""

    section = "run"
    folder: str | None = None
    """Output folder; by default runs/RECIPE. If it already contains this run, the run is
    resumed."""
    resume: Annotated[Literal["auto", "never", "must"], tyro.conf.arg(prefix_name=False)] = "auto"
    """auto: resume if the folder contains a run, otherwise start one. never: fail if it contains a
    run. must: fail if it does not."""
    seed: Annotated[int, Limit("must be between 0 and 2³¹ − 1", 0, 2**31 - 1)] = 0
    """Seed for weight initialization, sample order and augmentation."""
    stop_after_steps: Annotated[int | None, at_least(1)] = None
    """Save a checkpoint and stop at this step; schedules still span all epochs."""
    log_every_steps: Annotated[int, at_least(1)] = 10
    """Steps between lines of metrics.jsonl."""
    checkpoint_every_steps: Annotated[int, at_least(1)] = 500
    """Steps between checkpoints; only the last two are kept."""
    keep_every_steps: Annotated[int | None, at_least(1)] = None
    """Also keep the checkpoints at multiples of this number of steps."""
    report: bool = True
    """At each checkpoint, compute gauges (label-free metrics of the features), plot clusters and
    write report.html."""
    max_skipped: Annotated[int, at_least(1)] = 10
    """Steps with non-finite gradients are skipped; stop after this many in a row. Checked whenever
    metrics are logged."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Device type to train on."""
    devices: Annotated[int | Literal["auto"], at_least(1)] = "auto"
    """Processes per node; auto is one per GPU, or a single process on the CPU."""
    nodes: Annotated[int, at_least(1)] = 1
    """Number of nodes."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """ddp: each process holds the full networks. fsdp: each process holds a shard of them, for
    networks that do not fit on one GPU. A run can be resumed with either."""
    timeout_s: Annotated[float, POSITIVE] = 600.0
    """Seconds to wait for other processes before exiting with an error."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto is bfloat16 autocast on GPUs that support it, and float32 otherwise."""
    compile: bool | Literal["auto"] = "auto"
    """Use torch.compile; auto enables it on GPUs only."""
    cuda_graph: bool | Literal["auto"] = "auto"
    """Capture the step as a CUDA graph; auto enables it on a single GPU, if compiled."""
    kernels: bool = True
    """Use CrOC's own kernels on a GPU instead of the slower PyTorch reference."""
    micro_batch: Annotated[int | None, at_least(1)] = None
    """Images per process in one forward and backward pass, to save memory; gradients are the same.
    By default the whole batch on a GPU or with `sinkhorn` centering, otherwise 16. Not available
    with `released` clustering, which needs the whole batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_path = self.folder is None or ("\0" not in self.folder and self.folder != "")
        require(is_path, "--run.folder is not a path")


@dataclass(frozen=True)
class PretrainConfig:
    """The sections common to all methods."""

    data: DataConfig = field(default_factory=DataConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        require(
            self.optim.matrix_optimizer == "adamw" or self.run.strategy == "ddp",
            "--optim.matrix-optimizer muon needs full matrices, which FSDP does not have: "
            "use --run.strategy ddp, or --optim.matrix-optimizer adamw",
        )
        require(
            self.optim.matrix_optimizer == "adamw" or self.optim.layer_decay == 1,
            "--optim.layer-decay needs --optim.matrix-optimizer adamw",
        )


@dataclass(frozen=True)
class DinoConfig(PretrainConfig):
    """Pre-train a backbone with DINO."""

    head: ImageHeadConfig = field(default_factory=ImageHeadConfig)
    loss: DistillationConfig = field(default_factory=DistillationConfig)
    anchor: AnchorConfig = field(default_factory=AnchorConfig)


@dataclass(frozen=True)
class CrocConfig(DinoConfig):
    """Pre-train a backbone with CrOC."""

    head: HeadConfig = field(default_factory=HeadConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    loss: LossConfig = field(default_factory=LossConfig)

    def __post_init__(self) -> None:
        require(
            self.cluster.variant == "paper" or self.run.micro_batch is None,
            "--cluster.variant released needs --run.micro-batch None, since its costs and norms "
            "are computed over the whole batch",
        )
        super().__post_init__()


@dataclass(frozen=True)
class MaeConfig(PretrainConfig):
    """Pre-train a backbone with MAE."""

    decoder: DecoderConfig = field(default_factory=DecoderConfig)


METHODS: dict[str, type[PretrainConfig]] = {
    "croc": CrocConfig,
    "dino": DinoConfig,
    "mae": MaeConfig,
}
"""Configuration class by the method's name in config.json."""


RENAMED = {
    "data": {"canvas_px": "max_side_px", "max_failed_share": "max_corrupt_fraction"},
    "views": {"solarise": "solarize"},
    "decoder": {"normalise_patches": "normalize_patches", "mask": "mask_ratio"},
    "loss": {
        "mask": "mask_ratio",
        "centring": "centering",
        "student_temperature": "student_temp",
        "teacher_temperature": "teacher_temp",
        "teacher_temperature_start": "teacher_temp_start",
        "temperature_warmup_epochs": "temp_warmup_epochs",
    },
    "optim": {
        "rate": "lr",
        "rate_end": "lr_end",
        "muon_rate_factor": "muon_lr_factor",
        "matrices": "matrix_optimizer",
    },
    "run": {"record": "cuda_graph"},
}
"""Options by section that a config.json of an earlier version has under another name."""


def method_name(config: PretrainConfig) -> str:
    return next(name for name, kind in METHODS.items() if type(config) is kind)


def config_dict(config: PretrainConfig, recipe: str) -> dict[str, Any]:
    """The content of config.json."""
    return {"recipe": recipe, "method": method_name(config), **dataclasses.asdict(config)}


def write_config(folder: Path, config: PretrainConfig, recipe: str) -> None:
    """Write config.json, from which the same run can be started again and trained to the end."""
    run = replace(config.run, stop_after_steps=None, resume="auto")
    content = config_dict(replace(config, run=run), recipe)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / CONFIG_FILE) as partial:
        partial.write_text(json.dumps(content, indent=2) + "\n")


def read_config(path: Path) -> tuple[PretrainConfig, str]:
    """A run's configuration and its recipe's name."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} not found: pass the {CONFIG_FILE} of a run folder") from None
    except ValueError as error:
        raise UserError(f"{path} is not a CrOC run configuration: {error}") from None
    return parse_config(content, str(path))


def parse_config(content: Any, source: str) -> tuple[PretrainConfig, str]:
    """Parse the content of config.json; `source` names it in error messages."""
    try:
        sections = {**content}
        recipe, method = sections.pop("recipe"), sections.pop("method", "croc")
        for section, names in RENAMED.items():
            if section in sections:
                options = sections[section].items()
                sections[section] = {names.get(name, name): value for name, value in options}
        return _build(METHODS[method], sections, ""), str(recipe)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{source} is not a CrOC run configuration: {error}") from None


def _build(kind: Any, content: Any, name: str) -> Any:
    """Build a dataclass from its fields, checking types and converting lists to tuples.

    Options missing from files of older versions get their defaults, which keep the old behavior.
    """
    if not dataclasses.is_dataclass(kind):
        value = tuple(content) if isinstance(content, list) else content
        try:
            return typeguard.check_type(value, kind)
        except typeguard.TypeCheckError as error:
            raise ValueError(f"{name[1:]}: {error}") from None
    hints = typing.get_type_hints(kind)
    unknown = ", ".join(f"{name}.{key}"[1:] for key in sorted(content.keys() - hints.keys()))
    if unknown:
        raise ValueError(f"unknown: {unknown}")
    fields = {key: _build(hints[key], value, f"{name}.{key}") for key, value in content.items()}
    return typing.cast(Any, kind)(**fields)


HELP = ConstructorRegistry()


@HELP.struct_rule
def _with_tidy_help(info: StructTypeInfo) -> StructConstructorSpec | None:
    """tyro's own rules, but --help wraps the docstrings of options as one paragraph each, and
    describes empty defaults."""
    if HELP in info.markers or not dataclasses.is_dataclass(info.type):
        return None
    spec = HELP.get_struct_spec(replace(info, markers=(*info.markers, HELP)))
    if not isinstance(spec, StructConstructorSpec):
        return None
    declared, missing = dataclasses.fields(info.type), dataclasses.MISSING
    required = {x.name for x in declared if x.default is x.default_factory is missing}
    options = (_tidy(option, option.name in required) for option in spec.fields)
    return replace(spec, fields=tuple(options))


def _tidy(option: StructFieldSpec, required: bool) -> StructFieldSpec:
    def text() -> str | None:
        raw = option.helptext() if callable(option.helptext) else option.helptext
        return " ".join(raw.split()) if raw else None

    def default(label: str) -> str:
        if label == "" and required:
            return "(required)"
        described = label in ("", "None") and "by default" in (text() or "").lower()
        return "" if described else f"(default: {label or 'none'})"

    kind: Any = option.type
    if not any(getattr(x, "help_behavior_hint", None) for x in typing.get_args(kind)):
        hint: Any = tyro.conf.arg(help_behavior_hint=default)
        kind = Annotated[kind, hint]
    return replace(option, type=kind, helptext=text)


def parse(kind: type, arguments: list[str], program: str, default: Any = None) -> Any:
    """The dataclass that the arguments describe; --help prints the options and exits."""
    options: dict[str, Any] = {} if default is None else {"default": default}
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                kind,
                args=arguments,
                prog=program,
                config=(tyro.conf.AvoidSubcommands,),
                registry=HELP,
                **options,
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise UserError(f"{_first_sentence(errors.getvalue())}; see {program} --help") from None


def option_names(arguments: Sequence[str]) -> set[str]:
    """The names of the options that were passed, such as "model.name"."""
    flags = [word[2:].partition("=")[0] for word in arguments if word.startswith("--")]
    return {flag.replace("_", "-") for flag in flags}


def _first_sentence(box: str) -> str:
    """The first part of tyro's boxed error message, or the part about unknown options, which are
    often the misspelled names of missing ones; and, if there is one, its suggestion.

    Rules separate the parts below the title; on a terminal with only ASCII, the title too. What is
    missing is listed with its help, which is indented further.
    """
    lines = [line for line in box.splitlines()[1:] if not re.match(r"[│ ] {9}", line)]
    lines = [line.strip("│╭╮╰╯|+ ") for line in lines]
    parts = "\n".join("" if not line.strip("─-") else line for line in lines).strip().split("\n\n")
    first = next((part for part in parts if part.startswith("Unrecognized")), parts[0])
    near = re.search(r"Perhaps you meant:\s+(\S+)", box.replace("│", ""))
    return first + (f"; perhaps you meant {near[1]}" if near else "")
