from pathlib import Path

import pytest

from croc.train.loop import pretrain
from tests.tiny import tiny_config


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of nine steps."""
    return pretrain(tiny_config(tmp_path_factory.mktemp("runs") / "run", report=False), "tiny")
