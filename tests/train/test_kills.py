"""A real process, killed while it works and while it writes a checkpoint; make soak: 100 times."""

from pathlib import Path

from tests.train import metrics_of, train
from tests.train.kills import INTERVAL, kill_and_resume, same_weights

LONG = ("--optim.epochs", "12")


def test_a_killed_process_resumes_as_if_uninterrupted(tmp_path: Path):
    train(tmp_path / "whole", *LONG)
    seen = kill_and_resume(tmp_path / "killed", kills=2, seed=0, more=LONG)
    assert seen.unreadable == []
    assert seen.while_writing >= 1
    assert seen.most_lost <= INTERVAL
    assert same_weights(tmp_path / "killed", tmp_path / "whole")
    assert metrics_of(tmp_path / "killed") == metrics_of(tmp_path / "whole")
    assert not list((tmp_path / "killed").glob("**/*.partial"))
