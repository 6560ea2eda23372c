"""What runs leave in their folders: settings, metrics, gauges and scores."""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from croc.config import PAGE
from croc.errors import UserError
from croc.io import read_lines

SCORES = ("evaluations/results.jsonl", "evaluation/results.jsonl")
"""Within a run's folder; the second is the demo's."""


@dataclass
class Series:
    """One metric of one run."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass
class Run:
    folder: Path
    name: str
    recipe: str
    method: str
    options: dict[str, Any]
    """By full name, such as optim.batch."""
    metrics: dict[str, Series] = field(default_factory=lambda: defaultdict(Series))
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Step, counted from 0, and epoch of each line."""
    step: int = 0
    """The last one that was logged."""
    notes: list[str] = field(default_factory=list)
    """What is missing on the page, and why."""

    @property
    def steps_per_epoch(self) -> int | None:
        """From the logged epochs, where step s is in epoch s // n; None during the first epoch."""
        lower = max((step // (epoch + 1) + 1 for step, epoch in self.epochs), default=1)
        upper = [step // epoch for step, epoch in self.epochs if epoch > 0]
        return lower if upper and lower <= min(upper) else None

    @property
    def progress(self) -> str:
        """The step, and at which one training ends if that is known yet."""
        epochs, per_epoch = self.options.get("optim.epochs"), self.steps_per_epoch
        total = epochs * per_epoch if epochs and per_epoch else None
        last = min(filter(None, (total, self.options.get("run.stop_after_steps"))), default=0)
        return f"step {self.step:,}" + (f" of {last:,}" if last and last >= self.step else "")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def read_run(folder: Path) -> Run:
    """Settings and metrics; only config.json must exist."""
    path = folder / PAGE
    if not path.is_file():
        raise UserError(f"{folder} is not a run: give a folder that croc pretrain wrote")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        config = {}
    if "recipe" not in config:
        raise UserError(f"{path} is not the configuration of a CrOC run")
    recipe, method = config.pop("recipe"), config.pop("method", "croc")
    run = Run(folder, folder.resolve().name, recipe, method, dict(_flatten(config)))
    for path in (folder / "metrics.jsonl", folder / "gauges.jsonl"):
        skipped = 0
        # The last line of a live run may be cut off.
        for line in read_lines(path, pass_over_bad=True) if path.exists() else []:
            step, epoch = line.pop("step"), line.pop("epoch", None)
            run.step = max(run.step, step)
            if epoch is not None and step > 0:
                run.epochs.append((step - 1, epoch))
            for name, value in line.items():
                if is_number(value):
                    run.metrics[name].steps.append(step)
                    run.metrics[name].values.append(float(value))
                else:
                    skipped += 1
        if skipped:
            run.notes.append(f"{skipped} non-finite values in {path.name} are not shown")
    if not run.step:
        run.notes.append("metrics.jsonl has no lines yet, so there are no training curves")
    return run


def _flatten(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def find_scores(runs: Sequence[Run], files: Sequence[Path]) -> list[dict[str, Any]]:
    """Lines of results.jsonl, in the run folders and in `files`, with some keys for the page; of a
    repeated evaluation, the last line counts."""
    scores: dict[str, dict[str, Any]] = {}
    own = [(run.folder / name, index) for index, run in enumerate(runs) for name in SCORES]
    for path, owner in own + [(path, None) for path in files]:
        lines = read_lines(path, pass_over_bad=True) if path.is_file() else []
        if owner is None and not (lines and all("scores" in line for line in lines)):
            raise UserError(f"--scores {path} is not a results.jsonl of croc evaluate")
        for line in lines:
            fields = ("protocol", "data", "weights_hash", "config", "hold_out", "weights")
            identity = json.dumps([line.get(name) for name in fields], sort_keys=True)
            weights, held_out = line.get("weights", ""), line.get("hold_out")
            picture = path.parent / line["picture"] if line.get("picture") else None
            if picture and not picture.resolve().is_relative_to(path.parent.resolve()):
                picture = None  # a file from elsewhere must not name others of this machine
            main = next(iter(line["scores"].values()))
            scores[identity] = line | {
                "run": _find_run(weights, line.get("backbone", ""), runs, owner),
                "data": line["data"] + (f" (held out {100 * held_out:g}%)" if held_out else ""),
                "label": line.get("backbone") or weights,
                "untrained": weights.startswith("random:"),
                "main": main if is_number(main) else 0.0,
                "classes": line.get("classes") or {},
                "picture": picture,
            }
    return list(scores.values())


def _find_run(weights: str, backbone: str, runs: Sequence[Run], owner: int | None) -> int | None:
    """By the path that was evaluated, else by the folder of results.jsonl, else by name."""
    spec = weights.removeprefix("random:")
    path = Path(spec.partition("=")[2] or spec)
    if spec and (path.is_absolute() or (":" not in spec and ("/" in spec or path.exists()))):
        for index, run in enumerate(runs):
            if path.resolve().is_relative_to(run.folder.resolve()):
                return index
    same_name = [i for i, run in enumerate(runs) if run.name == backbone.rpartition("@")[0]]
    return owner if owner is not None else same_name[0] if len(same_name) == 1 else None
