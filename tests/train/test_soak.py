"""Memory and open files do not grow with the steps."""

from pathlib import Path

from tests.train import soak
from tests.train.soak import soak_steps


@soak
def test_memory_and_files_do_not_grow(tmp_path: Path):
    figures = soak_steps(tmp_path / "run", steps=300)
    assert figures["steps"] == 300
    assert 0.3 * figures["memory_mb_per_1000_steps"] < 20, figures
    assert 0.3 * figures["files_per_1000_steps"] < 1, figures
