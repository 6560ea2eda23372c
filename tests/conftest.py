"""Tests share two cores among processes; OpenMP's threads would wait for each other's turns."""

import os
import re
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

torch.set_num_threads(1)
OURS = ("croc", "tests", "benchmarks")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """`pytest -m cuda` skips a file that needs a package that is not installed: a GPU machine may
    have only what training needs."""
    report = yield
    if collector.config.option.markexpr != "cuda":
        return report
    missing = re.findall(r"ModuleNotFoundError: No module named '(\w+)", str(report.longrepr))
    if report.failed and missing and missing[-1] not in OURS:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"needs {missing[-1]}")
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture
def own_environment() -> Iterator[None]:
    """Lightning leaves there where a run's processes met."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a disk of so many kilobytes."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(kilobytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no disk may be mounted here")
        return place

    yield mount
    subprocess.run(["umount", str(place)], capture_output=True)
