"""Tests share two cores among processes; OpenMP's threads would wait for each other's turns."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A disk of its own, of so many kilobytes."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(kilobytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no disk may be mounted here")
        return place

    yield mount
    subprocess.run(["umount", str(place)], capture_output=True)
