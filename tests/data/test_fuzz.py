"""Some hundred files of every bad kind; `make soak` reads ten thousand."""

import subprocess
from pathlib import Path

from tests.data.fuzz import fuzz_loader
from tests.data.pictures import encode, noise
from tests.train.kills import command, environment

FILES = 200


def test_bad_files_are_named_and_counted_and_good_ones_delivered(tmp_path: Path):
    result = fuzz_loader(tmp_path, count=260, seed=0, timeout_s=240)
    assert result["kinds"] > 70
    assert min(result["good"], result["failed"]) > 100


def run(tmp_path: Path, broken: int) -> subprocess.CompletedProcess[str]:
    """An epoch of 25 steps, over photographs of which some are broken, in names of two lines."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number in range(FILES):
        is_bad = number % (FILES // broken) == 7
        name = f"{number}, in\ntwo lines.png" if is_bad else f"{number}.png"
        data = encode(noise(40, 36, number))
        (folder / name).write_bytes(data[:-700] if is_bad else data)
    options = ("--data.root", str(folder), "--data.workers", "1", "--optim.epochs", "1")
    rarely = ("--run.checkpoint-every-steps", "25", "--run.log-every-steps", "5")
    whole = command(tmp_path / "run", *options, *rarely, "--optim.warmup-epochs", "0")
    return subprocess.run(whole, env=environment(), capture_output=True, text=True, timeout=120)


def test_a_run_continues_with_a_few_broken_files(tmp_path: Path):
    ended = run(tmp_path, broken=1)
    assert ended.returncode == 0, ended.stderr
    (skipped,) = [line for line in ended.stderr.splitlines() if "cannot be decoded" in line]
    assert skipped.endswith(r"/7, in\ntwo lines.png")


def test_a_run_stops_with_the_list_of_many(tmp_path: Path):
    ended = run(tmp_path, broken=10)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert "images cannot be decoded, more than --data.max-failed-share 0.01 allows: " in last
    assert last.count(r", in\ntwo lines.png") >= 2
