"""What is known of a run whose gradients are not finite, in a file beside its metrics."""

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from croc.data.loader import batch_indices
from croc.data.sources import ImageSource
from croc.io import replacing
from croc.method.build import Method
from croc.method.distributed import fetch
from croc.method.schedules import Settings
from croc.method.sharding import whole
from croc.method.types import Canvases
from croc.train.cuda_graph import Gradients, RecordedGradients
from croc.train.guard import finite_or_none

DIAGNOSIS = "diagnosis.json"
MOST_NAMES, MOST_STEPS = 50, 20


def describe(device: torch.device, settings: Settings, values: dict[str, float]) -> dict[str, Any]:
    """What is known without another try."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "metrics": finite_or_none(values),
        "rate": settings.rate,
        "weight_decay": settings.weight_decay,
        "torch": torch.__version__,
        "device": device.type,
    }


def write_diagnosis(folder: Path, page: dict[str, Any]) -> None:
    with replacing(folder / DIAGNOSIS) as partial:
        partial.write_text(json.dumps(page, indent=1) + "\n")


def images_of(source: ImageSource, steps: range, batch: int, seed: int) -> dict[int, list[str]]:
    """Names of the images of each step (the first is 1), over all processes; the last few steps."""
    last = steps[-MOST_STEPS:]
    numbers = {step: batch_indices(step, len(source), batch, seed)[1] for step in last}
    return {step + 1: [source.name(i) for i in found.tolist()] for step, found in numbers.items()}


def find_spoiled(gradients: Gradients, canvases: Canvases) -> dict[str, list[str]]:
    """Which tensors are: parameters and buffers as they are; losses and gradients of the last
    batch, which is tried once more. All processes must do this together."""
    method = gradients.method
    states = {
        f"{module}.{name}": tensor
        for module, each in method.modules.items()
        for name, tensor in whole(each.state_dict()).items()
    }
    found = {"weights": _names(states)}
    if isinstance(gradients, RecordedGradients):
        gradients.forget()  # its memory is needed now
    try:
        metrics = Gradients(gradients.fabric, method, gradients.student)(canvases)
    except torch.OutOfMemoryError:
        return found
    found["losses"] = [name for name, value in fetch(metrics).items() if not math.isfinite(value)]
    found["gradients"] = _names(_gradients(method))
    method.student.zero_grad()
    return found


def _gradients(method: Method) -> dict[str, Tensor]:
    named = method.student.named_parameters()
    return whole({name: each.grad for name, each in named if each.grad is not None})


def _names(tensors: dict[str, Tensor]) -> list[str]:
    floats = {name: each for name, each in tensors.items() if each.is_floating_point()}
    return [name for name, each in floats.items() if not each.isfinite().all()][:MOST_NAMES]
