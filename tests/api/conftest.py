"""A tiny run and a photograph."""

from pathlib import Path

import pytest
from PIL import Image

import croc
from croc.data.scenes import make_scene
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> croc.Run:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return croc.pretrain(tiny_config(), folder=folder, run={"stop_after_steps": 2})


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 px high and 60 wide."""
    path = tmp_path_factory.mktemp("photographs") / "scene.png"
    Image.fromarray(make_scene(5, 0).image[:, :60]).save(path)
    return path
