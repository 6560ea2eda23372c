"""A training process killed while it writes a checkpoint; `make soak` kills it 100 times."""

from pathlib import Path

from tests.train import in_soak, metrics_of, train
from tests.train.kills import INTERVAL, kill, same_weights
from tests.train.soak import soak_steps

MORE = ("--optim.epochs", "8")


def test_resume_after_sigkill_equals_uninterrupted_run(tmp_path: Path):
    record = kill(tmp_path / "killed", kills=1, seed=0, more=MORE)
    assert record.while_writing == 1
    assert record.unreadable == []
    assert record.most_lost <= INTERVAL
    train(tmp_path / "killed", *MORE)
    train(tmp_path / "whole", *MORE)
    assert same_weights(tmp_path / "killed", tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")
    assert not list((tmp_path / "killed").glob("**/*.partial"))


@in_soak
def test_memory_and_open_files_do_not_grow(tmp_path: Path):
    figures = soak_steps(tmp_path / "run", steps=300)
    assert figures["steps"] == 300
    assert 0.3 * figures["memory_mb_per_1000_steps"] < 20, figures
    assert 0.3 * figures["files_per_1000_steps"] < 1, figures
