"""The networks that the explorer shows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from croc.config import ClusterConfig, CrocConfig, ModelConfig, PretrainConfig, ViewsConfig
from croc.errors import UserError
from croc.lab.show.look import look_at_weights
from croc.method.backbone import Backbone
from croc.tables import one_line
from croc.weights.checkpoint import checkpoint_path, checkpoints, find_checkpoint, open_run, step_of

MAX_VIEW_PX = 512


@dataclass(frozen=True)
class Model:
    """A frozen network and the settings it was trained with."""

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
        raise UserError("name what to explore: croc app RUN, or --weights NAME")
    if count > 2:
        raise UserError("at most two can be compared: name two runs, weights or checkpoints")
    if steps and len(runs) != 1:
        raise UserError("--checkpoint needs exactly one RUN, whose checkpoints it compares")
    paths = [Path(run) for run in runs]
    if steps:
        existing = checkpoints(paths[0])
        chosen = [checkpoint_path(paths[0], step) for step in steps]
        if missing := [step_of(path) for path in chosen if path not in existing]:
            there = ", ".join(str(step_of(path)) for path in existing) or "none"
            raise UserError(f"{runs[0]} has no checkpoint of step {missing[0]}; it has {there}")
        paths = chosen if len(chosen) > 1 else [*chosen, existing[-1]]
    return [*map(_open_run, paths), *map(_open_weights, weights)]


def _open_run(path: Path) -> Model:
    checkpoint = find_checkpoint(path)
    if checkpoint is None:
        raise UserError(f"{path} is not a run of croc pretrain: give other files to --weights")
    run = open_run(*checkpoint)
    return _to_model(run.name, run.backbone, run.config)


def _open_weights(spec: str) -> Model:
    name = spec.removeprefix("random:")
    if name == spec:
        look = look_at_weights(spec, "or random:NAME; a run's folder is named without --weights")
        return _to_model(look.title, look.backbone, look.config)
    size_px = ViewsConfig().size_px
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = Backbone(ModelConfig(name), size_px).eval().requires_grad_(False)
    return Model(f"{name}, untrained", backbone, size_px, ClusterConfig())


def _to_model(name: str, backbone: Backbone, config: PretrainConfig) -> Model:
    """Methods without clusters get the paper's clustering."""
    size_px = config.views.size_px
    if size_px > MAX_VIEW_PX:
        raise UserError(f"{name} has views of {size_px} px; the explorer shows up to {MAX_VIEW_PX}")
    cluster = config.cluster if isinstance(config, CrocConfig) else ClusterConfig()
    return Model(one_line(name), backbone.eval().requires_grad_(False), size_px, cluster)
