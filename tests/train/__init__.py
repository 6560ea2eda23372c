"""Helpers for the training tests."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from croc.cli import main
from croc.io import read_metrics
from croc.method.croc import Croc
from croc.train.log import TIMINGS, RunLog
from tests.train.kills import command

in_soak = pytest.mark.skipif("CROC_SOAK" not in os.environ, reason="slow: part of make soak")


def metrics_of(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run without its timings."""
    lines = read_metrics(folder)
    return [{name: line[name] for name in line if name not in TIMINGS} for line in lines]


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """The run inside is killed before it logs this step."""

    class Killed(BaseException):
        pass

    def die(self: RunLog, number: int) -> None:
        if number == step:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLog, "advance", die)
        with pytest.raises(Killed):
            yield


def after_gradients(
    monkeypatch: pytest.MonkeyPatch, actions: Mapping[int, Callable[[Croc, Any], object]]
) -> None:
    """Run actions after the gradients of these steps, counted from 1."""
    real, step = Croc.compute_gradients, 0

    def compute_gradients(self, *arguments):
        nonlocal step
        step += 1
        metrics = real(self, *arguments)
        actions.get(step, lambda *_: None)(self, metrics)
        return metrics

    monkeypatch.setattr(Croc, "compute_gradients", compute_gradients)


def train(folder: Path, *more: str) -> None:
    """Run the command of `tests.train.kills` in this process until it finishes."""
    assert main(command(folder, *more)[3:]) == 0
