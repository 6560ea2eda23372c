"""What every sweep of a test leaves out or writes down."""

from pathlib import Path
from typing import Any

import pytest

from croc.config import PretrainConfig
from croc.eval import evaluate
from croc.lab.sweep import run as sweep_run


@pytest.fixture(autouse=True)
def no_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer to draw than all else."""
    monkeypatch.setattr(evaluate, "segmentation_figure", lambda *_: None)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that pretrain was called for, in their order."""
    real, calls = sweep_run.pretrain, []

    def noted(config: PretrainConfig, recipe: str) -> Path:
        calls.append(Path(str(config.run.folder)).name)
        return real(config, recipe)

    monkeypatch.setattr(sweep_run, "pretrain", noted)
    return calls


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The weights of every cell that is really computed."""
    calls: list[str] = []
    for name, runner in list(evaluate.RUNNERS.items()):

        def counted(job: evaluate.Job, runner: Any = runner) -> evaluate.Found:
            kind, colon, folder = job.weights.spec.rpartition(":")
            calls.append(kind + colon + Path(folder).name)
            return runner(job)

        monkeypatch.setitem(evaluate.RUNNERS, name, counted)
    return calls
