"""`croc bench`: the training step of a recipe, timed stage by stage."""

import contextlib
import dataclasses
import gc
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from croc.config import ClusterConfig, CrocConfig
from croc.data.loader import batch_indices, make_loader, worker_count
from croc.data.sources import ImageSource, open_source
from croc.errors import UserError
from croc.io import gpu_versions, hardware, replacing
from croc.kernels import serve, use_kernels
from croc.lab.bench.options import BenchConfig
from croc.lab.bench.report import draw_results, print_results
from croc.method.backbone import Backbone
from croc.method.build import build_method
from croc.method.clustering.paper import check_k_start
from croc.method.distributed import fetch
from croc.method.optim import Guard, make_optimizer
from croc.method.randomness import sample_key
from croc.method.stages import Stopwatch
from croc.method.types import Canvases
from croc.method.views import VIEWS
from croc.train.cuda_graph import WARM_UPS, Gradients, make_gradients, records
from croc.train.distributed import compiles, in_bfloat16, make_fabric
from croc.train.loop import settings_at, train_step

FILE, PICTURE = "bench.json", "bench.png"
BATCHES, STAGE_STEPS, HOST_STEPS = 3, 10, 5
LOADER_WARM_UPS = 8
"""Steps after which batches made ahead are used up."""
STEPS_PER_EPOCH = 1000
MODELS = tuple(f"vit_{size}_patch16_224" for size in ("tiny", "small", "base"))
OCTAVES = ((6, 60.0), (24, 30.0), (96, 12.0))
"""Cells along a side of the noise in the images, and their contrast."""


def run_bench(config: CrocConfig, bench: BenchConfig, recipe: str) -> Path:
    """Measure, write and print; returns the folder."""
    run = config.run
    several = run.nodes > 1 or run.devices not in ("auto", 1) or run.strategy != "ddp"
    if several or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError(
            "croc bench measures one device: leave out --run.devices, --run.nodes, --run.strategy "
            "and torchrun, and pass one device's share as --optim.batch"
        )
    config = replace(config, run=replace(run, devices=1))
    settings = plan(config, bench)
    source = open_source(config.data, run.seed) if config.data.root else None
    if source:
        for setting in settings:  # is there enough data for a batch?
            batch_indices(0, len(source), setting.sizes["batch"], run.seed)
    folder = Path(bench.to or f"bench/{recipe}-{datetime.now(UTC):%Y-%m-%d-%H%M%S}")
    if (folder / FILE).exists() or (folder / PICTURE).exists():
        raise UserError(f"{folder} contains a measurement: choose another --bench.to")
    fabric = make_fabric(config.run)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)  # now, so that no result is lost
    try:
        dtype = torch.bfloat16 if in_bfloat16(config.run, fabric.device.type) else torch.float32
        results: dict[str, Any] = {
            "format": 1,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "recipe": recipe,
            "hardware": hardware(fabric.device),
            "versions": gpu_versions(),
            "bench": dataclasses.asdict(bench),
            "ceiling": measure_ceiling(fabric.device, dtype),
            "settings": [],
            "not_yet_measured": [setting.label for setting in settings],
        }
        for number, setting in enumerate(settings, start=1):
            print(f"measuring {number} of {len(settings)}: {setting.label}", file=sys.stderr)
            figures = None
            try:
                figures = measure(fabric, setting, bench, results["ceiling"], source)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                print(f"out of memory: {setting.label}", file=sys.stderr)
            entry = {"out_of_memory": figures is None, "figures": figures}
            results["settings"].append(dataclasses.asdict(setting) | entry)
            results["not_yet_measured"].pop(0)
            if any(entry["figures"] for entry in results["settings"]):
                with replacing(folder / FILE) as partial:  # now: a later one may kill the process
                    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
                    partial.write_text(text + "\n")
            torch.compiler.reset()  # free what was compiled for these shapes, and their memory
            gc.collect()
            if fabric.device.type == "cuda":
                torch.cuda.empty_cache()
        if not any(entry["figures"] for entry in results["settings"]):
            raise UserError("out of memory: lower --optim.batch or pass --run.micro-batch")
        draw_results(results, folder / PICTURE)
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()
    print_results(results)
    return folder


@dataclass(frozen=True)
class Setting:
    """One configuration to be measured; `value` is that of the quantity that is varied."""

    label: str
    value: int | str
    sizes: dict[str, Any]
    config: CrocConfig


def plan(config: CrocConfig, bench: BenchConfig) -> list[Setting]:
    """All settings, each checked now, so that none fails after hours."""
    base = sizes_of(config)
    if bench.vary == "none":
        return [Setting(f"batch {base['batch']}", base["batch"], base, config)]
    defaults: dict[str, tuple[int | str, ...]] = {
        "batch": tuple(max(1, round(base["batch"] * factor)) for factor in (0.25, 0.5, 1, 2)),
        "tokens": tuple(max(1, round(base["side"] * factor)) for factor in (0.5, 0.7, 1, 1.4, 2)),
        "k-start": tuple(k for k in (4, 8, 12, 16, 24, 32) if k <= base["tokens"]),
        "heads": (1, base["attention_heads"]),
        "model": MODELS,
    }
    settings: list[Setting] = []
    for choice in dict.fromkeys(bench.values or map(str, defaults[bench.vary])):
        changed = _vary(config, base, bench.vary, choice)
        sizes = sizes_of(changed)
        value = sizes[bench.vary.replace("-", "_")]
        label = f"{VIEWS} × {sizes['side']}²" if bench.vary == "tokens" else str(value)
        settings.append(Setting(label, value, sizes, changed))
    return settings if bench.vary == "model" else sorted(settings, key=lambda each: each.value)


def sizes_of(config: CrocConfig) -> dict[str, Any]:
    """Refuses views, patches and K_start that do not go together, as training would."""
    backbone = Backbone(config.model, config.views.size_px)
    side = config.views.size_px // backbone.patch_px
    check_k_start(config.cluster.k_start, VIEWS * side**2)
    last: Any = backbone.vit.blocks[-1]
    return {
        "batch": config.optim.batch,
        "tokens": VIEWS * side**2,
        "side": side,
        "patch_px": backbone.patch_px,
        "k_start": config.cluster.k_start,
        "heads": 1 if config.cluster.tokens == "last" else last.attn.num_heads,
        "attention_heads": last.attn.num_heads,
        "model": config.model.name,
    }


def _vary(config: CrocConfig, base: dict[str, Any], quantity: str, value: str) -> CrocConfig:
    if quantity == "model":
        return replace(config, model=replace(config.model, name=value))
    if not value.isdecimal() or int(value) < 1:
        raise UserError(f"--bench.values must be positive integers here: {value}")
    number = int(value)
    if quantity == "batch":
        return replace(config, optim=replace(config.optim, batch=number))
    if quantity == "tokens":
        return replace(config, views=replace(config.views, size_px=base["patch_px"] * number))
    if quantity == "k-start":
        return replace(config, cluster=replace(config.cluster, k_start=number))
    if number not in (1, base["attention_heads"]):
        raise UserError(
            f"--bench.values for heads are 1 (the last tokens) and {base['attention_heads']} "
            f"({base['model']}'s own), not {value}; for others use benchmarks/clustering.py"
        )
    tokens = config.cluster.tokens
    tokens = "last" if number == 1 else "values" if tokens == "last" else tokens
    return replace(config, cluster=replace(config.cluster, tokens=tokens))


class Trainer:
    """A method that is ready to train, with the real training step."""

    def __init__(self, fabric: Fabric, config: CrocConfig) -> None:
        # The views of most of a run, not those of its early epochs.
        views = replace(config.views, early_px=None, early_epochs=0)
        self.fabric, self.config = fabric, replace(config, views=views)
        torch.manual_seed(config.run.seed)
        use_kernels(config.run.kernels)
        compiled = compiles(config.run, fabric.device)
        self.method: Any = build_method(self.config, fabric.device, compiled)
        optimizer = make_optimizer(self.method.student, fabric.device, config.optim)
        student, optimizer = fabric.setup(self.method.student, optimizer)
        student.train()
        self._guard = Guard(optimizer, fabric.device)
        self.recorded = records(config.run, fabric, compiled)
        self._eager = Gradients(fabric, self.method, student)
        self._usual = make_gradients(fabric, self.method, student, self.recorded)
        # Past the epochs with frozen prototypes, as most steps of a run.
        frozen = min(config.loss.frozen_prototype_epochs, config.optim.epochs - 1)
        self._number = frozen * STEPS_PER_EPOCH

    def step(self, canvases: Canvases, *, launch: bool = False) -> dict[str, Tensor]:
        """As in training (a CUDA graph where that has one), or launched kernel by kernel."""
        settings = settings_at(self._number, self.config.optim, STEPS_PER_EPOCH)
        self._number += 1
        gradients = self._eager if launch else self._usual
        return train_step(gradients, self._guard, canvases, settings, self.config.optim)


def is_out_of_memory(error: BaseException) -> bool:
    """Also where a compiler, or the CPU's allocator, only says so in words."""
    phrases = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        phrase in str(error).lower() for phrase in phrases
    )


def measure(
    fabric: Fabric,
    setting: Setting,
    bench: BenchConfig,
    ceiling: dict[str, Any],
    source: ImageSource | None,
) -> dict[str, Any]:
    """The figures of one setting, as docs/speed.md describes them."""
    device, config, batch = fabric.device, setting.config, setting.sizes["batch"]
    flop = {stage: count * batch for stage, count in count_flop(config).items()}
    start = time.perf_counter()
    trainer = Trainer(fabric, config)
    batches = synthetic_batches(config, BATCHES, device)
    trainer.step(next(batches), launch=True)
    _wait(device)
    first_step_s = time.perf_counter() - start
    for _ in range(bench.warmup - 1):
        trainer.step(next(batches), launch=True)
    _wait(device)
    ready_s = time.perf_counter() - start

    # Stages before the CUDA graph, which keeps memory for good.
    stopwatch, steps = Stopwatch(device), min(STAGE_STEPS, bench.steps)
    with stopwatch.watch():
        (whole_ms,) = _timed_ms(
            device, lambda: [trainer.step(next(batches), launch=True) for _ in range(steps)], 1
        )
    split_ms = {name: 1e3 * taken / steps for name, taken in stopwatch.seconds().items()}
    watched_ms = whole_ms / steps
    split_ms["rest"] = max(0.0, watched_ms - sum(split_ms.values()))

    start = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(WARM_UPS + 2 if trainer.recorded else 0):
        trainer.step(next(batches))
    _wait(device)
    ready_s += time.perf_counter() - start
    with host_waits(device) as waits:
        step_ms = _timed_ms(device, lambda: trainer.step(next(batches)), bench.steps)
    p10, median, p90 = torch.tensor(step_ms).quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    images_per_s = 1e3 * batch / statistics.fmean(step_ms)
    tflops = sum(flop.values()) * images_per_s / batch / 1e12

    peak_gib = reserved_gib = host_ms = None
    if device.type == "cuda":
        peak_gib = torch.cuda.max_memory_allocated(device) / 2**30
        reserved_gib = torch.cuda.max_memory_reserved(device) / 2**30
        launches = []
        for _ in range(HOST_STEPS):  # from an empty queue: in a full one the host would wait
            _wait(device)
            start = time.perf_counter()
            trainer.step(next(batches))
            launches.append(1e3 * (time.perf_counter() - start))
        host_ms = statistics.median(launches)
    loss = fetch(trainer.step(next(batches)))["loss"]
    heads, width = setting.sizes["heads"], trainer.method.student.backbone.width
    shape = (VIEWS, 1, heads, setting.sizes["side"] ** 2, width // heads)
    tokens = torch.empty(shape, dtype=getattr(torch, ceiling["dtype"]), device=device)
    return {
        "step_ms": {"median": median, "p10": p10, "p90": p90},
        "images_per_s": images_per_s,
        "host_ms": host_ms,
        "host_waits": len(waits),
        "host_wait_places": list(dict.fromkeys(waits)),
        "first_step_s": first_step_s,
        "ready_s": ready_s,
        "peak_gib": peak_gib,
        "reserved_gib": reserved_gib,
        "split_ms": split_ms,
        "watched_ms": watched_ms,
        "clustering_by": clustering_by(tokens, config.cluster),
        "flop": flop,
        "tflops": tflops,
        "of_ceiling": tflops / ceiling["tflops"],
        "recorded": trainer.recorded,
        "loss": loss if math.isfinite(loss) else None,
        "loaded": _measure_loaded(trainer, bench.steps, source, images_per_s) if source else None,
    }


def _measure_loaded(
    trainer: Trainer, steps: int, source: ImageSource, ready_rate: float
) -> dict[str, Any]:
    """The same step on photographs from the loader."""
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
        _wait(device)
        start = time.perf_counter()
        for canvases in loader:
            trainer.step(canvases)
        _wait(device)
        rate = steps * config.optim.batch / (time.perf_counter() - start)
    record = {"images": len(source), "workers": workers}
    return record | {"images_per_s": rate, "of_ready": rate / ready_rate}


def count_flop(config: CrocConfig) -> dict[str, int]:
    """Floating-point operations of one image's step in matrix products, by stage.

    Counted by torch on a step of two images without kernels on the CPU, so that what a kernel
    computes twice to save memory does not count; nor do the views and the optimizer.
    """
    run = replace(config.run, accelerator="cpu", precision="float32", compile=False, record=False)
    config = replace(config, run=run, optim=replace(config.optim, batch=2))
    cpu, flop = torch.device("cpu"), Counter[str]()
    trainer = Trainer(make_fabric(run), config)

    class FlopWatch(Stopwatch):
        """Counts the operations of each stage in place of its time."""

        @contextlib.contextmanager
        def time(self, name: str) -> Iterator[None]:
            before = counter.get_total_flops()
            yield
            flop[name] += counter.get_total_flops() - before

    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter, FlopWatch(cpu).watch():
        trainer.step(next(synthetic_batches(config, 1, cpu)))
    skipped = ("views", "update", "EMA")
    return {name: n // 2 for name, n in flop.items() if n and name not in skipped}


def measure_ceiling(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """The speed of one large matrix product. Of random numbers: zeros take less power, and the
    clocks would be higher."""
    side, warm_ups, runs = (8192, 100, 30) if device.type == "cuda" else (768, 2, 5)
    a, b = torch.randn(2, side, side, device=device).to(dtype)
    out = torch.empty_like(a)
    taken_ms = _timed_ms(device, lambda: torch.mm(a, b, out=out), warm_ups + runs)[warm_ups:]
    tflops = 2 * side**3 / statistics.median(taken_ms) / 1e9
    return {"tflops": tflops, "dtype": str(dtype).removeprefix("torch."), "side": side}


def clustering_by(tokens: Float[Tensor, "M B H N d"], config: ClusterConfig) -> str:
    """The kernel, or the definition where the kernel cannot take the tokens."""
    if not serve(tokens):
        return "definition"
    from croc.kernels.clustering import fits

    return "kernel" if fits(tokens, config) else "definition"


def synthetic_batches(config: CrocConfig, count: int, device: torch.device) -> Iterator[Canvases]:
    """A few batches in turn, already on the device, of noise with a photograph's contrasts."""
    generator = torch.Generator(device).manual_seed(config.run.seed)
    batch, side = config.optim.batch, config.data.canvas_px
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
    """Of each of `count` calls in a row; on a GPU between events in its queue, so that the host
    does not wait in between."""
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


@contextlib.contextmanager
def host_waits(device: torch.device) -> Iterator[list[str]]:
    """On exit, the places in the code at which the host waited for the device."""
    places: list[str] = []
    if device.type != "cuda":
        yield places
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for each in caught:
        message = str(each.message)
        if "called a synchronizing CUDA operation" in message:
            places.append(f"{Path(each.filename).name}:{each.lineno}")
        elif "Synchronization debug mode is a prototype" not in message:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
