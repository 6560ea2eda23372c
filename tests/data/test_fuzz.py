"""Some hundred files of every bad kind; `make soak` reads ten thousand."""

from pathlib import Path

import pytest

from tests.data.fuzz import Watched, fuzz_loader, watch
from tests.data.pictures import encode, noise
from tests.train.kills import command

FILES = 200
"""Of the small run: its epoch is 25 steps."""


def test_bad_files_are_named_and_counted_and_good_ones_delivered(tmp_path: Path):
    told = fuzz_loader(tmp_path, count=260, seed=0, timeout_s=240)
    assert told["kinds"] > 100
    assert min(told["good"], told["failed"]) > 100


@pytest.fixture
def run(tmp_path: Path):
    """A small run over photographs of which some are broken, in names of two lines."""

    def start(broken: int) -> Watched:
        folder = tmp_path / "photographs"
        folder.mkdir()
        for number in range(FILES):
            bad = number % (FILES // broken) == 7
            name = f"{number}, in\ntwo lines.png" if bad else f"{number}.png"
            data = encode(noise(40, 36, number))
            (folder / name).write_bytes(data[:-700] if bad else data)
        roots = ("--data.root", str(folder), "--data.workers", "1")
        sparing = ("--optim.epochs", "1", "--optim.warmup-epochs", "0")
        rarely = ("--run.checkpoint-every-steps", "25", "--run.log-every-steps", "5")
        return watch(command(tmp_path / "run", *roots, *sparing, *rarely), timeout_s=120)

    return start


def test_a_run_goes_on_with_a_few_broken_files(run):
    ended = run(broken=1)
    assert ended.code == 0, ended.err
    skipped = [line for line in ended.err.splitlines() if "cannot be decoded" in line]
    assert len(skipped) == 1
    assert skipped[0].endswith(r"/7, in\ntwo lines.png")


def test_a_run_stops_with_the_list_of_many(run):
    ended = run(broken=10)
    assert ended.code == 2, ended.err
    assert "Traceback" not in ended.err
    last = ended.err.splitlines()[-1]
    assert "images cannot be decoded, more than --data.max-failed-share 0.01 allows: " in last
    assert last.count(r", in\ntwo lines.png") >= 2
