"""A run of three steps with two checkpoints, for all that needs weights."""

from pathlib import Path

import pytest

from croc.train.loop import pretrain
from tests.tiny import tiny_config


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return pretrain(tiny_config(folder, stop_after_steps=3, checkpoint_every_steps=2), "tiny")
