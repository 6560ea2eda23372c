"""Clusters, losses and the optimiser."""

import math
from dataclasses import dataclass
from typing import Literal

from croc.config.checks import require, require_least, require_share


@dataclass(frozen=True)
class ClusterConfig:
    """The online clustering of the joined tokens."""

    variant: Literal["paper", "released"] = "paper"
    """The paper's text, or the authors' code point for point (docs/differences.md)."""
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
            f"--cluster.k-max must be in 2 … k-start ({self.k_start}): {self.k_max}",
        )
        require(
            self.k_select == "cost" or self.k_max is not None,
            "--cluster.k-select fixed needs --cluster.k-max to say which K",
        )
        require_least(self, "cluster", 0, "position_weight")
        require_least(self, "cluster", 1, "sinkhorn_iterations")
        require(
            0 < self.sharpness < math.inf,
            f"--cluster.sharpness must be positive and finite: {self.sharpness}",
        )
        require(
            self.variant == "paper" or self.sharpness <= 80,
            f"--cluster.sharpness {self.sharpness:g} needs --cluster.variant paper: the released "
            "code's exp() leaves float32 above 80",
        )


@dataclass(frozen=True)
class DistillationConfig:
    """Self-distillation."""

    student_temperature: float = 0.1
    """τ_s."""
    teacher_temperature: float = 0.07
    """τ_t, after its warm-up."""
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
        require_least(self, "loss", 0, *warmups)
        require_share("--loss.center-momentum", self.center_momentum)
        require_share("--loss.teacher-momentum", self.teacher_momentum)


@dataclass(frozen=True)
class LossConfig(DistillationConfig):
    """Self-distillation of images and clusters, at the same temperatures."""

    alpha: float = 1.0
    """Weight of the cluster loss beside the image loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_least(self, "loss", 0, "alpha")


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser and its schedules."""

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
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's memories of the gradient and of its square."""
    matrices: Literal["adamw", "muon"] = "adamw"
    """What moves the matrices of the ViT's blocks: AdamW as in the paper, or Muon, which learned
    the same from a third of the images (docs/log.md); all else is AdamW's."""
    muon_rate_factor: float = 1.0
    """Muon's rate as a multiple of the rate."""

    def __post_init__(self) -> None:
        require_least(self, "optim", 1, "batch", "epochs")
        require_least(self, "optim", 0, "rate", "rate_end", "warmup_epochs", "clip_gradient")
        require_least(self, "optim", 0, "weight_decay", "weight_decay_end", "muon_rate_factor")
        require(
            all(0 <= beta < 1 for beta in self.betas),
            f"--optim.betas must be in 0 … 1, 1 left out: {self.betas}",
        )
        require(
            self.warmup_epochs < self.epochs,
            f"--optim.warmup-epochs ({self.warmup_epochs}) must be below --optim.epochs "
            f"({self.epochs}); lower the one or raise the other",
        )
