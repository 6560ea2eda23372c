"""Whole runs: the sections that each method has."""

import dataclasses
from dataclasses import dataclass, field

from croc.config.checks import require, require_finite
from croc.config.data import DataConfig, ViewsConfig
from croc.config.learning import ClusterConfig, DistillationConfig, LossConfig, OptimConfig
from croc.config.network import DecoderConfig, HeadConfig, ImageHeadConfig, ModelConfig
from croc.config.run import RunConfig


@dataclass(frozen=True)
class PretrainConfig:
    """What the loop asks of every run."""

    data: DataConfig = field(default_factory=DataConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        for section in dataclasses.fields(self):
            require_finite(section.name, getattr(self, section.name))
        require(
            self.optim.matrices == "adamw" or self.run.strategy == "ddp",
            "--optim.matrices muon needs whole matrices, and FSDP has shares of them: "
            "take --run.strategy ddp, or --optim.matrices adamw",
        )


@dataclass(frozen=True)
class DinoConfig(PretrainConfig):
    """A whole pre-training run with DINO."""

    head: ImageHeadConfig = field(default_factory=ImageHeadConfig)
    loss: DistillationConfig = field(default_factory=DistillationConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.loss.centring == "mean" or self.run.micro_batch is None,
            "--loss.centring sinkhorn needs --run.micro-batch None, since it balances the batch",
        )


@dataclass(frozen=True)
class CrocConfig(DinoConfig):
    """A whole pre-training run with CrOC."""

    head: HeadConfig = field(default_factory=HeadConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    loss: LossConfig = field(default_factory=LossConfig)

    def __post_init__(self) -> None:
        require(
            self.cluster.variant == "paper" or self.run.micro_batch is None,
            "--cluster.variant released needs --run.micro-batch None, since its costs and norms "
            "are taken over the whole batch",
        )
        super().__post_init__()


@dataclass(frozen=True)
class MaeConfig(PretrainConfig):
    """A whole pre-training run with MAE."""

    decoder: DecoderConfig = field(default_factory=DecoderConfig)


METHODS: dict[str, type[PretrainConfig]] = {
    "croc": CrocConfig,
    "dino": DinoConfig,
    "mae": MaeConfig,
}
"""By the name under which a run's page keeps them."""
