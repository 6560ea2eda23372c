"""What is meant to stay as it is: a change here is a change of the method or of a promise, to be
made knowingly (`python -m tests.golden.make`)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from croc.config import read_config
from croc.io import RENAMED
from tests.golden.make import (
    CONFIGS,
    HERE,
    LATER_STEPS,
    PROTOCOLS,
    RUN_STEPS,
    first_losses,
    losses_of,
    score,
    some_features,
)


def golden(name: str) -> Any:
    """The numbers as first written, under today's names."""

    def rename(values: dict[str, Any]) -> dict[str, Any]:
        return {RENAMED.get(key, key): value for key, value in values.items()}

    return json.loads((HERE / f"{name}.json").read_text(), object_hook=rename)


@pytest.mark.parametrize("name", CONFIGS)
def test_first_losses(tmp_path: Path, name: str):
    for line, expected in zip(
        first_losses(name, tmp_path / "run"), golden("losses")[name], strict=True
    ):
        assert line == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_scores_of_the_shipped_weights(protocol: str):
    assert score(protocol) == pytest.approx(golden("scores")[protocol], abs=0.3)


def test_features_of_the_shipped_weights():
    assert some_features() == pytest.approx(golden("features"), abs=2e-3)


@pytest.mark.parametrize("method", ["croc", "dino"])
def test_an_earlier_run_is_resumed(method: str, tmp_path: Path):
    """From the config.json and the checkpoint of an earlier version."""
    run = shutil.copytree(HERE / "runs" / method, tmp_path / "run")
    config, _ = read_config(run / "config.json")
    lines = losses_of(config, run, RUN_STEPS + LATER_STEPS)
    expected = golden(f"runs/{method}/later")
    assert len(lines) == RUN_STEPS + LATER_STEPS
    for line, earlier in zip(lines, expected, strict=True):
        assert line == pytest.approx(earlier, rel=1e-3)
