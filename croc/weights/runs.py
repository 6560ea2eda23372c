"""A run of ours as weights: the backbone of its teacher, which leaves the heads behind."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from croc.config import MaeConfig, PretrainConfig
from croc.errors import UserError
from croc.method.backbone import Backbone
from croc.method.initial import start_as_mae
from croc.train.checkpoint import checkpoints, load_checkpoint
from croc.train.run_folder import PAGE, read_config


@dataclass(frozen=True)
class RunWeights:
    """A checkpoint's backbone, and what is known of the run."""

    folder: Path
    config: PretrainConfig
    recipe: str
    backbone: Backbone
    network: str
    """The teacher, or the student where a method has none."""
    step: int
    images: int
    """In the data."""

    @property
    def name(self) -> str:
        return f"{self.folder.name}@{self.step}"


def find_checkpoint(path: Path) -> tuple[Path, Path] | None:
    """The run and the checkpoint that a folder or a file means; None for a file of no run."""
    if path.is_dir():
        found = checkpoints(path)
        if not (path / PAGE).is_file() or not found:
            raise UserError(
                f"{path} holds no run with a checkpoint: give a folder of croc pretrain"
            )
        return path, found[-1]
    if path.suffix == ".safetensors":  # exported, perhaps into the run's own folder
        return None
    folders = (path.parent, path.parent.parent)
    run = next((folder for folder in folders if _tells_a_run(folder / PAGE)), None)
    return None if run is None else (run, path)


def open_run(run: Path, checkpoint: Path) -> RunWeights:
    config, recipe = read_config(run / PAGE)
    state = load_checkpoint(checkpoint, "name the run's folder or another of its checkpoints")
    backbone = untrained(config)
    network = "teacher" if "teacher" in state["modules"] else "student"
    try:
        backbone.load_state_dict(_own_weights(state, network, checkpoint))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"{checkpoint} does not fit {run / PAGE}: {reason}") from None
    return RunWeights(run, config, recipe, backbone, network, state["step"], state["images"])


def untrained(config: PretrainConfig) -> Backbone:
    """As the run itself made it: the backbone is the first to draw from the run's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        backbone = Backbone(config.model, config.views.size_px)
        if isinstance(config, MaeConfig):
            start_as_mae(backbone)
        return backbone


def _own_weights(state: dict[str, Any], network: str, checkpoint: Path) -> dict[str, Any]:
    held = state["modules"].get(network, {})
    if not isinstance(held, dict) or not all(isinstance(name, str) for name in held):
        raise UserError(f"{checkpoint} holds no named tensors for its {network}")
    own = {name: value for name, value in held.items() if name.startswith("backbone.")}
    return {name.removeprefix("backbone."): value for name, value in own.items()}


def _tells_a_run(page: Path) -> bool:
    """Other projects, too, write a config.json beside their weights."""
    try:
        return "recipe" in json.loads(page.read_text())
    except (OSError, ValueError, TypeError):
        return False
