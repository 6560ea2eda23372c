"""What can be wrong with a sweep's runs, found before the first of them starts."""

import os
from collections.abc import Sequence
from functools import cache

import torch

from croc.config import DataConfig, PretrainConfig
from croc.data.loader import batch_indices, steps_per_epoch
from croc.data.sources import open_source
from croc.errors import UserError
from croc.lab.sweep.scoring import Scorer
from croc.lab.sweep.settings import Run, Setting
from croc.method.build import build_method
from croc.train.devices import make_fabric
from croc.train.run_folder import open_run_folder


def check_runs(runs: Sequence[Run], scorer: Scorer) -> dict[str, int]:
    """As pretrain and the evaluations would, they refuse; else the steps of each setting's runs."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError(
            "start the same command once a GPU instead of torchrun: they share the runs"
        )
    count = cache(_count_images)
    steps = {}
    for run in {run.setting.name: run for run in reversed(runs)}.values():
        try:
            images = count(run.config.data)
            _check_training(run.config, images)
            scorer.check(run.config, run.setting.recipe)
        except UserError as error:
            raise UserError(f"setting {run.setting.name!r}: {error}") from None
        steps[run.setting.name] = last_step(run.setting, images)
    for run in runs:
        open_run_folder(run.folder, run.config)
    return steps


def last_step(setting: Setting, images: int) -> int:
    optim, stop = setting.config.optim, setting.config.run.stop_after_steps
    planned = optim.epochs * steps_per_epoch(images, optim.batch)
    return planned if stop is None else min(planned, stop)


def _count_images(data: DataConfig) -> int:
    return len(open_source(data, 0))


def _check_training(config: PretrainConfig, images: int) -> None:
    """Networks are built on the CPU, once a setting, and let go."""
    make_fabric(config.run)
    batch_indices(0, images, config.optim.batch, config.run.seed)
    method = build_method(config, torch.device("cpu"), compile=False)
    if config.model.init is not None:
        from croc.weights.start import load_into

        load_into(method.backbones[-1], config.model.init)
