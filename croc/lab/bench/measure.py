"""One setting measured: the real training step, first on batches that lie on the device."""

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import torch
from lightning.fabric import Fabric

from croc.data.loader import make_loader, worker_count
from croc.data.sources import ImageSource
from croc.lab.bench.arithmetic import Ceiling, step_flop
from croc.lab.bench.canvases import made_up_canvases
from croc.lab.bench.clock import Marks, host_waits, wait
from croc.lab.bench.loss_alone import LONE_STEPS, loss_alone_ms
from croc.lab.bench.options import BenchConfig
from croc.lab.bench.served import clustering_by
from croc.lab.bench.settings import Setting
from croc.lab.bench.trainer import Trainer
from croc.method.distributed import fetch
from croc.method.stages import Stopwatch
from croc.method.types import Canvases
from croc.method.views import VIEWS
from croc.train.cuda_graph import WARM_UPS

BATCHES = 3
WATCHED_STEPS = 10
LOADER_WARM_UPS = 8
"""Steps after which what a loader made ahead is used up."""
REST = "rest"


@dataclass(frozen=True)
class Spread:
    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        low, middle, high = torch.tensor(values).quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
        return cls(median=middle, p10=low, p90=high)


@dataclass(frozen=True)
class Loaded:
    """The same step on photographs as the loader brings them."""

    images: int
    workers: int
    images_per_s: float
    of_ready: float
    """Its speed over that on ready tensors."""


@dataclass(frozen=True)
class Figures:
    """What one setting was found to take; milliseconds are of a step."""

    step_ms: Spread
    images_per_s: float
    """Over all timed steps."""
    host_ms: float | None
    """To launch a step while the device is idle; None on the CPU."""
    host_waits: int
    """In all timed steps; there should be none."""
    host_wait_places: tuple[str, ...]
    first_step_s: float
    """From nothing to the end of the first step: building and compiling."""
    ready_s: float
    """The same to the end of the warm-up."""
    peak_gib: float | None
    """Of tensors on the GPU."""
    reserved_gib: float | None
    """What the process took of the GPU's memory for them."""
    split_ms: dict[str, float]
    """By stage, in steps of their own whose kernels were launched one by one; what lies between
    the stages is the rest."""
    watched_ms: float
    """Of those steps; the sum of the split."""
    clustering_by: str
    """The kernel, or the definition where the kernel cannot take the tokens."""
    loss_alone_ms: float | None
    """Both cross-entropies, forward and backward, which are parts of two stages."""
    flop: dict[str, int]
    """Floating-point operations of a step, by stage."""
    tflops: float
    of_ceiling: float
    """Its share of what the device reached in one large product of matrices."""
    recorded: bool
    """Whether the kernels of the timed steps were launched as one."""
    loss: float | None
    """Of the last step; None if it is not finite, and then no figure here is to be trusted."""
    loaded: Loaded | None


def measure(
    fabric: Fabric,
    setting: Setting,
    bench: BenchConfig,
    ceiling: Ceiling,
    source: ImageSource | None,
) -> Figures:
    device, config = fabric.device, setting.config
    begun = time.perf_counter()
    trainer = Trainer(fabric, setting)
    ready = made_up_canvases(config, BATCHES, device)
    trainer.launch(next(ready))
    wait(device)
    first_step_s = time.perf_counter() - begun
    for _ in range(bench.warmup - 1):
        trainer.launch(next(ready))
    wait(device)
    ready_s = time.perf_counter() - begun
    # Before steps are recorded, which sets memory aside for good.
    split_ms, watched_ms = _split(trainer, ready, min(WATCHED_STEPS, bench.steps))
    alone_ms = loss_alone_ms(trainer, ready)

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    ready_s += _record(trainer, ready)
    step_ms, waits = _time_steps(trainer, ready, bench.steps)
    peaks = _peaks_gib(device)
    host_ms = _host_ms(trainer, ready) if device.type == "cuda" else None
    loss = fetch(trainer.step(next(ready)))["loss"]
    rate = 1e3 * setting.sizes.batch / statistics.fmean(step_ms)
    flop = step_flop(trainer.method.student, setting.sizes.batch, config.views.size_px)
    tflops = sum(flop.values()) * rate / setting.sizes.batch / 1e12
    return Figures(
        step_ms=Spread.of(step_ms),
        images_per_s=rate,
        host_ms=host_ms,
        host_waits=len(waits),
        host_wait_places=tuple(dict.fromkeys(waits)),
        first_step_s=first_step_s,
        ready_s=ready_s,
        peak_gib=peaks[0],
        reserved_gib=peaks[1],
        split_ms=split_ms,
        watched_ms=watched_ms,
        clustering_by=_clustering_by(trainer),
        flop=flop,
        tflops=tflops,
        of_ceiling=tflops / ceiling.tflops,
        loss=loss if math.isfinite(loss) else None,
        loaded=_loaded(trainer, bench.steps, source, rate) if source else None,
        recorded=trainer.recorded,
        loss_alone_ms=alone_ms,
    )


def _record(trainer: Trainer, batches: Iterator[Canvases]) -> float:
    """Steps until the usual ones are recorded, if they are to be; the seconds that it took."""
    begun = time.perf_counter()
    for _ in range(WARM_UPS + 2 if trainer.recorded else 0):
        trainer.step(next(batches))
    wait(trainer.fabric.device)
    return time.perf_counter() - begun


def _time_steps(
    trainer: Trainer, batches: Iterator[Canvases], steps: int
) -> tuple[list[float], list[str]]:
    """Milliseconds of each, and the places at which the host waited."""
    marks = Marks(trainer.fabric.device)
    with host_waits(trainer.fabric.device) as waits:
        for _ in range(steps):
            marks.set()
            trainer.step(next(batches))
        marks.set()
    return marks.apart_ms(), waits


def _split(
    trainer: Trainer, batches: Iterator[Canvases], steps: int
) -> tuple[dict[str, float], float]:
    """The mean milliseconds of each stage, and of the whole."""
    stopwatch, marks = Stopwatch(trainer.fabric.device), Marks(trainer.fabric.device)
    with stopwatch.watch():
        marks.set()
        for _ in range(steps):
            trainer.launch(next(batches))
        marks.set()
    whole = marks.apart_ms()[0] / steps
    split = {name: 1e3 * seconds / steps for name, seconds in stopwatch.seconds().items()}
    return split | {REST: max(0.0, whole - sum(split.values()))}, whole


def _host_ms(trainer: Trainer, batches: Iterator[Canvases]) -> float:
    """With an empty queue before it: in a full one the host would wait its turn."""
    taken = []
    for _ in range(LONE_STEPS):
        wait(trainer.fabric.device)
        begun = time.perf_counter()
        trainer.step(next(batches))
        taken.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(taken)


def _loaded(trainer: Trainer, steps: int, source: ImageSource, ready_rate: float) -> Loaded:
    config, device = trainer.config, trainer.fabric.device
    workers = worker_count(config.data)
    loader = make_loader(
        source,
        canvas_px=config.data.canvas_px,
        batch=config.optim.batch,
        seed=config.run.seed,
        first_step=0,
        last_step=LOADER_WARM_UPS + steps,
        workers=workers,
        device=device,
    )
    with closing(loader):
        for _ in range(LOADER_WARM_UPS):
            trainer.step(next(loader))
        wait(device)
        begun = time.perf_counter()
        for canvases in loader:
            trainer.step(canvases)
        wait(device)
        rate = steps * config.optim.batch / (time.perf_counter() - begun)
    return Loaded(len(source), workers, rate, rate / ready_rate)


def _peaks_gib(device: torch.device) -> tuple[float | None, float | None]:
    if device.type != "cuda":
        return None, None
    most = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return most[0] / 2**30, most[1] / 2**30


def _clustering_by(trainer: Trainer) -> str:
    sizes, width = trainer.sizes, trainer.method.student.backbone.width
    shape = (VIEWS, 1, sizes.heads, sizes.side**2, width // sizes.heads)
    tokens = torch.empty(shape, dtype=trainer.dtype, device=trainer.fabric.device)
    return clustering_by(tokens, trainer.config.cluster)
