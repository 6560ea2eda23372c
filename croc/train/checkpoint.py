"""Everything a resume needs, in one file that is either whole or not there.

A checkpoint is written beside its place and renamed; it is loaded without running any pickle.
"""

import os
import pickle
import re
import struct
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from croc.data.loader import FailedFiles
from croc.errors import UserError
from croc.io import replacing
from croc.method.sharding import shared_like, whole

FORMAT = 2
KEPT = 2
TO_GO_ON = "remove it to resume from the one before"
BROKEN = (
    *(RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, OverflowError),
    *(KeyError, IndexError, TypeError, AttributeError, AssertionError, struct.error),
)
"""What torch raises for a broken file; running out of memory is no reason to remove it."""


@dataclass
class TrainState:
    """What changes during a run. The data's position and all randomness follow from `step`."""

    modules: dict[str, nn.Module]
    optimizer: torch.optim.Optimizer
    images: int
    """Number of images in the data: another number would be another order of the samples."""
    step: int = 0
    """Steps done."""
    skipped: int = 0
    """Of them, those without a finite gradient, which changed nothing."""
    failed: FailedFiles = field(default_factory=FailedFiles)

    def state_dict(self) -> dict[str, Any]:
        """With whole tensors: if they are in shares, every process must ask at the same time."""
        state = {
            "format": FORMAT,
            "step": self.step,
            "skipped": self.skipped,
            "images": self.images,
            "failed": list(self.failed.names),
            "optimizer": self.optimizer.state_dict(),
            "modules": {name: module.state_dict() for name, module in self.modules.items()},
        }
        return whole(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["images"] != self.images:
            raise UserError(
                f"the run was trained on {state['images']:,} images, --data.root now has "
                f"{self.images:,}: bring back the same data, or choose another --run.folder"
            )
        for name, module in self.modules.items():
            load_module(module, state, name)
        try:
            self.optimizer.load_state_dict(_for_this_device(state["optimizer"], self.optimizer))
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise _misfit(state, error) from None
        self.step, self.failed = state["step"], FailedFiles(state["failed"])
        self.skipped = int(state.get("skipped", 0))  # older checkpoints do not tell


def _for_this_device(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """With this optimiser's own ways and shares: a run may go on by other devices."""
    ways = ("fused", "foreach", "capturable")
    mine = [{way: group[way] for way in ways if way in group} for group in optimizer.param_groups]
    groups = saved["param_groups"]
    if len(groups) != len(mine):
        return saved  # which is refused
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    memories = {
        number: {name: shared_like(value, parameters[number]) for name, value in of_one.items()}
        for number, of_one in saved["state"].items()
    }
    mended = [{**group, **own} for group, own in zip(groups, mine)]
    return {**saved, "state": memories, "param_groups": mended}


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08d}.pt"


def checkpoints(folder: Path) -> list[Path]:
    """Those of a run, oldest first."""
    names = (folder / "checkpoints").glob("step-*.pt")
    return sorted(path for path in names if re.fullmatch(r"step-\d{8,}", path.stem))


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.removeprefix("step-"))


def save_checkpoint(folder: Path, state: dict[str, Any], keep_every: int | None) -> Path:
    """Write, rename, then drop all but the last two and every n-th."""
    path = checkpoint_path(folder, state["step"])
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob("*.partial"):  # of a run that was killed while it wrote
        stale.unlink()
    with replacing(path) as partial, partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    for old in _passing(folder, keep_every, KEPT):
        old.unlink()
    return path


def drop_oldest(folder: Path, keep_every: int | None) -> bool:
    """Make room on a full disk, down to the last checkpoint; whether there was one to drop."""
    found = _passing(folder, keep_every, 1)
    for old in found[:1]:
        old.unlink()
    return bool(found)


def _passing(folder: Path, keep_every: int | None, kept: int) -> list[Path]:
    """All but the last ones, and those that are kept for good."""
    passing = checkpoints(folder)[:-kept]
    return [path for path in passing if keep_every is None or step_of(path) % keep_every]


def load_checkpoint(path: Path, advice: str = TO_GO_ON) -> dict[str, Any]:
    """The state in a file, checked to be one of ours; `advice` is for where it is not."""
    try:
        with warnings.catch_warnings(action="ignore"):  # what matters is said below
            state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path}") from None
    except BROKEN as error:
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else "empty"
        raise UserError(f"checkpoint {path} cannot be read ({reason}); {advice}") from None
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise UserError(f"{path} is no checkpoint of a CrOC run; {advice}")
    if state["format"] != FORMAT:
        raise UserError(
            f"{path} has format {state['format']}, this version reads {FORMAT}: go on with the "
            "version that wrote it"
        )
    kinds = {"step": int, "images": int, "failed": list, "optimizer": dict, "modules": dict}
    wrong = [name for name, kind in kinds.items() if not isinstance(state.get(name), kind)]
    if wrong:
        raise UserError(f"checkpoint {path} lacks {', '.join(wrong)}; {advice}")
    if state["step"] < 0:
        raise UserError(f"checkpoint {path} is of step {state['step']}; {advice}")
    return state


def load_module(module: nn.Module, state: dict[str, Any], name: str) -> None:
    """One of a checkpoint's networks into a module of the same shape."""
    own = module.state_dict()
    try:
        saved = state["modules"][name].items()
        module.load_state_dict(
            {key: shared_like(x, own[key]) if key in own else x for key, x in saved}
        )
    except (KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise _misfit(state, error) from None


def _misfit(state: dict[str, Any], error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[-1].strip()
    return UserError(f"the checkpoint of step {state['step']} does not fit the run: {reason}")
