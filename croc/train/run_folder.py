"""The run folder: whether it may be used, and saving and loading checkpoints.

A checkpoint is one file with everything needed to resume, written to a temporary file and renamed.
"""

import dataclasses
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from croc.config import (
    CONFIG_FILE,
    PretrainConfig,
    RunConfig,
    method_name,
    read_config,
    write_config,
)
from croc.errors import UserError
from croc.fabric import Fabric
from croc.io import replacing, try_lock
from croc.method.distributed import full_state, shard_like, union_over_processes
from croc.weights.checkpoint import FORMAT, checkpoint_path, checkpoints, step_of
from croc.weights.checksum import seal_zip

PARTIAL, LOCK = "config.json.partial", "run.lock"
CHANGEABLE = {
    ("data", "root"),  # the data may move; a checkpoint has the number of images
    ("data", "workers"),
    ("data", "max_corrupt_fraction"),
    *(("run", option.name) for option in dataclasses.fields(RunConfig) if option.name != "seed"),
}
"""Options that may change when a run is resumed: how it is executed, and where the data is."""
KEPT = 2
"""Number of most recent checkpoints that are kept."""
ALWAYS_ALLOWED = 3
"""Files that may fail to decode, however few images there are; none if no share is allowed."""
NAMES_SHOWN = 20
"""Number of files that are named if too many cannot be decoded."""


def check_run_folder(folder: Path, config: PretrainConfig) -> None:
    """Reject a folder that is neither new nor contains this run."""
    occupied = folder.exists() and (
        not folder.is_dir() or any(path.name not in (PARTIAL, LOCK) for path in folder.iterdir())
    )
    has_run = (folder / CONFIG_FILE).exists()  # checked last: another process may be writing it now
    if config.run.resume == "never" and has_run:
        raise UserError(f"--resume never: {folder} has a run; choose another --run.folder")
    if config.run.resume == "must" and not has_run:
        raise UserError(f"--resume must: {folder} has no run to resume; check --run.folder")
    if not has_run:
        if occupied:
            raise UserError(f"{folder} exists and is not a run: choose another --run.folder")
        return
    saved, _ = read_config(folder / CONFIG_FILE)
    if type(saved) is not type(config):
        raise UserError(
            f"{folder} is a run of {method_name(saved)}, not of {method_name(config)}: "
            "choose another --run.folder"
        )
    changes = []
    for section in dataclasses.fields(config):
        old, new = getattr(saved, section.name), getattr(config, section.name)
        for option in dataclasses.fields(new):
            before, after = getattr(old, option.name), getattr(new, option.name)
            if before != after and (section.name, option.name) not in CHANGEABLE:
                flag = f"--{section.name}.{option.name}".replace("_", "-")
                flag = flag.replace("--model.init", "--init")
                changes.append(f"{flag} was {before}, now {after}")
    if changes:
        raise UserError(
            f"{folder} contains a run with different settings ({'; '.join(changes[:4])}): "
            "choose another --run.folder, or give the same settings to resume it"
        )


@contextmanager
def claim_folder(
    folder: Path, config: PretrainConfig, recipe: str, existing: list[Path]
) -> Iterator[None]:
    """Lock the run folder, so that no other run uses it, and write config.json. `existing` are the
    checkpoints found before."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        if not try_lock(file):
            file.seek(0)
            raise UserError(
                f"{folder} is in use by {file.read() or 'another process'}: wait until it ends, or "
                "choose another --run.folder"
            )
        check_run_folder(folder, config)
        if checkpoints(folder) != existing:
            raise UserError(f"another process has just trained in {folder}: start again")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        write_config(folder, config, recipe)
        yield


class FailedFiles:
    """The distinct files that could not be decoded so far."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = list(names)

    def add(self, names: Iterable[str]) -> list[str]:
        """Add failures and return the new ones, for the log."""
        new = [name for name in dict.fromkeys(names) if name not in self.names]
        self.names += new
        return new

    def check(self, seen: int, count: int, max_share: float) -> None:
        """End the run if too many fail, once enough images have been read to tell."""
        seen, names = min(seen, count), self.names
        enough = 10 / max_share if max_share else 100  # a few in the first batch are just bad luck
        allowed = max(max_share * seen, ALWAYS_ALLOWED) if max_share else 0
        if seen < min(enough, count) or len(names) <= allowed:
            return
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        raise UserError(
            f"{len(names)} of {seen} images cannot be decoded, more than "
            f"--data.max-corrupt-fraction {max_share:g} allows; delete them or raise it: "
            f"{', '.join(names[:NAMES_SHOWN])}{more}"
        )


@dataclass
class TrainState:
    """The state of a run. The position in the data and all randomness follow from `step`."""

    modules: dict[str, nn.Module]
    optimizer: torch.optim.Optimizer
    images: int
    """Number of images in the data; with a different number, the sample order would change."""
    step: int = 0
    """Number of finished steps."""
    skipped: int = 0
    """Number of steps that were skipped because of a non-finite gradient."""
    failed: FailedFiles = field(default_factory=FailedFiles)

    def state_dict(self) -> dict[str, Any]:
        """Contains full tensors. If they are sharded, all processes must call this together."""
        state = {
            "format": FORMAT,
            "step": self.step,
            "skipped": self.skipped,
            "images": self.images,
            "failed": list(self.failed.names),
            "optimizer": self.optimizer.state_dict(),
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
        }
        return full_state(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["images"] != self.images:
            raise UserError(
                f"the run was trained on {state['images']:,} images, --data.root now has "
                f"{self.images:,}: restore the original data, or choose another --run.folder"
            )
        for name, module in self.modules.items():
            current = module.state_dict()
            saved = state["modules"][name].items()
            module.load_state_dict(
                {key: shard_like(x, current[key]) if key in current else x for key, x in saved}
            )
        self._load_optimizer(state["optimizer"])
        self.step, self.failed = state["step"], FailedFiles(state["failed"])
        self.skipped = int(state.get("skipped", 0))  # not in older checkpoints

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        """Keep this run's shards and implementation: a run may be resumed on other devices."""
        groups = self.optimizer.param_groups
        if len(groups) == len(saved["param_groups"]):  # else load_state_dict raises
            names = ("fused", "foreach", "capturable")
            current = [{name: group[name] for name in names if name in group} for group in groups]
            parameters = [p for group in groups for p in group["params"]]
            saved = saved | {
                "param_groups": [a | b for a, b in zip(saved["param_groups"], current)],
                "state": {
                    number: {name: shard_like(x, parameters[number]) for name, x in values.items()}
                    for number, values in saved["state"].items()
                },
            }
        self.optimizer.load_state_dict(saved)


def save_checkpoint(folder: Path, state: dict[str, Any], keep_every: int | None) -> Path:
    """Write and rename a checkpoint, then delete all but the last two and every n-th."""
    path = checkpoint_path(folder, state["step"])
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob("*.partial"):  # of a run that was killed while writing
        stale.unlink()
    with replacing(path) as partial, partial.open("wb") as file:
        torch.save(state, file)
        file.close()
        seal_zip(partial)
    for old in checkpoints(folder)[:-KEPT]:
        if keep_every is None or step_of(old) % keep_every:
            old.unlink()
    return path


def try_save(fabric: Fabric, folder: Path, state: TrainState, keep_every: int | None) -> str:
    """Save a checkpoint, and return the problem if it cannot be written. The first process writes,
    and all processes get the result; earlier checkpoints are unchanged."""
    content, problem = state.state_dict(), ""
    if fabric.is_global_zero:
        try:
            if not (folder / CONFIG_FILE).exists():
                raise OSError(f"{folder} has vanished")  # not to be recreated elsewhere
            save_checkpoint(folder, content, keep_every)
        except Exception as error:  # of any kind, since the other processes are waiting
            problem = str(error).strip().partition("\n")[0] or type(error).__name__
            saved = checkpoints(folder)
            left = f"the last one is {saved[-1].name}" if saved else "there is none yet"
            problem = f"the checkpoint of step {state.step} cannot be written ({problem}); {left}"
    return next(filter(None, union_over_processes([problem])), "")
