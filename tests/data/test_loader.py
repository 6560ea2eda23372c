import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest
import torch

from croc.data.loader import Ring, batch_indices, epoch_order, make_loader
from croc.errors import UserError
from croc.method.randomness import sample_key
from croc.method.types import Canvases

from .pictures import MemorySource

COUNT, BATCH, SEED = 23, 5, 5


def loader(source=None, first_step: int = 0, last_step: int = 12, **options):
    settings = {"canvas_px": 8, "batch": BATCH, "seed": SEED} | options
    source = source or MemorySource(COUNT)
    return make_loader(source, first_step=first_step, last_step=last_step, **settings)


def same(left: Canvases, right: Canvases) -> bool:
    tensors = ((x.pixels.cpu(), x.sizes.cpu(), x.sample_keys.cpu()) for x in (left, right))
    return left.failed == right.failed and all(torch.equal(*pair) for pair in zip(*tensors))


def assert_same(left, right) -> None:
    assert all(same(one, other) for one, other in zip(left, right, strict=True))


def test_order_is_a_permutation_by_seed_and_epoch():
    for count in (1, 2, 4097):
        assert sorted(epoch_order(count, 1, 2).tolist()) == list(range(count))
    order = epoch_order(1000, 1, 2).tolist()
    epoch_order.cache_clear()
    torch.manual_seed(7)
    assert epoch_order(1000, 1, 2).tolist() == order
    for seed, epoch in ((1, 3), (2, 2), (2, 1)):
        assert epoch_order(1000, seed, epoch).tolist() != order


def test_order_never_changes():
    """A run begun with one version must be resumable with the next."""
    assert epoch_order(8, 0, 0).tolist() == [4, 3, 2, 1, 0, 5, 7, 6]


def test_an_epoch_shows_each_image_at_most_once_and_ranks_share_the_batch():
    for step in range(6):
        epoch, indices = batch_indices(step, 11, 4, SEED)
        start = 4 * (step % 2)
        assert epoch == step // 2
        np.testing.assert_array_equal(indices, epoch_order(11, SEED, epoch)[start : start + 4])
        parts = [batch_indices(step, 11, 4, SEED, rank, 2) for rank in range(2)]
        assert [part[0] for part in parts] == [epoch, epoch]
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), indices)


@pytest.mark.parametrize("broken", [(), (2, 3, 22)])
def test_a_batch_has_the_images_of_its_indices_or_the_next_readable(broken):
    source = MemorySource(COUNT, broken)
    shown = {2: 4, 3: 4, 22: 0} if broken else {}
    failed = {2: {"image 2", "image 3"}, 3: {"image 3"}, 22: {"image 22"}} if broken else {}
    for step, canvases in enumerate(loader(source)):
        epoch, indices = batch_indices(step, COUNT, BATCH, SEED)
        assert canvases.pixels.shape == (BATCH, 3, 8, 8)
        for row, index in enumerate(indices.tolist()):
            number = shown.get(index, index)
            height, width = canvases.sizes[row].tolist()
            assert (height, width) == source.read(number).shape[:2]
            assert (canvases.pixels[row, :, :height, :width] == number).all()
            assert canvases.pixels[row].sum() == 3 * height * width * number
            assert canvases.sample_keys[row] == sample_key(SEED, epoch, index)
        names = set().union(*(failed.get(index, set()) for index in indices.tolist()))
        assert sorted(canvases.failed) == sorted(names)


def test_resumes_at_any_step():
    whole = list(loader(last_step=7))
    for step in range(8):
        assert_same(loader(first_step=step, last_step=7), whole[step:])


def test_two_ranks_together_are_one_process():
    ranks = [loader(batch=4, rank=rank, processes=2) for rank in range(2)]
    for whole, first, second in zip(loader(batch=4), *ranks, strict=True):
        assert torch.equal(whole.pixels, torch.cat([first.pixels, second.pixels]))
        assert torch.equal(whole.sample_keys, torch.cat([first.sample_keys, second.sample_keys]))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [1, 2, 7])
def test_any_number_of_workers_makes_the_same_batches(workers):
    """The parts of a batch of five are not all of one size, nor are there seven."""
    source = MemorySource(COUNT, broken=(4, 9))
    assert_same(loader(source, workers=workers), loader(source))


def test_abandoning_it_ends_the_workers():
    before = set(multiprocessing.active_children())
    batches = loader(last_step=10**6, workers=1)
    next(batches)
    assert len(set(multiprocessing.active_children()) - before) == 1
    del batches
    assert set(multiprocessing.active_children()) <= before


def test_an_error_with_live_workers_does_not_hang_the_exit():
    failing_run = (
        "from tests.data.test_loader import loader\n"
        "batches = loader(last_step=10**6, workers=1)\n"
        "next(batches)\n"
        "raise ValueError('the loss is not finite')\n"
    )
    command = [sys.executable, "-c", failing_run]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stderr.endswith("ValueError: the loss is not finite\n")


class Signalling(MemorySource):
    """Its worker gets signals to stop while it reads."""

    def read(self, index: int) -> np.ndarray:
        if torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            assert torch.get_num_threads() == 1
        return super().read(index)


def test_workers_leave_signals_to_the_main_process():
    assert_same(loader(Signalling(COUNT), workers=1), loader())


@pytest.mark.parametrize("ahead", [1, 5])
def test_a_batch_stays_until_the_next_but_one(ahead, monkeypatch):
    """Workers that run ahead do not write into what is still being copied."""
    owned = list(loader())
    monkeypatch.setattr(Canvases, "copied", lambda self: self)
    monkeypatch.setattr("croc.data.loader._PARTS_AHEAD", ahead)
    before = None
    for step, borrowed in enumerate(loader(workers=2)):
        time.sleep(0.03)  # let the workers run ahead
        assert same(borrowed, owned[step])
        assert before is None or same(before, owned[step - 1])
        before = borrowed


def test_too_little_shared_memory_is_reported(monkeypatch):
    def fail(self):
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device")

    monkeypatch.setattr(torch.Tensor, "share_memory_", fail)
    with pytest.raises(UserError, match="--shm-size"):
        loader(workers=1)
    next(loader(workers=0))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_hundred_broken_in_a_row(workers):
    start = epoch_order(250, SEED, 0)[0]
    gone = tuple((start + offset) % 250 for offset in range(100))
    with pytest.raises(UserError, match="100 images in a row") as caught:
        next(loader(MemorySource(250, gone), batch=1, workers=workers))
    assert "\n" not in str(caught.value)
    next(loader(MemorySource(250, gone[:99]), batch=1))


@pytest.mark.cuda
class TestOnTheGpu:
    device = torch.device("cuda", 0)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_same_batches_while_the_device_is_busy(self, workers):
        source = MemorySource(COUNT, broken=(4,))
        product = torch.randn(2048, 2048, device=self.device)
        copies: list[Canvases] = []
        for canvases in loader(source, last_step=40, workers=workers, device=self.device):
            assert canvases.pixels.is_cuda
            for _ in range(20):
                product @ product
            # Read after the products: by then a batch that is not kept safe is overwritten.
            tensors = (canvases.pixels, canvases.sizes, canvases.sample_keys)
            copies.append(Canvases(*(tensor + 0 for tensor in tensors), canvases.failed))
        assert_same(copies, loader(source, last_step=40))

    def test_large_batches_arrive_whole(self):
        options = {"last_step": 6, "canvas_px": 384, "batch": 64}
        arrived = loader(MemorySource(64), workers=2, device=self.device, **options)
        assert_same(arrived, loader(MemorySource(64), **options))

    def test_a_failure_comes_after_the_batches_before_it(self):
        class Failing(MemorySource):
            def read(self, index: int):
                if index == 7:
                    raise UserError("the disk is gone")
                return super().read(index)

        def count_until_error(**options) -> int:
            delivered: list[Canvases] = []
            with pytest.raises(UserError, match="the disk is gone"):
                delivered.extend(loader(Failing(COUNT), batch=1, last_step=COUNT, **options))
            return len(delivered)

        assert count_until_error(workers=1, device=self.device) == count_until_error() > 1

    def test_an_early_end_unpins_the_memory_and_ends_the_workers(self, monkeypatch):
        rings: list[Ring] = []

        def make_ring(*sizes: int, shared: bool) -> Ring:
            rings.append(Ring(*sizes, shared=shared))
            return rings[0]

        monkeypatch.setattr("croc.data.loader.Ring", make_ring)
        before = set(multiprocessing.active_children())
        with closing(loader(last_step=10**6, workers=1, device=self.device)) as batches:
            next(batches)
            assert rings[0].memory.is_pinned()
        assert not rings[0].memory.is_pinned()
        assert set(multiprocessing.active_children()) <= before

    def test_nothing_waits_for_the_device(self):
        """Two batches are delivered while a long computation is still running."""
        product = torch.randn(8192, 8192, device=self.device)
        with closing(loader(workers=1, device=self.device)) as batches:
            next(batches)
            torch.cuda.synchronize()
            for _ in range(100):
                product @ product
            done = torch.cuda.Event()
            done.record()
            next(batches)
            next(batches)
            assert not done.query()
