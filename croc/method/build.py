"""Ways to pre-train. The loop knows only what is written here."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor, nn

from croc.config import DinoConfig, MaeConfig, PretrainConfig, ViewsConfig
from croc.method.backbone import Backbone
from croc.method.schedules import Settings
from croc.method.types import Canvases


@runtime_checkable
class Method(Protocol):
    """Owns its networks; the loop owns data, optimiser, devices, logs and checkpoints."""

    @property
    def student(self) -> nn.Module:
        """What the optimiser moves."""
        ...

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All that a checkpoint must hold, the student included; where there is a teacher, it is
        what evaluations take."""
        ...

    @property
    def backbones(self) -> Sequence[Backbone]:
        """All that begin with the weights of --init."""
        ...

    @property
    def views(self) -> ViewsConfig:
        """Of the step at hand; their size may change between epochs."""
        ...

    def before_gradients(self, settings: Settings) -> None:
        """What the step's gradients take from the schedules is put where the device finds it."""
        ...

    def accumulate(
        self, fabric: Fabric, student: _FabricModule, canvases: Canvases
    ) -> dict[str, Tensor]:
        """Leave the step's gradients in the student; metrics as shares whose sum is the metric.

        The same kernels in the same order for every batch, since they may be recorded.
        """
        ...

    def before_update(self, settings: Settings) -> None:
        """After the gradients, before the optimiser."""
        ...

    def after_update(self, settings: Settings) -> None:
        """After the optimiser."""
        ...


def build_method(config: PretrainConfig, device: torch.device, compile: bool) -> Method:
    """The method whose configuration this is."""
    if isinstance(config, DinoConfig):  # CrocConfig is one too
        from croc.method.croc import Croc

        return Croc(config, device, compile)
    assert isinstance(config, MaeConfig)
    from croc.method.mae import Mae

    return Mae(config, device, compile)
