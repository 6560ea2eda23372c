"""The real training step, ready to be taken again and again."""

from dataclasses import replace
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from croc.config import RunConfig
from croc.kernels import use_kernels
from croc.lab.bench.settings import Setting
from croc.method.build import build_method
from croc.method.optim import make_optimizer
from croc.method.schedules import settings_at
from croc.method.types import Canvases
from croc.train.cuda_graph import Gradients, make_gradients, records
from croc.train.devices import compiles, in_bfloat16
from croc.train.guard import Guard
from croc.train.loop import train_step

STEPS_AN_EPOCH = 1000


class Trainer:
    """A method that is ready to train, and where its schedules stand."""

    def __init__(self, fabric: Fabric, setting: Setting) -> None:
        # The views that most of a run has, not those of its early epochs.
        views = replace(setting.config.views, early_px=None, early_epochs=0)
        config = replace(setting.config, views=views)
        self.fabric, self.config, self.sizes = fabric, config, setting.sizes
        self.dtype = dtype_of_products(config.run, fabric.device)
        torch.manual_seed(config.run.seed)
        use_kernels(config.run.kernels)
        compiled = compiles(config.run, fabric.device)
        self.method: Any = build_method(config, fabric.device, compiled)
        optimizer = make_optimizer(self.method.student, fabric.device, config.optim)
        self._student, optimizer = fabric.setup(self.method.student, optimizer)
        self._guard = Guard(optimizer, fabric.device)
        self._student.train()
        given = fabric, self.method, self._student
        self.recorded = records(config.run, fabric, compiled)
        self._launched, self._usual = Gradients(*given), make_gradients(*given, self.recorded)
        # Past the epochs in which the prototypes stand still: most steps of a run are like that.
        frozen = min(config.loss.frozen_prototype_epochs, config.optim.epochs - 1)
        self._number = frozen * STEPS_AN_EPOCH

    def step(self, canvases: Canvases) -> dict[str, Tensor]:
        """As the training takes it; the first ones are launched, the next one is recorded."""
        return self._step(self._usual, canvases)

    def launch(self, canvases: Canvases) -> dict[str, Tensor]:
        """Kernel by kernel, so that one can watch."""
        return self._step(self._launched, canvases)

    def _step(self, gradients: Gradients, canvases: Canvases) -> dict[str, Tensor]:
        optim = self.config.optim
        settings = settings_at(self._number, optim, STEPS_AN_EPOCH)
        self._number += 1
        return train_step(gradients, self._guard, canvases, settings, optim)


def dtype_of_products(run: RunConfig, device: torch.device) -> torch.dtype:
    return torch.bfloat16 if in_bfloat16(run, device.type) else torch.float32
