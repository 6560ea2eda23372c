"""Some hundred files of every bad kind; `make soak` reads ten thousand."""

from pathlib import Path

from tests.data.fuzz import fuzz_loader


def test_bad_files_are_named_and_counted_and_good_ones_delivered(tmp_path: Path):
    result = fuzz_loader(tmp_path, count=260, seed=0, timeout_s=240)
    assert result["kinds"] > 70
    assert min(result["good"], result["failed"]) > 100
