"""The two losses by themselves, since their backward is a part of another stage."""

import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from croc.lab.bench.clock import Marks, keep_busy
from croc.lab.bench.trainer import Trainer
from croc.method.types import Canvases

LOSSES = 2
"""Of images and of clusters."""
LONE_STEPS = 5


def loss_alone_ms(trainer: Trainer, batches: Iterator[Canvases]) -> float | None:
    """What a step asks of both losses, asked again; None if that does not fit."""
    try:
        calls, parts = _loss_calls(trainer, next(batches))
        with trainer.fabric.autocast():
            together = sum(_loss_call_ms(trainer, given) for given in calls)
        return together * parts
    except torch.OutOfMemoryError:
        return None


def _loss_calls(trainer: Trainer, canvases: Canvases) -> tuple[list[tuple[Any, ...]], int]:
    """The inputs of both losses in a step or in the first of its parts, and how many there are."""
    network, calls = trainer.method.student, []
    plain, asked = network.distil, 0

    def listen(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        if len(calls) < LOSSES:
            calls.append(tuple(map(_apart, given)))
        return plain(*given)

    network.distil = listen
    try:
        trainer.launch(canvases)
    finally:
        network.distil = plain
    return calls, asked // LOSSES


def _apart(given: Any) -> Any:
    """Without the graph that it came from."""
    if not isinstance(given, Tensor):
        return given
    return given.detach().requires_grad_(given.requires_grad)


def _loss_call_ms(trainer: Trainer, given: tuple[Any, ...]) -> float:
    learning = [each for each in given if isinstance(each, Tensor) and each.requires_grad]
    marks = Marks(trainer.fabric.device)
    keep_busy(trainer.fabric.device)
    for _ in range(2 * LONE_STEPS):
        marks.set()
        loss, *_ = trainer.method.student.distil(*given)
        torch.autograd.grad(loss.sum(), learning)
    marks.set()
    return statistics.median(marks.apart_ms()[LONE_STEPS:])
