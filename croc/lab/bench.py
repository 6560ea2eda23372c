"""`croc bench`: the training step of a recipe, timed stage by stage."""

import contextlib
import dataclasses
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import cycle, pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from croc.config import CrocConfig, Section, at_least, parse, require
from croc.data.loader import batch_indices, make_loader, worker_count
from croc.data.sources import ImageSource, open_source
from croc.errors import UserError
from croc.fabric import Fabric
from croc.io import gpu_versions, hardware, replacing
from croc.method.profiling import Stopwatch
from croc.method.randomness import sample_key
from croc.method.types import Canvases
from croc.recipes import open_recipe
from croc.train.compile import WARM_UPS
from croc.train.distributed import in_bfloat16, make_fabric
from croc.train.loop import OUT_OF_MEMORY, Trainer, schedule_at

FILE = "bench.json"
BATCHES, STAGE_STEPS, HOST_STEPS = 3, 10, 5
LOADER_WARM_UPS = 8
"""Steps after which prefetched batches are used up."""
STEPS_PER_EPOCH = 1000
OCTAVES = ((6, 60.0), (24, 30.0), (96, 12.0))
"""Cells along a side of the noise in the images, and their contrast."""


@dataclass(frozen=True)
class BenchConfig(Section):
    """What to measure, and where to write the results."""

    section = "bench"
    steps: Annotated[int, at_least(1)] = 30
    """Number of timed steps."""
    warmup: Annotated[int, at_least(1)] = 5
    """Number of untimed warm-up steps, which include compilation."""
    to: str | None = None
    """Folder for bench.json; by default bench/RECIPE-DATE-TIME."""


@dataclass(frozen=True)
class BenchOptions(CrocConfig):
    """Time the training step of a recipe, stage by stage."""

    bench: BenchConfig = field(default_factory=BenchConfig)


def run_command(arguments: list[str]) -> None:
    """Measure a recipe with the options of the command line; write and print the results."""
    recipe, *flags = arguments
    default, name = open_recipe(recipe)
    if not isinstance(default, CrocConfig):
        raise UserError(f"croc bench only supports recipes of CrOC, not {recipe}")
    options = parse(BenchOptions, flags, f"croc bench {recipe}", BenchOptions(**vars(default)))
    bench, run = options.bench, options.run
    require(
        run.nodes == 1 and run.devices in ("auto", 1) and run.strategy == "ddp",
        "croc bench runs on one device: remove --run.devices, --run.nodes and --run.strategy, and "
        "set --optim.batch to the batch size of one device",
    )
    require(options.model.init is None, "croc bench uses untrained weights: omit --init")
    config = CrocConfig(**{x.name: getattr(options, x.name) for x in fields(CrocConfig)})
    config = replace(config, run=replace(run, devices=1))
    source = open_source(config.data, run.seed) if config.data.root else None
    if source:  # is there enough data for a batch?
        batch_indices(0, len(source), config.optim.batch, run.seed)
    folder = Path(bench.to or f"bench/{name}-{datetime.now(UTC):%Y-%m-%d-%H%M%S}")
    if (folder / FILE).exists():
        raise UserError(f"{folder} contains a measurement: choose another --bench.to")
    folder.mkdir(parents=True, exist_ok=True)  # before measuring: it may fail

    fabric = make_fabric(config.run)
    dtype = torch.bfloat16 if in_bfloat16(run, fabric.device.type) else torch.float32
    try:
        ceiling = measure_ceiling(fabric.device, dtype)
        figures = measure(fabric, config, bench, ceiling, source)
    except torch.OutOfMemoryError as error:
        raise UserError(OUT_OF_MEMORY) from error
    results: dict[str, Any] = {
        "format": 2,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "recipe": name,
        "hardware": hardware(fabric.device),
        "versions": gpu_versions(),
        "bench": dataclasses.asdict(bench),
        "config": dataclasses.asdict(config),
        "ceiling": ceiling,
        "figures": figures,
    }
    with replacing(folder / FILE) as partial:
        partial.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print_figures(results)
    print(f"the results are in {folder / FILE}")


class BenchTrainer(Trainer):
    """The trainer of a run, with its own schedule."""

    def __init__(self, fabric: Fabric, config: CrocConfig) -> None:
        # Views as in most of a run, not those of its early epochs.
        views = replace(config.views, early_px=None, early_epochs=0)
        super().__init__(fabric, replace(config, views=views))
        # Start after the epochs with frozen prototypes, like most steps of a run.
        frozen = min(config.loss.frozen_prototype_epochs, config.optim.epochs - 1)
        self._number = frozen * STEPS_PER_EPOCH

    def next_step(self, canvases: Canvases, *, use_graph: bool = True) -> dict[str, Tensor]:
        """As in training, possibly with a CUDA graph; or eagerly."""
        schedule = schedule_at(self._number, self.config.optim, STEPS_PER_EPOCH)
        self._number += 1
        return self.step(canvases, schedule, use_graph=use_graph)


def measure(
    fabric: Fabric,
    config: CrocConfig,
    bench: BenchConfig,
    ceiling: dict[str, Any],
    source: ImageSource | None,
) -> dict[str, Any]:
    """The figures that docs/speed.md describes."""
    device, batch = fabric.device, config.optim.batch
    flop = {stage: count * batch for stage, count in count_flop(config).items()}
    start = time.perf_counter()
    trainer = BenchTrainer(fabric, config)
    batches = synthetic_batches(config, BATCHES, device)

    def eager_step() -> None:
        trainer.next_step(next(batches), use_graph=False)

    eager_step()
    _wait(device)
    first_step_s = time.perf_counter() - start
    for _ in range(bench.warmup - 1):
        eager_step()

    # The stages are timed before the CUDA graph is captured, since it never frees its memory.
    stopwatch, steps = Stopwatch(device), min(STAGE_STEPS, bench.steps)
    with stopwatch.running():
        watched_ms = statistics.fmean(_timed_ms(device, eager_step, steps))
    split_ms = {name: 1e3 * seconds / steps for name, seconds in stopwatch.seconds().items()}
    split_ms["rest"] = max(0.0, watched_ms - sum(split_ms.values()))

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(WARM_UPS + 2 if trainer.uses_graph else 0):
        trainer.next_step(next(batches))
    step_ms = _timed_ms(device, lambda: trainer.next_step(next(batches)), bench.steps)
    p10, median, p90 = torch.tensor(step_ms).quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    images_per_s = 1e3 * batch / statistics.fmean(step_ms)
    tflops = sum(flop.values()) * images_per_s / batch / 1e12

    peak_gib = reserved_gib = host_ms = None
    if device.type == "cuda":
        peak_gib = torch.cuda.max_memory_allocated(device) / 2**30
        reserved_gib = torch.cuda.max_memory_reserved(device) / 2**30
        launches = []
        for _ in range(HOST_STEPS):  # from an empty queue: with a full one, the host would wait
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            trainer.next_step(next(batches))
            launches.append(1e3 * (time.perf_counter() - start))
        host_ms = statistics.median(launches)
    return {
        "step_ms": {"median": median, "p10": p10, "p90": p90},
        "images_per_s": images_per_s,
        "host_ms": host_ms,
        "first_step_s": first_step_s,
        "peak_gib": peak_gib,
        "reserved_gib": reserved_gib,
        "split_ms": split_ms,
        "watched_ms": watched_ms,
        "flop": flop,
        "tflops": tflops,
        "of_ceiling": tflops / ceiling["tflops"],
        "recorded": trainer.uses_graph,
        "loaded": _measure_loaded(trainer, bench.steps, source, images_per_s) if source else None,
    }


def _measure_loaded(
    trainer: BenchTrainer, steps: int, source: ImageSource, ready_rate: float
) -> dict[str, Any]:
    """The same step on images from the loader."""
    data, batch, device = trainer.config.data, trainer.config.optim.batch, trainer.fabric.device
    loader = make_loader(
        source,
        canvas_px=data.max_side_px,
        batch=batch,
        seed=trainer.config.run.seed,
        first_step=0,
        last_step=LOADER_WARM_UPS + steps,
        workers=worker_count(data),
        device=device,
    )
    with closing(loader):
        for _ in range(LOADER_WARM_UPS):
            trainer.next_step(next(loader))
        _wait(device)
        start = time.perf_counter()
        for canvases in loader:
            trainer.next_step(canvases)
        _wait(device)
        rate = steps * batch / (time.perf_counter() - start)
    record = {"images": len(source), "workers": worker_count(data)}
    return record | {"images_per_s": rate, "of_ready": rate / ready_rate}


def count_flop(config: CrocConfig) -> dict[str, int]:
    """Floating-point operations of one image's step in matrix products, by stage.

    Counted by torch on a step of two images without kernels on the CPU, so that what a kernel
    computes twice to save memory does not count; nor do the views and the optimizer.
    """
    run = replace(
        config.run, accelerator="cpu", precision="float32", compile=False, cuda_graph=False
    )
    config = replace(config, run=run, optim=replace(config.optim, batch=2))
    cpu, flop = torch.device("cpu"), Counter[str]()
    trainer = BenchTrainer(make_fabric(run), config)

    class FlopWatch(Stopwatch):
        """Counts the operations of each stage in place of its time."""

        @contextlib.contextmanager
        def time(self, name: str) -> Iterator[None]:
            before = counter.get_total_flops()
            yield
            flop[name] += counter.get_total_flops() - before

    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter, FlopWatch(cpu).running():
        trainer.next_step(next(synthetic_batches(config, 1, cpu)))
    skipped = ("views", "update", "EMA")
    return {name: n // 2 for name, n in flop.items() if n and name not in skipped}


def measure_ceiling(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """The speed of one large matrix product, of random numbers: zeros take less power, which would
    raise the clock rate."""
    side, warm_ups, runs = (8192, 100, 30) if device.type == "cuda" else (768, 2, 5)
    a, b = torch.randn(2, side, side, device=device).to(dtype)
    out = torch.empty_like(a)
    times_ms = _timed_ms(device, lambda: torch.mm(a, b, out=out), warm_ups + runs)[warm_ups:]
    tflops = 2 * side**3 / statistics.median(times_ms) / 1e9
    return {"tflops": tflops, "dtype": str(dtype).removeprefix("torch."), "side": side}


def synthetic_batches(config: CrocConfig, count: int, device: torch.device) -> Iterator[Canvases]:
    """A few batches in turn, preloaded on the device, of noise with a photograph's contrasts."""
    generator = torch.Generator(device).manual_seed(config.run.seed)
    batch, side = config.optim.batch, config.data.max_side_px
    batches: list[Canvases] = []
    for number in range(count):
        pixels = torch.full((batch, 3, side, side), 128.0, device=device)
        for cells, contrast in OCTAVES:
            shape = (batch, 3, min(cells, side), min(cells, side))
            noise = torch.randn(shape, generator=generator, device=device)
            pixels += contrast * F.interpolate(noise, size=(side, side), mode="bilinear")
        keys = [sample_key(config.run.seed, 0, number * batch + image) for image in range(batch)]
        sizes = torch.tensor([[3 * side // 4, side]], device=device).repeat(batch, 1)  # 4 : 3
        pixels = pixels.clamp(0, 255).to(torch.uint8)
        batches.append(Canvases(pixels, sizes, torch.tensor(keys, device=device)))
    return cycle(batches)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed_ms(device: torch.device, call: Callable[[], object], count: int) -> list[float]:
    """The time of each of `count` consecutive calls; on a GPU between events in its queue, so that
    the host does not wait in between."""
    if device.type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            call()
            event.record()
        torch.cuda.synchronize(device)
        return [start.elapsed_time(end) for start, end in pairwise(events)]
    moments = [time.perf_counter()]
    for _ in range(count):
        call()
        moments.append(time.perf_counter())
    return [1e3 * (end - start) for start, end in pairwise(moments)]


def print_figures(results: dict[str, Any]) -> None:
    """The stages, and what they add up to."""
    figures, device = results["figures"], results["hardware"]
    whole, step = figures["watched_ms"], figures["step_ms"]
    where = device["cpu"] if device["gpu"] == "no GPU" else device["gpu"]
    print(f"{results['recipe']} on {where}, torch {results['versions']['torch']}")
    rows = {
        f"{name}, ms": f"{ms:.2f} ({ms / whole:.1%})" for name, ms in figures["split_ms"].items()
    }
    rows |= {
        "step, ms": f"{step['median']:.2f}",
        "10th–90th percentile": f"{step['p10']:.1f}–{step['p90']:.1f}",
        "images/s": f"{figures['images_per_s']:,.5g}",
        "TFLOP/s": f"{figures['tflops']:.3g}",
        "of a large matrix product": f"{figures['of_ceiling']:.1%}",
        "time to first step, s": f"{figures['first_step_s']:.1f}",
    }
    if figures["peak_gib"] is not None:
        rows["host time per step, ms"] = f"{figures['host_ms']:.2f}"
        rows["peak GPU memory, GiB"] = f"{figures['peak_gib']:.2f}"
    if loaded := figures["loaded"]:
        rows["images/s with loading"] = f"{loaded['images_per_s']:,.5g}"
        rows["of preloaded batches"] = f"{loaded['of_ready']:.1%}"
    for name, value in rows.items():
        print(f"{name:27}{value:>20}")
