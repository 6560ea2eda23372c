"""What the tests of training share."""

import os
from pathlib import Path

import pytest

from croc.cli import main
from croc.io import read_metrics
from croc.train.log import TIMINGS
from tests.train.kills import command

in_soak = pytest.mark.skipif("CROC_SOAK" not in os.environ, reason="long: run by make soak")


def metrics_of(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run, without the timings."""
    lines = read_metrics(folder)
    return [{name: line[name] for name in line if name not in TIMINGS} for line in lines]


def train(folder: Path, *more: str) -> None:
    """The command of `tests.train.kills`, in this process, to its end."""
    assert main(command(folder, *more)[3:]) == 0
