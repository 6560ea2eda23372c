"""From the command line's runs and weights to the networks that the explorer shows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from croc.config import ClusterConfig, CrocConfig, ModelConfig, PretrainConfig, ViewsConfig
from croc.errors import UserError
from croc.lab.show.look import look_at_export
from croc.method.backbone import Backbone
from croc.train.checkpoint import checkpoint_path, checkpoints, step_of
from croc.weights.files import printable
from croc.weights.runs import find_checkpoint, open_run

MOST = 2
LARGEST_VIEW_PX = 512
RANDOM = "random:"


@dataclass(frozen=True)
class Model:
    """A network, and what it was trained with."""

    name: str
    backbone: Backbone
    view_px: int
    cluster: ClusterConfig

    @property
    def grid(self) -> int:
        """Patches along a side of a crop."""
        return self.view_px // self.backbone.patch_px

    def heads(self, tokens: str) -> int:
        last: Any = self.backbone.vit.blocks[-1]
        return 1 if tokens == "last" else last.attn.num_heads


def open_models(
    runs: tuple[str, ...], weights: tuple[str, ...], steps: tuple[int, ...]
) -> list[Model]:
    """One or two; `steps` are checkpoints of the one run."""
    count = max(len(runs), len(steps) + (len(steps) == 1)) + len(weights)
    if count == 0:
        raise UserError("say what to explore: croc app RUN, or --weights NAME")
    if count > MOST:
        raise UserError("two can be compared, not more: name two runs, weights or checkpoints")
    if steps and len(runs) != 1:
        raise UserError("--checkpoint is for one RUN, whose checkpoints it compares")
    paths = _checkpoints(Path(runs[0]), steps) if steps else [Path(run) for run in runs]
    return [*map(_open_run, paths), *map(_open_weights, weights)]


def _checkpoints(run: Path, steps: tuple[int, ...]) -> list[Path]:
    """Those of the steps; one alone is shown beside the run's last."""
    found = checkpoints(run)
    if not found:
        raise UserError(f"{run} holds no run with a checkpoint: give a folder of croc pretrain")
    asked = [checkpoint_path(run, step) for step in steps]
    for step, path in zip(steps, asked):
        if path not in found:
            there = ", ".join(str(step_of(old)) for old in found)
            raise UserError(f"{run} has no checkpoint of step {step}; it has {there}")
    return asked if len(asked) > 1 else [*asked, found[-1]]


def _open_run(path: Path) -> Model:
    if not path.exists():
        raise UserError(f"{path} holds no run: give the folder that croc pretrain wrote")
    found = find_checkpoint(path)
    if found is None:
        raise UserError(f"{path} is no run of croc pretrain: other files are for --weights")
    opened = open_run(*found)
    return _model(opened.name, opened.backbone, opened.config)


def _open_weights(spec: str) -> Model:
    if spec.startswith(RANDOM):
        return _open_random(spec.removeprefix(RANDOM))
    found = look_at_export(spec, "or random:NAME; a run's folder is named without --weights")
    return _model(found.title, found.backbone, found.config)


def _open_random(name: str) -> Model:
    """A network before any training, to see what the architecture alone does."""
    size_px = ViewsConfig().size_px
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = Backbone(ModelConfig(name), size_px)
    return Model(f"{name}, untrained", _frozen(backbone), size_px, ClusterConfig())


def _model(name: str, backbone: Backbone, config: PretrainConfig) -> Model:
    """Methods without clusters are shown with the paper's setting of them."""
    if config.views.size_px > LARGEST_VIEW_PX:
        raise UserError(
            f"{name} has views of {config.views.size_px} px; the explorer shows up to "
            f"{LARGEST_VIEW_PX}"
        )
    cluster = config.cluster if isinstance(config, CrocConfig) else ClusterConfig()
    return Model(printable(name), _frozen(backbone), config.views.size_px, cluster)


def _frozen(backbone: Backbone) -> Backbone:
    return backbone.eval().requires_grad_(False)
