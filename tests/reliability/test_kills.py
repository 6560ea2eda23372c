"""A few kills; `make soak` does a hundred."""

from pathlib import Path

from tests.reliability.kills import INTERVAL, kill_and_resume, same_weights, train
from tests.test_train import told

LONG = ("--optim.epochs", "20")


def test_killed_anywhere_it_goes_on_as_if_nothing_had_been(tmp_path: Path):
    train(tmp_path / "undisturbed", LONG)
    seen = kill_and_resume(tmp_path / "killed", kills=3, seed=0, more=LONG)
    assert seen.unreadable == []
    assert seen.while_writing >= 1
    assert seen.most_lost <= INTERVAL
    assert same_weights(tmp_path / "killed", tmp_path / "undisturbed")
    assert told(tmp_path / "killed") == told(tmp_path / "undisturbed")
    assert not list((tmp_path / "killed").glob("**/*.partial"))
