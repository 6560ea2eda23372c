"""What a run is: frozen dataclasses, a docstring a field, checked when they are made.

The defaults are the paper's for COCO (its implementation section and appendix); recipes.py
names whole configurations.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from croc.errors import UserError


def require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


def require_share(name: str, *values: float) -> None:
    require(all(0.0 <= value <= 1.0 for value in values), f"{name} must lie in 0 … 1: {values}")


def require_least(config: Any, section: str, least: float | int, *names: str) -> None:
    """Numbers, or tuples of them, of at least so much; None and words pass."""
    for name in names:
        value, flag = getattr(config, name), f"--{section}.{name}".replace("_", "-")
        values = value if isinstance(value, tuple) else (value,)
        numbers = [number for number in values if isinstance(number, int | float)]
        right = all(number >= least for number in numbers) and values != ()
        require(right, f"{flag} must be at least {least}: {value}")


def require_finite(section: str, config: Any) -> None:
    for field_ in dataclasses.fields(config):
        value = getattr(config, field_.name)
        values = value if isinstance(value, tuple) else (value,)
        numbers = [number for number in values if isinstance(number, float)]
        flag = f"--{section}.{field_.name}".replace("_", "-")
        endless = flag == "--cluster.position-weight" and value == math.inf
        require(endless or all(map(math.isfinite, numbers)), f"{flag} must be finite: {value}")


@dataclass(frozen=True)
class DataConfig:
    """Where the photographs are."""

    root: tuple[str, ...] = ()
    """Folder(s) of images at any depth, tar shard(s) such as 'coco-{000..009}.tar' or
    'pipe:COMMAND', a folder made by `croc data pack`, or the word scenes."""
    subfolders: tuple[str, ...] = ()
    """Where the root has these folders, only they are read (COCO: train2017)."""
    canvas_px: int = 384
    """Longer side to which an image is reduced when it is decoded; smaller ones stay."""
    workers: int | None = None
    """Decoding processes for each training process; by default the cores shared out, 16 at most."""
    scenes: int = 1024
    """Number of synthetic scenes, for the root scenes."""
    max_failed_share: float = 0.01
    """A run stops when a larger share of the files cannot be decoded."""

    def __post_init__(self) -> None:
        require_least(self, "data", 16, "canvas_px")
        require_least(self, "data", 1, "scenes")
        require_least(self, "data", 0, "workers")
        require_share("--data.max-failed-share", self.max_failed_share)


@dataclass(frozen=True)
class ViewsConfig:
    """The two crops of an image; pairs give a value for each view."""

    size_px: int = 224
    """Side of a view."""
    scale: tuple[float, float] = (0.25, 1.0)
    """Smallest and largest share of the image's area in a crop."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Narrowest and widest crop, width over height."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    jitter: float = 0.8
    """Probability of the colour jitter."""
    brightness: float = 0.4
    """Jitter: brightness factor in 1 ± this."""
    contrast: float = 0.4
    """Jitter: contrast factor in 1 ± this."""
    saturation: float = 0.2
    """Jitter: saturation factor in 1 ± this."""
    hue: float = 0.1
    """Jitter: hue shift within ± this, in turns."""
    grayscale: float = 0.2
    """Probability of grayscale."""
    blur: tuple[float, float] = (1.0, 0.1)
    """Probability of Gaussian blur."""
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    """Smallest and largest standard deviation of the blur, in pixels."""
    solarise: tuple[float, float] = (0.0, 0.2)
    """Probability of solarisation."""

    def __post_init__(self) -> None:
        require_least(self, "views", 1, "size_px")
        require(
            0 < self.scale[0] <= self.scale[1] <= 1,
            f"--views.scale must rise within 0 … 1: {self.scale}",
        )
        require(0 < self.ratio[0] <= self.ratio[1], f"--views.ratio must rise: {self.ratio}")
        require(
            0 < self.blur_sigma[0] <= self.blur_sigma[1],
            f"--views.blur-sigma must rise and be positive: {self.blur_sigma}",
        )
        require(0 <= self.hue <= 0.5, f"--views.hue must lie in 0 … 0.5: {self.hue}")
        for name in ("flip", "jitter", "brightness", "contrast", "saturation", "grayscale"):
            require_share(f"--views.{name}", getattr(self, name))
        require_share("--views.blur", *self.blur)
        require_share("--views.solarise", *self.solarise)


@dataclass(frozen=True)
class ModelConfig:
    """The backbone: any timm ViT."""

    name: str = "vit_small_patch16_224"
    """timm's name of the architecture; no weights are downloaded."""
    patch_px: int | None = None
    """Patch side, if not the named model's own."""
    depth: int | None = None
    """Number of blocks, if not the named model's own."""
    drop_path: float = 0.1
    """Stochastic depth of the student, rising linearly to this in the last block."""

    def __post_init__(self) -> None:
        require(0 <= self.drop_path < 1, f"--model.drop-path must lie in 0 … 1: {self.drop_path}")
        require_least(self, "model", 1, "depth", "patch_px")


@dataclass(frozen=True)
class HeadConfig:
    """The projection head: one trunk, an output for images and one for clusters."""

    layers: int = 3
    """Linear layers of the trunk, the bottleneck included."""
    hidden: int = 2048
    """Width of the trunk."""
    bottleneck: int = 256
    """Width before the prototypes."""
    image_prototypes: int = 65_536
    """Outputs for images."""
    cluster_prototypes: int = 8_192
    """Outputs for clusters."""
    unit_prototypes: bool = False
    """Keep the prototypes at unit length (DINO's norm_last_layer)."""

    def __post_init__(self) -> None:
        require_least(self, "head", 1, "layers", "hidden", "bottleneck")
        require_least(self, "head", 2, "image_prototypes", "cluster_prototypes")


@dataclass(frozen=True)
class ClusterConfig:
    """The online clustering of the joined tokens."""

    variant: Literal["paper", "released"] = "paper"
    """The paper's text made sound, or the authors' code point for point (docs/differences.md)."""
    k_start: int = 12
    """Number of centroids at the start; they merge until two are left."""
    tokens: Literal["values", "keys", "queries", "last"] = "values"
    """What is clustered: a projection of the last block, head by head, or the last tokens."""
    position_weight: float = 4.0
    """λ_pos, the weight of the positional cost; inf for position alone."""
    sharpness: float = 20.0
    """λ, the inverse of the entropy's weight."""
    sinkhorn_iterations: int = 5
    """Rows, then columns, this many times."""
    k_max: int | None = None
    """The largest K that may be chosen; by default K_start."""
    k_select: Literal["cost", "fixed"] = "cost"
    """K by the lowest transport cost, or fixed to k_max for the ablation."""

    def __post_init__(self) -> None:
        require(
            self.k_start >= 2,
            f"--cluster.k-start must be at least 2, since centroids merge until two are left: "
            f"{self.k_start}",
        )
        require(
            self.k_max is None or 2 <= self.k_max <= self.k_start,
            f"--cluster.k-max must lie in 2 … k-start ({self.k_start}): {self.k_max}",
        )
        require(
            self.k_select == "cost" or self.k_max is not None,
            "--cluster.k-select fixed needs --cluster.k-max to say which K",
        )
        require_least(self, "cluster", 0, "position_weight")
        require_least(self, "cluster", 1, "sinkhorn_iterations")
        require(
            0 < self.sharpness <= 80,
            f"--cluster.sharpness must lie in 0 … 80, or exp() leaves float32: {self.sharpness}",
        )
        require(
            self.variant == "paper" or math.isfinite(self.position_weight),
            "--cluster.position-weight inf needs --cluster.variant paper",
        )


@dataclass(frozen=True)
class LossConfig:
    """Self-distillation of images and clusters."""

    alpha: float = 1.0
    """Weight of the cluster loss beside the image loss."""
    student_temperature: float = 0.1
    """τ_s of both heads."""
    teacher_temperature: float = 0.07
    """τ_t of both heads, after its warm-up."""
    teacher_temperature_start: float = 0.04
    """τ_t in the first epoch."""
    temperature_warmup_epochs: int = 30
    """Epochs over which τ_t rises, by whole epochs."""
    centring: Literal["mean", "sinkhorn"] = "mean"
    """The centre that is taken from the teacher's outputs: their moving mean (the paper, DINO), or
    the one by which the batch uses all prototypes alike (SwAV, DINOv2)."""
    center_momentum: float = 0.9
    """Memory of the moving mean."""
    teacher_momentum: float = 0.996
    """Memory of the teacher's average at the start; 1 at the end."""
    frozen_prototype_epochs: int = 1
    """Epochs at the start in which the prototypes do not move."""

    def __post_init__(self) -> None:
        for name in ("student_temperature", "teacher_temperature", "teacher_temperature_start"):
            flag = name.replace("_", "-")
            require(getattr(self, name) > 0, f"--loss.{flag} must be positive")
        warmups = ("temperature_warmup_epochs", "frozen_prototype_epochs")
        require_least(self, "loss", 0, "alpha", *warmups)
        require_share("--loss.center-momentum", self.center_momentum)
        require_share("--loss.teacher-momentum", self.teacher_momentum)


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its schedules."""

    batch: int = 256
    """Images a step, over all processes."""
    epochs: int = 300
    """Passes over the data."""
    rate: float = 5e-4
    """Learning rate for a batch of 256; scaled linearly with the batch."""
    rate_end: float = 1e-5
    """Learning rate at the end, not scaled."""
    warmup_epochs: int = 10
    """Epochs of linear rise to the rate."""
    weight_decay: float = 0.04
    """Weight decay at the start."""
    weight_decay_end: float = 0.4
    """Weight decay at the end."""
    clip_gradient: float = 0.0
    """Largest norm of the gradient; 0 for none."""

    def __post_init__(self) -> None:
        require_least(self, "optim", 1, "batch", "epochs")
        require_least(self, "optim", 0, "rate", "rate_end", "warmup_epochs", "clip_gradient")
        require_least(self, "optim", 0, "weight_decay", "weight_decay_end")
        require(
            self.warmup_epochs < self.epochs,
            f"--optim.warmup-epochs ({self.warmup_epochs}) must be below --optim.epochs "
            f"({self.epochs}); lower the one or raise the other",
        )


@dataclass(frozen=True)
class RunConfig:
    """How the run is carried out; but for seed and precision, it changes nothing in the result."""

    folder: str | None = None
    """Where the run is written; by default runs/RECIPE. A run found there is continued."""
    seed: int = 0
    """Of the weights, the order of the samples and all that is random about them."""
    stop_after_steps: int | None = None
    """Stop, with a checkpoint, after this many steps of the schedule."""
    log_every_steps: int = 10
    """Steps between two lines of metrics.jsonl."""
    checkpoint_every_steps: int = 500
    """Steps between two checkpoints; the last two are kept."""
    keep_every_steps: int | None = None
    """Checkpoints at multiples of this are kept for good."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """What to compute on."""
    devices: int | Literal["auto"] = "auto"
    """Processes a node; auto is every GPU, or one process on the CPU."""
    nodes: int = 1
    """Number of machines."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto is bfloat16 autocast on a GPU and float32 on the CPU."""
    compile: bool | Literal["auto"] = "auto"
    """torch.compile; auto is on a GPU only."""
    kernels: bool = True
    """Our own kernels on a GPU; without them PyTorch does the same, slower."""
    micro_batch: int | None = None
    """Images of a process that pass the networks at once, to save memory: the result is the
    same. By default 16 on the CPU; all on a GPU, in `released` and with `sinkhorn`."""

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**31, f"--run.seed must lie in 0 … 2³¹: {self.seed}")
        require(
            self.folder is None or ("\0" not in self.folder and self.folder != ""),
            "--run.folder is no path",
        )
        intervals = ("log_every_steps", "checkpoint_every_steps", "keep_every_steps")
        require_least(self, "run", 1, *intervals)
        require_least(self, "run", 1, "nodes", "devices", "micro_batch", "stop_after_steps")


@dataclass(frozen=True)
class CrocConfig:
    """A whole pre-training run with CrOC."""

    data: DataConfig = field(default_factory=DataConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        require(
            self.cluster.variant == "paper" or self.run.micro_batch is None,
            "--cluster.variant released needs --run.micro-batch None, since its costs and norms "
            "are taken over the whole batch",
        )
        require(
            self.loss.centring == "mean" or self.run.micro_batch is None,
            "--loss.centring sinkhorn needs --run.micro-batch None, since it balances the batch",
        )
        for section in dataclasses.fields(self):
            require_finite(section.name, getattr(self, section.name))
