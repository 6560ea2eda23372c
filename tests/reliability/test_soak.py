"""A short run of what `make soak` does for long: memory and files do not grow with the steps."""

from pathlib import Path

from tests.reliability.soak import soak_steps


def test_nothing_grows(tmp_path: Path):
    figures = soak_steps(tmp_path / "run", steps=300)
    assert figures["steps"] == 300
    assert 0.3 * figures["memory_mb_per_1000_steps"] < 20, figures
    assert 0.3 * figures["files_per_1000_steps"] < 1, figures
