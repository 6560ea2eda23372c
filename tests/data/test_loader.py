import multiprocessing
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from croc.data.loader import (
    FailedFiles,
    batch_indices,
    epoch_order,
    make_loader,
    steps_per_epoch,
)
from croc.errors import UserError
from croc.method.randomness import sample_key
from croc.method.types import Canvases

from .pictures import MemorySource

COUNT, BATCH, SEED = 11, 4, 5


def load(first_step: int, last_step: int, source=None, **options) -> list[Canvases]:
    settings = {"canvas_px": 8, "batch": BATCH, "seed": SEED} | options
    return list(
        make_loader(
            source or MemorySource(COUNT), first_step=first_step, last_step=last_step, **settings
        )
    )


def assert_same(left: list[Canvases], right: list[Canvases]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one.pixels, other.pixels)
        assert torch.equal(one.sizes, other.sizes)
        assert torch.equal(one.keys, other.keys)
        assert one.failed == other.failed


FAILING_RUN = """
from croc.data.loader import make_loader
from tests.data.pictures import MemorySource
options = dict(canvas_px=8, batch=4, seed=0, first_step=0, last_step=10**6)
loader = make_loader(MemorySource(11), **options, workers=1)
next(loader)
raise ValueError("the loss is not finite")
"""


class TestOrder:
    @pytest.mark.parametrize("count", [1, 2, 1000, 4097])
    def test_is_a_permutation(self, count):
        assert sorted(epoch_order(count, 1, 2).tolist()) == list(range(count))

    def test_depends_on_seed_and_epoch_only(self):
        order = epoch_order(1000, 1, 2).tolist()
        epoch_order.cache_clear()
        torch.manual_seed(7)
        assert epoch_order(1000, 1, 2).tolist() == order
        assert epoch_order(1000, 1, 3).tolist() != order
        assert epoch_order(1000, 2, 2).tolist() != order
        assert epoch_order(1000, 2, 1).tolist() != order

    def test_never_changes(self):
        """A run begun with one version must be resumable with the next."""
        assert epoch_order(8, 0, 0).tolist() == [4, 3, 2, 1, 0, 5, 7, 6]

    def test_is_well_mixed(self):
        positions = np.stack([np.argsort(epoch_order(64, 0, epoch)) for epoch in range(400)])
        assert np.abs(positions.mean(0) - 31.5).max() < 4.5 * 18.5 / 20
        neighbours = np.corrcoef(positions[:, :-1].ravel(), positions[:, 1:].ravel())[0, 1]
        assert abs(neighbours) < 0.05

    def test_cannot_be_changed_in_the_cache(self):
        with pytest.raises(ValueError, match="read-only"):
            epoch_order(5, 0, 0)[0] = 1


class TestIndices:
    def test_an_epoch_shows_each_image_at_most_once(self):
        assert steps_per_epoch(COUNT, BATCH) == 2
        steps = [batch_indices(step, COUNT, BATCH, SEED) for step in range(6)]
        assert [epoch for epoch, _ in steps] == [0, 0, 1, 1, 2, 2]
        for epoch in range(3):
            shown = np.concatenate([steps[2 * epoch][1], steps[2 * epoch + 1][1]])
            np.testing.assert_array_equal(shown, epoch_order(COUNT, SEED, epoch)[:8])

    @pytest.mark.parametrize("processes", [1, 2, 4])
    def test_ranks_share_the_batch(self, processes):
        for step in range(5):
            parts = [
                batch_indices(step, COUNT, BATCH, SEED, rank, processes)
                for rank in range(processes)
            ]
            epoch, whole = batch_indices(step, COUNT, BATCH, SEED)
            assert {part[0] for part in parts} == {epoch}
            np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), whole)

    @pytest.mark.parametrize(
        ("count", "batch", "processes", "advice"),
        [(100, 10, 4, 8), (100, 3, 4, 4), (7, 8, 1, 7), (7, 8, 2, 6)],
    )
    def test_says_what_to_pass(self, count, batch, processes, advice):
        with pytest.raises(UserError, match=rf"--optim\.batch {advice}$"):
            batch_indices(0, count, batch, 0, 0, processes)
        batch_indices(0, count, advice, 0, 0, processes)

    def test_too_few_images_for_the_processes(self):
        with pytest.raises(UserError, match="give more images"):
            batch_indices(0, 3, 8, 0, 0, 4)


class TestLoader:
    def test_a_batch_is_what_its_indices_say(self):
        source = MemorySource(COUNT)
        for step, canvases in enumerate(load(0, 5)):
            epoch, indices = batch_indices(step, COUNT, BATCH, SEED)
            assert canvases.pixels.shape == (BATCH, 3, 8, 8)
            for row, index in enumerate(indices.tolist()):
                height, width = canvases.sizes[row].tolist()
                assert (height, width) == source.read(index).shape[:2]
                assert (canvases.pixels[row, :, :height, :width] == index).all()
                assert canvases.pixels[row].sum() == 3 * height * width * index
                assert canvases.keys[row] == sample_key(SEED, epoch, index)
            assert canvases.failed == ()

    def test_resumes_at_any_step(self):
        whole = load(0, 7)
        for step in range(8):
            assert_same(load(step, 7), whole[step:])

    def test_two_ranks_together_are_one_process(self):
        ranks = [load(0, 5, rank=rank, processes=2) for rank in range(2)]
        for whole, first, second in zip(load(0, 5), *ranks, strict=True):
            assert torch.equal(whole.pixels, torch.cat([first.pixels, second.pixels]))
            assert torch.equal(whole.sizes, torch.cat([first.sizes, second.sizes]))
            assert torch.equal(whole.keys, torch.cat([first.keys, second.keys]))

    def test_workers_change_nothing(self):
        source = MemorySource(COUNT, broken=(3,))
        assert_same(load(1, 9, source, workers=2), load(1, 9, source))

    def test_reduces_what_is_larger_than_the_canvas(self):
        (canvases,) = load(0, 1, canvas_px=4)
        assert canvases.sizes.max() == 4

    def test_abandoning_it_ends_the_workers(self):
        before = set(multiprocessing.active_children())
        loader = make_loader(
            MemorySource(COUNT),
            canvas_px=8,
            batch=BATCH,
            seed=0,
            first_step=0,
            last_step=10**6,
            workers=1,
        )
        next(loader)
        assert len(set(multiprocessing.active_children()) - before) == 1
        del loader
        assert set(multiprocessing.active_children()) <= before

    def test_an_error_with_workers_alive_does_not_hang_the_exit(self):
        ended = subprocess.run(
            [sys.executable, "-c", FAILING_RUN], capture_output=True, text=True, timeout=25
        )
        assert ended.stderr.endswith("ValueError: the loss is not finite\n")

    def test_bad_batch_is_told_before_the_first_step(self):
        with pytest.raises(UserError, match=r"--optim\.batch"):
            make_loader(MemorySource(3), canvas_px=8, batch=4, seed=0, first_step=0, last_step=1)


class Signalling(MemorySource):
    """Its worker is told to stop while it reads."""

    def read(self, index: int) -> np.ndarray:
        if torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            assert torch.get_num_threads() == 1
        return super().read(index)


def test_workers_leave_signals_to_the_main_process():
    assert_same(load(0, 3, Signalling(COUNT), workers=1), load(0, 3))


class TestBroken:
    def test_replaced_by_the_next_readable(self):
        source = MemorySource(COUNT, broken=(2, 3, 10))
        stands_in = {2: 4, 3: 4, 10: 0}
        named = {2: {"image 2", "image 3"}, 3: {"image 3"}, 10: {"image 10"}}
        for step, canvases in enumerate(load(0, 8, source)):
            epoch, indices = batch_indices(step, COUNT, BATCH, SEED)
            expected = [stands_in.get(index, index) for index in indices.tolist()]
            assert canvases.pixels[:, 0, 0, 0].tolist() == expected
            keys = [sample_key(SEED, epoch, index) for index in indices.tolist()]
            assert canvases.keys.tolist() == keys
            assert set(canvases.failed) == set().union(
                *(named.get(index, set()) for index in indices.tolist())
            )
            assert len(set(canvases.failed)) == len(canvases.failed)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_nothing_readable(self, workers):
        source = MemorySource(COUNT, broken=tuple(range(COUNT)))
        with pytest.raises(UserError, match="11 images in a row") as caught:
            load(0, 1, source, workers=workers)
        assert "\n" not in str(caught.value)

    def test_a_hundred_in_a_row(self):
        start = epoch_order(250, SEED, 0)[0]
        gone = [(start + offset) % 250 for offset in range(100)]
        with pytest.raises(UserError, match="100 images in a row"):
            load(0, 1, MemorySource(250, broken=tuple(gone)), batch=1)
        load(0, 1, MemorySource(250, broken=tuple(gone[:99])), batch=1)


class TestFailedFiles:
    def test_counts_distinct_names(self):
        tracker = FailedFiles()
        assert tracker.add(
            (
                "a",
                "b",
            )
        ) == ("a", "b")
        assert tracker.add(
            (
                "b",
                "c",
            )
        ) == ("c",)
        assert tracker.names == ("a", "b", "c")

    def test_share_is_of_the_images_seen(self):
        tracker = FailedFiles()
        tracker.add(
            (
                "a",
                "b",
            )
        )
        tracker.check(seen=200, count=1000, max_share=0.01)
        with pytest.raises(UserError, match=r"2 of 199 images .* a, b$"):
            tracker.check(seen=199, count=1000, max_share=0.01)
        with pytest.raises(UserError, match="2 of 150 images"):
            tracker.check(seen=10_000, count=150, max_share=0.01)

    def test_waits_until_enough_were_seen(self):
        tracker = FailedFiles()
        tracker.add(("a",))
        tracker.check(seen=99, count=1000, max_share=0.0)
        with pytest.raises(UserError):
            tracker.check(seen=100, count=1000, max_share=0.0)
        tracker.check(seen=9, count=10, max_share=0.0)
        with pytest.raises(UserError):
            tracker.check(seen=10, count=10, max_share=0.0)

    def test_none_failed(self):
        FailedFiles().check(seen=10**6, count=10, max_share=0.0)

    def test_lists_twenty_at_most(self):
        tracker = FailedFiles()
        tracker.add(f"<{number}>" for number in range(25))
        with pytest.raises(UserError, match=r"<19> and 5 more$"):
            tracker.check(seen=100, count=100, max_share=0.1)
