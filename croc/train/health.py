"""A run's health: non-finite gradients are skipped, counted and diagnosed; collapse is reported.

Collapse never stops a run. Its signs are those of self-distillation, a teacher that gives every
image the same answer, either one prototype (entropy 0) or all of them alike (entropy log P); and
of the clustering: one K for all images, views that share no cluster, tokens spread over most of
the clusters. A run that started from other weights may also drift far from them.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from croc.config import CrocConfig, DinoConfig, PretrainConfig
from croc.data.loader import batch_indices
from croc.data.sources import ImageSource
from croc.errors import UserError
from croc.io import replacing
from croc.method.distributed import fetch, full_state
from croc.method.types import Canvases, Settings
from croc.train.log import finite_or_none
from croc.weights.checkpoint import checkpoints

if TYPE_CHECKING:
    from croc.train.loop import Trainer

LINES = 20
"""Logged lines in a row that must show a sign of collapse."""
ONE, ALIKE = 0.005, 0.999
"""Fractions of log P below and above which an entropy carries nothing of the image."""
LARGE_DRIFT = 0.25
"""Half of what a network with random weights has."""
DIAGNOSIS = "diagnosis.json"
MAX_NAMES, MAX_STEPS = 50, 20

Metrics = Mapping[str, float]
Sign = tuple[str, str, Callable[[Metrics], bool]]
"""A message, the metric that it is about, and when it applies."""


class Health:
    """Finds signs of collapse in the logged metrics, each reported once per occurrence, and drift
    in the gauges."""

    def __init__(self, config: PretrainConfig) -> None:
        self._signs = list(_signs(config))
        self._seen, self._drifted = [0] * len(self._signs), False

    def gauge_warning(self, gauges: Metrics) -> str | None:
        """What to report after a checkpoint, the first time that the drift is large."""
        if self._drifted or not gauges.get("drift", 0.0) > LARGE_DRIFT:
            return None
        self._drifted = True
        return (
            "the patch similarities have drifted far from the start: try a higher --anchor.weight, "
            f"or a lower --optim.lr (drift {gauges['drift']:.2g}; 0 is unchanged, a network with "
            "random weights has about 0.5)"
        )

    def warnings(self, values: Metrics) -> list[str]:
        """What to report after this line."""
        warnings = []
        for number, (message, name, shows) in enumerate(self._signs):
            finite = math.isfinite(values.get(name, math.nan))  # else reported as skipped steps
            self._seen[number] = self._seen[number] + 1 if finite and shows(values) else 0
            if self._seen[number] == LINES:
                value = f"{name} {values[name]:.4g} in the last {LINES} logged steps"
                warnings.append(f"{message} ({value})")
        return warnings


def too_soft(metrics: Metrics) -> bool:
    """A token is spread over more than half of the clusters (1.5 of two or three are fine)."""
    return metrics["effective_clusters"] > max(1.5, metrics["k_mean"] / 2)


def _signs(config: PretrainConfig) -> Iterator[Sign]:
    if not isinstance(config, DinoConfig):
        return
    yield from _entropy_signs("image", config.head.image_prototypes)
    if isinstance(config, CrocConfig) and config.loss.alpha > 0:
        yield from _entropy_signs("cluster", config.head.cluster_prototypes)
        if (
            config.cluster.k_select == "cost"
            and (config.cluster.k_max or config.cluster.k_start) > 2
        ):
            message = "every image gets the same K: look at --cluster.position-weight and sharpness"
            # An integer mean, line after line, is the K of every image.
            yield message, "k_mean", lambda now: abs(now["k_mean"] - round(now["k_mean"])) < 1e-3
        message = "no cluster is in both views: larger crops (--views.scale) overlap more"
        yield message, "valid_share", lambda now: now["valid_share"] < 1e-9
        message = "tokens are spread over most clusters: try a higher --cluster.sharpness"
        yield message, "effective_clusters", too_soft


def _entropy_signs(level: str, prototypes: int) -> Iterator[Sign]:
    name, maximum, instead = f"entropy_{level}", math.log(prototypes), "--loss.centering sinkhorn"
    message = f"the {level} level has collapsed to one prototype: try a higher "
    message += f"--loss.teacher-temp, or {instead}"
    yield message, name, lambda now: now[name] <= ONE * maximum
    message = f"the {level} level has become uniform: try a lower --loss.teacher-temp, or "
    yield message + instead, name, lambda now: now[name] >= ALIKE * maximum


def diagnose(
    trainer: "Trainer",
    source: ImageSource,
    folder: Path,
    canvases: Canvases,
    settings: Settings,
    values: dict[str, float],
    steps: range,
) -> UserError:
    """Write diagnosis.json about the skipped steps: the images, and the tensors that are not
    finite, for which the last batch is tried again. All processes must call it together."""
    fabric, method, config = trainer.fabric, trainer.method, trainer.config
    batches = {
        step + 1: batch_indices(step, len(source), config.optim.batch, config.run.seed)[1]
        for step in steps[-MAX_STEPS:]
    }
    record = {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "metrics": finite_or_none(values),
        "rate": settings.lr,
        "weight_decay": settings.weight_decay,
        "torch": torch.__version__,
        "device": fabric.device.type,
        "skipped_steps": [steps[0] + 1, steps[-1] + 1],
        "images": {k: [source.name(i) for i in batch.tolist()] for k, batch in batches.items()},
    }

    def write() -> None:
        if fabric.is_global_zero:
            with contextlib.suppress(OSError), replacing(folder / DIAGNOSIS) as partial:
                partial.write_text(json.dumps(record, indent=1) + "\n")

    write()  # before another attempt, from which a process may not return
    states = {
        f"{module}.{name}": tensor
        for module, each in method.modules.items()
        for name, tensor in full_state(each.state_dict()).items()
    }
    bad: dict[str, list[str]] = {"weights": _non_finite(states)}
    record["not_finite"] = bad
    if trainer.graph:
        trainer.graph.forget()  # its memory is needed now
    with contextlib.suppress(torch.OutOfMemoryError):
        metrics = fetch(trainer.launch(canvases))
        bad["losses"] = [name for name, x in metrics.items() if not math.isfinite(x)]
        named = method.student.named_parameters()
        bad["gradients"] = _non_finite(
            full_state({name: each.grad for name, each in named if each.grad is not None})
        )
        method.student.zero_grad()
    write()
    existing = checkpoints(folder)
    left = f"the last checkpoint is {existing[-1].name}" if existing else "no checkpoint was saved"
    return UserError(
        f"steps {steps[0] + 1} to {steps[-1] + 1} had no finite gradient and were skipped; "
        f"{folder / DIAGNOSIS} names the images and tensors, {left}: try a lower "
        "--optim.lr or --optim.clip-gradient 3"
    )


def _non_finite(tensors: dict[str, Tensor]) -> list[str]:
    floats = {name: each for name, each in tensors.items() if each.is_floating_point()}
    return [name for name, each in floats.items() if not each.isfinite().all()][:MAX_NAMES]
