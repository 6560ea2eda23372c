"""A training process killed while it writes a checkpoint; `make soak` kills it 100 times."""

from pathlib import Path

from tests.train import metrics_of, train
from tests.train.kills import INTERVAL, kill, same_weights

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
