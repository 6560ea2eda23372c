from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from croc.train.loop import pretrain
from tests.tiny import tiny_config


@pytest.fixture(scope="package")
def served() -> Iterator[Any]:
    from tests.lab.app.serving import serving, tiny_model

    with serving(tiny_model("first"), tiny_model("second", seed=1)) as running:
        yield running


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the checkpoints of steps 2 and 3."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return pretrain(tiny_config(folder, stop_after_steps=3), "tiny")
