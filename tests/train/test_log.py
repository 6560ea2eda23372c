"""TensorBoard reads what was written, and a full disk leaves no half of a record."""

import shutil
from collections.abc import Callable
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from croc.train.log import TensorBoard


def read(folder: Path, tag: str) -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder)).Reload()
    return [(scalar.step, scalar.value) for scalar in found.Scalars(tag)]


def test_a_resumed_run_takes_back_what_came_later(tmp_path: Path):
    for first, value in ((1, 1.0), (3, 2.0)):
        board = TensorBoard(tmp_path, first)
        for step in range(first, 6):
            board.write(step, {"loss": value, "k_mean": 1.5 * step})
        board.close()
    assert read(tmp_path, "loss") == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)]
    assert read(tmp_path, "k_mean") == [(step, 1.5 * step) for step in range(1, 6)]


def test_a_disk_that_is_full_for_a_while(small_disk: Callable[[int], Path]):
    disk = small_disk(64)
    board = TensorBoard(disk / "board", 1)
    board.write(1, {"loss": 1.0})
    rubbish = disk / "rubbish"
    rubbish.write_bytes(b"x" * shutil.disk_usage(disk).free)
    refused = 0
    for step in range(2, 200):  # its last page has room for some
        try:
            board.write(step, {"loss": float(step), "a longer name": 0.0})
        except OSError:
            refused += 1
    assert refused > 50
    rubbish.unlink()
    board.write(200, {"loss": 200.0})
    board.close()
    found = read(disk / "board", "loss")
    assert found[0] == (1, 1.0)
    assert found[-1] == (200, 200.0)
    assert len(found) == 200 - refused
