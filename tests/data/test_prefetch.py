import multiprocessing
import time
from contextlib import closing

import pytest
import torch

from croc.data.loader import make_loader
from croc.data.prefetch import one_ahead
from croc.data.ring import Ring, slots_needed
from croc.errors import UserError
from croc.method.types import Canvases

from .pictures import MemorySource

COUNT, BATCH = 23, 5
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def loader(source=None, last_step: int = 12, **options):
    settings = {"canvas_px": 8, "batch": BATCH, "seed": 3, "first_step": 0} | options
    return make_loader(source or MemorySource(COUNT), last_step=last_step, **settings)


def same(left: Canvases, right: Canvases) -> bool:
    tensors = ((x.pixels.cpu(), x.sizes.cpu(), x.keys.cpu()) for x in (left, right))
    return left.failed == right.failed and all(torch.equal(*pair) for pair in zip(*tensors))


class TestOneAhead:
    def test_keeps_items_and_order(self):
        for count in range(4):
            assert list(one_ahead(range(count))) == list(range(count))

    def test_is_one_ahead_and_no_more(self):
        begun: list[int] = []

        def items():
            for item in range(5):
                begun.append(item)
                yield item

        for item in one_ahead(items()):
            assert begun == list(range(min(item + 2, 5)))

    def test_what_came_before_a_failure_is_given_away_first(self):
        def items():
            yield from (1, 2)
            raise UserError("the disk is gone")

        given: list[int] = []
        with pytest.raises(UserError, match="the disk is gone"):
            given.extend(one_ahead(items()))
        assert given == [1, 2]

    def test_an_early_end_closes_what_it_reads(self):
        closed: list[bool] = []

        def items():
            try:
                yield from range(9)
            finally:
                closed.append(True)

        reading = one_ahead(items())
        next(reading)
        del reading
        assert closed == [True]


class TestRing:
    @pytest.mark.filterwarnings("ignore:This DataLoader will create")
    @pytest.mark.parametrize("workers", [0, 1, 2, 3, 7])
    def test_any_number_of_workers_makes_the_same_batches(self, workers):
        """The parts of a batch of five are not all of one size, nor are there seven."""
        source = MemorySource(COUNT, broken=(4, 9))
        for one, other in zip(loader(source), loader(source, workers=workers), strict=True):
            assert same(one, other)

    @pytest.mark.parametrize("ahead", [1, 2, 5])
    def test_a_batch_stays_until_the_next_but_one(self, ahead, monkeypatch):
        """Workers that run ahead do not write into what is still being copied."""
        owned = list(loader())
        monkeypatch.setattr(Canvases, "copied", lambda self: self)
        monkeypatch.setattr("croc.data.loader._PARTS_AHEAD", ahead)
        before = None
        for step, borrowed in enumerate(loader(workers=2)):
            time.sleep(0.03)  # the workers do what they may
            assert same(borrowed, owned[step])
            assert before is None or same(before, owned[step - 1])
            before = borrowed

    def test_is_no_larger_than_it_must_be(self):
        assert slots_needed(parts_ahead=0, parts=1) == 2
        assert slots_needed(parts_ahead=2, parts=1) == 4
        assert slots_needed(parts_ahead=32, parts=16) == 4

    def test_too_little_shared_memory_is_told(self, monkeypatch):
        def fail(self):
            raise RuntimeError("unable to allocate shared memory(shm): No space left on device")

        monkeypatch.setattr(torch.Tensor, "share_memory_", fail)
        with pytest.raises(UserError, match="--shm-size"):
            loader(workers=1)
        next(loader(workers=0))

    def test_parts_of_the_memory_do_not_overlap(self):
        ring = Ring(3, 2, 5, shared=False)
        for number, tensor in enumerate((ring.pixels, ring.sizes, ring.keys), 1):
            tensor.fill_(number)
        for step in range(3, 6):
            canvases = ring.of_step(step)
            assert (canvases.pixels == 1).all()
            assert (canvases.sizes == 2).all()
            assert (canvases.keys == 3).all()


@pytest.mark.cuda
@GPU
class TestOnTheGpu:
    device = torch.device("cuda", 0)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_same_batches_while_the_device_is_busy(self, workers):
        source = MemorySource(COUNT, broken=(4,))
        expected = list(loader(source, 40))
        product = torch.randn(2048, 2048, device=self.device)
        kept: list[Canvases] = []
        for canvases in loader(source, 40, workers=workers, device=self.device):
            assert canvases.pixels.is_cuda
            for _ in range(20):
                product @ product
            # Read after the products: by then a batch that is not kept safe is written over.
            kept.append(Canvases(*(x + 0 for x in _tensors(canvases)), canvases.failed))
        assert len(kept) == 40
        assert all(map(same, kept, expected))

    def test_large_batches_arrive_whole(self):
        source = MemorySource(64)
        options = {"canvas_px": 384, "batch": 64}
        expected = list(loader(source, 6, **options))
        arrived = loader(source, 6, workers=2, device=self.device, **options)
        assert all(map(same, arrived, expected))

    def test_a_failure_comes_after_the_batches_before_it(self):
        class Failing(MemorySource):
            def read(self, index: int):
                if index == 7:
                    raise UserError("the disk is gone")
                return super().read(index)

        options = {"batch": 1, "last_step": COUNT, "device": self.device}
        before = sum(1 for _ in _until_error(loader(Failing(COUNT), **options | {"device": _CPU})))
        assert before > 1
        on_gpu = sum(1 for _ in _until_error(loader(Failing(COUNT), workers=1, **options)))
        assert on_gpu == before

    def test_an_early_end_unlocks_the_memory_and_ends_the_workers(self, monkeypatch):
        rings: list[Ring] = []

        def note(*sizes: int, shared: bool) -> Ring:
            rings.append(Ring(*sizes, shared=shared))
            return rings[0]

        monkeypatch.setattr("croc.data.loader.Ring", note)
        before = set(multiprocessing.active_children())
        with closing(loader(last_step=10**6, workers=1, device=self.device)) as batches:
            next(batches)
            assert rings[0].memory.is_pinned()
        assert not rings[0].memory.is_pinned()
        assert set(multiprocessing.active_children()) <= before

    def test_nothing_waits_for_the_device(self):
        """Two batches are handed out while a long computation is still under way."""
        product = torch.randn(8192, 8192, device=self.device)
        batches = loader(workers=1, device=self.device)
        with closing(batches):
            next(batches)
            torch.cuda.synchronize()
            for _ in range(100):
                product @ product
            done = torch.cuda.Event()
            done.record()
            next(batches)
            next(batches)
            assert not done.query()


_CPU = torch.device("cpu")


def _tensors(canvases: Canvases) -> tuple[torch.Tensor, ...]:
    return canvases.pixels, canvases.sizes, canvases.keys


def _until_error(batches):
    with pytest.raises(UserError, match="the disk is gone"):
        yield from batches
