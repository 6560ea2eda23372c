"""Shared fixtures; one thread per process, because tests run in parallel on two cores."""

import gc
import os
import re
import subprocess
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from croc.config import PretrainConfig
from tests.tiny import tiny_config, tiny_mae

torch.set_num_threads(1)
OURS = ("croc", "tests", "benchmarks")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """`pytest -m cuda` skips files that need a missing package: a GPU machine may have only the
    training dependencies."""
    report = yield
    if collector.config.option.markexpr != "cuda":
        return report
    missing = re.findall(r"ModuleNotFoundError: No module named '(\w+)", str(report.longrepr))
    if report.failed and missing and missing[-1] not in OURS:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"needs {missing[-1]}")
    return report


TOGETHER = re.compile(r"tests/(weights/test_export_folders|test_bad_input)")
"""Files whose tests share an expensive fixture: all tests of a file run on one worker."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups those files, because pytest 9.2 loses xdist 3.8's marks of `--dist loadgroup`."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            together = TOGETHER.match(nodeid)
            return together[0] if together else nodeid

    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    """Data loaders collect garbage when they start; exclude all imported modules from it."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folders = {item.nodeid.split("/")[1] for item in items if item.get_closest_marker("compiled")}
    assert folders <= {"kernels", "method", "train"}, "make test runs compiled tests only there"
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, with checkpoints at steps 2 and 3."""
    return train(tiny_config(tmp_path_factory.mktemp("runs") / "tiny", stop_after_steps=3))


@pytest.fixture(scope="session")
def mae_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_mae(tmp_path_factory.mktemp("runs") / "mae", stop_after_steps=2))


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of nine steps."""
    return train(tiny_config(tmp_path_factory.mktemp("runs") / "run"))


def train(config: PretrainConfig) -> Path:
    from croc.train.loop import pretrain

    return pretrain(replace(config, run=replace(config.run, report=False)), "tiny")


@pytest.fixture
def own_environment() -> Iterator[None]:
    """Restores the environment, where Lightning leaves the address of a run's processes."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a tmpfs of the requested size in kilobytes."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(kilobytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no permission to mount a disk")
        return disk

    yield mount
    subprocess.run(["umount", str(disk)], capture_output=True)
