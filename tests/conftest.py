"""Tests share two cores among processes; OpenMP's threads would wait for each other's turns."""

import os
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def own_environment() -> Iterator[None]:
    """Lightning leaves there where a run's processes met."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
