"""A run of each kind that was never trained, and photographs: what the pictures need."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from croc.train.loop import pretrain
from tests.tiny import tiny_config, tiny_mae


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return pretrain(tiny_config(folder, stop_after_steps=1), "tiny")


@pytest.fixture(scope="session")
def mae_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "mae"
    return pretrain(tiny_mae(folder, stop_after_steps=1), "tiny-mae")


@pytest.fixture(scope="session")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> str:
    """60 × 40: a disc on two halves."""
    y, x = np.mgrid[:40, :60]
    pixels = np.where((x < 30)[..., None], (200, 80, 40), (40, 90, 200))
    pixels[(x - 30) ** 2 + (y - 20) ** 2 < 100] = (240, 240, 200)
    path = tmp_path_factory.mktemp("photographs") / "disc.png"
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return str(path)
