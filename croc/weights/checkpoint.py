"""A run's checkpoints: where they are, what is in one, and the backbone in it."""

import json
import re
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from croc.config import CONFIG_FILE, MaeConfig, PretrainConfig, config_dict, read_config
from croc.data.loader import steps_per_epoch
from croc.errors import UserError
from croc.io import read_metrics
from croc.method.backbone import Backbone, initialize_as_mae
from croc.weights.checksum import verifying
from croc.weights.files import first_line
from croc.weights.record import LICENSE, RunRecord, without_paths

FORMAT = 2


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08d}.pt"


def checkpoints(folder: Path) -> list[Path]:
    """A run's checkpoints, oldest first."""
    paths = (folder / "checkpoints").glob("step-*.pt")
    return sorted(path for path in paths if re.fullmatch(r"step-\d{8,}", path.stem))


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.removeprefix("step-"))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state in a checkpoint of ours, checked for damage; no pickle is executed."""
    try:
        with warnings.catch_warnings(action="ignore"), verifying(path):
            state = torch.load(path, map_location="cpu", weights_only=True)
    except UserError as error:
        raise UserError(f"{error}; {_advice(path)}") from None
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:  # torch raises almost anything for a broken file
        raise UserError(
            f"checkpoint {path} cannot be read ({first_line(error)}); {_advice(path)}"
        ) from None
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise UserError(f"{path} is not a checkpoint of a CrOC run")
    if state["format"] != FORMAT:
        raise UserError(
            f"{path} has format {state['format']}, this version reads {FORMAT}: use the version "
            "that wrote it"
        )
    return state


def _advice(path: Path) -> str:
    """What to do about a damaged checkpoint."""
    saved = checkpoints(path.parent.parent)
    if path not in saved:
        return "name the run's folder or one of its checkpoints"
    earlier = saved[: saved.index(path)]
    if not earlier:
        return "there is no checkpoint before it"
    return f"remove it to resume from {earlier[-1].name}"


def find_checkpoint(path: Path) -> tuple[Path, Path] | None:
    """The run's folder and the checkpoint for a run's folder or one of its checkpoints; None for
    any other file."""
    if path.is_dir():
        saved = checkpoints(path)
        if not (path / CONFIG_FILE).is_file() or not saved:
            raise UserError(
                f"{path} has no run with a checkpoint: pass a folder written by croc pretrain"
            )
        return path, saved[-1]
    if path.suffix == ".safetensors":  # exported, perhaps into the run's own folder
        return None
    for folder in (path.parent, path.parent.parent):
        try:  # other projects, too, write a config.json beside their weights
            if "recipe" in json.loads((folder / CONFIG_FILE).read_text()):
                return folder, path
        except (OSError, ValueError, TypeError):
            continue
    return None


def open_run(run: Path, checkpoint: Path) -> tuple[Backbone, PretrainConfig, RunRecord]:
    """A checkpoint's backbone, the run's configuration, and a record of how it was trained."""
    config, recipe = read_config(run / CONFIG_FILE)
    state = load_checkpoint(checkpoint)
    backbone, step, batch = untrained(config), state["step"], config.optim.batch
    network = "teacher" if "teacher" in state["modules"] else "student"
    try:
        weights = state["modules"].get(network, {}).items()
        backbone.load_state_dict(
            {k.removeprefix("backbone."): x for k, x in weights if k.startswith("backbone.")}
        )
    except (RuntimeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise UserError(f"{checkpoint} does not fit {run / CONFIG_FILE}: {reason}") from None
    public = config_dict(without_paths(config), recipe)
    record = RunRecord(
        model=config.model.name,
        patch_px=backbone.patch_px,
        depth=len(backbone.vit.blocks),
        image_px=config.views.size_px,
        recipe=recipe,
        method=public["method"],
        network=network,
        data=list(public["data"]["root"]),
        step=step,
        images_seen=step * batch,
        epochs=step / steps_per_epoch(state["images"], batch),
        seconds=seconds_trained(run, step),
        license=LICENSE,
        config=public,
    )
    return backbone, config, record


def seconds_trained(run: Path, step: int) -> float | None:
    """Training time up to a step, over all starts of the run; None without metrics."""
    if not (run / "metrics.jsonl").exists():
        return None
    times = [line["seconds"] for line in read_metrics(run) if line["step"] <= step]
    before_restarts = [time for time, following in pairwise(times) if following < time]
    return sum(before_restarts) + times[-1] if times else None


def untrained(config: PretrainConfig) -> Backbone:
    """The backbone before the first step: it is the first to draw from the run's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        backbone = Backbone(config.model, config.views.size_px)
        if isinstance(config, MaeConfig):
            initialize_as_mae(backbone)
        return backbone
