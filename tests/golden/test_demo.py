"""The demo's first losses: a change of them is a change of the method, to be made knowingly."""

import json
from pathlib import Path

import pytest

from tests.golden.make import PAGE, STEPS, first_losses


def test_first_losses_of_the_demo(tmp_path: Path):
    expected = json.loads(PAGE.read_text())
    assert len(expected) == STEPS
    for line, golden in zip(first_losses(tmp_path / "run"), expected, strict=True):
        assert line == pytest.approx(golden, rel=1e-3)
