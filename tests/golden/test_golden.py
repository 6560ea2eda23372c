"""First losses: a change of them is a change of the method, to be made knowingly."""

import json
from pathlib import Path

import pytest

from tests.golden.make import CONFIGS, STEPS, first_losses, page


@pytest.mark.parametrize("name", CONFIGS)
def test_first_losses(tmp_path: Path, name: str):
    expected = json.loads(page(name).read_text())
    assert len(expected) == STEPS
    for line, golden in zip(first_losses(name, tmp_path / "run"), expected, strict=True):
        assert line == pytest.approx(golden, rel=1e-3)
