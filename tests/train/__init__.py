"""Helpers for the training tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from croc.cli import main
from croc.io import read_metrics
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


def train(folder: Path, *more: str) -> None:
    """Run the command of `tests.train.kills` in this process until it finishes."""
    assert main(command(folder, *more)[3:]) == 0
