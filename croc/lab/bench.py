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
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import accumulate, cycle, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning_fabric import Fabric
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from croc.config import ClusterConfig, CrocConfig, PretrainConfig, parse, require, require_least
from croc.data.loader import batch_indices, make_loader, worker_count
from croc.data.sources import ImageSource, open_source
from croc.errors import UserError
from croc.io import gpu_versions, hardware, replacing
from croc.kernels import serve
from croc.method.backbone import Backbone
from croc.method.clustering.paper import check_k_start
from croc.method.distributed import fetch
from croc.method.randomness import sample_key
from croc.method.stages import Stopwatch
from croc.method.types import Canvases
from croc.method.views import VIEWS
from croc.plotting import COLORS, save_chart
from croc.tables import table_console, terminal_table
from croc.train.compile import WARM_UPS
from croc.train.distributed import in_bfloat16, make_fabric
from croc.train.loop import Trainer, settings_at

FILE, PICTURE = "bench.json", "bench.png"
BATCHES, STAGE_STEPS, HOST_STEPS = 3, 10, 5
LOADER_WARM_UPS = 8
"""Steps after which batches made ahead are used up."""
STEPS_PER_EPOCH = 1000
OCTAVES = ((6, 60.0), (24, 30.0), (96, 12.0))
"""Cells along a side of the noise in the images, and their contrast."""
STAGE_COLORS = (*COLORS, "#F0E442", "#999999", "#DDDDDD")
VARIED = {
    "batch": ("optim", "batch", "images in a batch"),
    "tokens": ("views", "size_px", "tokens of an image's two views"),
    "k-start": ("cluster", "k_start", "K_start"),
    "heads": ("cluster", "tokens", "heads that are clustered"),
    "model": ("model", "name", ""),
}
"""Section and option of each quantity that can be varied, and its name in the picture."""


@dataclass(frozen=True)
class BenchConfig:
    """What to measure, and where to write the results."""

    steps: int = 30
    """Number of timed steps."""
    warmup: int = 5
    """Number of untimed warm-up steps, which include compilation."""
    to: str | None = None
    """Folder for bench.json and bench.png; by default bench/RECIPE-DATE-TIME."""
    vary: Literal["none", "batch", "tokens", "k-start", "heads", "model"] = "none"
    """What to vary, with the rest of the recipe fixed: tokens by the number of patches per side of
    a view, heads by clustering the output tokens (1) or the projections of every head."""
    values: tuple[str, ...] = ()
    """Values to measure; by default a few around the recipe's own."""

    def __post_init__(self) -> None:
        require_least(self, "bench", 1, "steps", "warmup")
        require(self.vary != "none" or not self.values, "--bench.values needs --bench.vary")


@dataclass(frozen=True)
class BenchOptions(CrocConfig):
    """Time the training step of a recipe, stage by stage."""

    bench: BenchConfig = field(default_factory=BenchConfig)


def run_bench(
    recipe: str, arguments: list[str], open_recipe: Callable[[str], tuple[PretrainConfig, str]]
) -> None:
    """Measure a recipe with the options of the command line; write and print the results."""
    default, name = open_recipe(recipe)
    if not isinstance(default, CrocConfig):
        raise UserError(f"croc bench measures CrOC's step, and {recipe} is another method")
    options = parse(BenchOptions, arguments, f"croc bench {recipe}", BenchOptions(**vars(default)))
    bench, run = options.bench, options.run
    several = run.nodes > 1 or run.devices not in ("auto", 1) or run.strategy != "ddp"
    if several or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError(
            "croc bench measures one device: leave out --run.devices, --run.nodes, --run.strategy "
            "and torchrun, and pass one device's share as --optim.batch"
        )
    require(options.model.init is None, "croc bench measures with fresh weights: leave --init out")
    config = CrocConfig(**{each.name: getattr(options, each.name) for each in fields(CrocConfig)})
    settings = plan(replace(config, run=replace(run, devices=1)), bench)
    source = open_source(config.data, run.seed) if config.data.root else None
    if source:
        for setting in settings:  # is there enough data for a batch?
            batch_indices(0, len(source), setting.sizes["batch"], run.seed)
    folder = Path(bench.to or f"bench/{name}-{datetime.now(UTC):%Y-%m-%d-%H%M%S}")
    if (folder / FILE).exists() or (folder / PICTURE).exists():
        raise UserError(f"{folder} contains a measurement: choose another --bench.to")
    folder.mkdir(parents=True, exist_ok=True)  # now, so that no result is lost

    fabric = make_fabric(settings[0].config.run)
    dtype = torch.bfloat16 if in_bfloat16(run, fabric.device.type) else torch.float32
    results: dict[str, Any] = {
        "format": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "recipe": name,
        "hardware": hardware(fabric.device),
        "versions": gpu_versions(),
        "bench": dataclasses.asdict(bench),
        "ceiling": measure_ceiling(fabric.device, dtype),
        "settings": [],
        "not_yet_measured": [setting.label for setting in settings],
    }
    for setting in settings:
        print(f"measuring {setting.label}", file=sys.stderr)
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
        with replacing(folder / FILE) as partial:  # now: a later one may kill the process
            text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
            partial.write_text(text + "\n")
        torch.compiler.reset()  # free what was compiled for these shapes, and their memory
        gc.collect()
        torch.cuda.empty_cache()
    measured = [entry for entry in results["settings"] if entry["figures"]]
    if not measured:
        (folder / FILE).unlink()
        raise UserError("out of memory: lower --optim.batch or pass --run.micro-batch")
    device = results["hardware"]
    where = device["cpu"] if device["gpu"] == "no GPU" else device["gpu"]
    title = f"{name} on {where}, torch {results['versions']['torch']}, {results['date'][:10]}"
    save_chart(make_figure(measured, bench.vary, title), folder / PICTURE)
    print_settings(measured, title)
    print(f"the results are in {folder}")


@dataclass(frozen=True)
class Setting:
    """One configuration to be measured; `value` is that of the quantity that is varied."""

    label: str
    value: int | str
    sizes: dict[str, Any]
    config: CrocConfig


def plan(config: CrocConfig, bench: BenchConfig) -> list[Setting]:
    """All settings, each checked now, so that none fails after hours."""
    base, vary = sizes_of(config), bench.vary
    if vary == "none":
        return [Setting(f"batch {base['batch']}", base["batch"], base, config)]
    defaults: dict[str, list[Any]] = {
        "batch": [max(1, round(base["batch"] * factor)) for factor in (0.25, 0.5, 1, 2)],
        "tokens": [max(1, round(base["side"] * factor)) for factor in (0.5, 0.7, 1, 1.4, 2)],
        "k-start": [k for k in (4, 8, 12, 16, 24, 32) if k <= base["tokens"]],
        "heads": [1, base["attention_heads"]],
        "model": [f"vit_{size}_patch16_224" for size in ("tiny", "small", "base")],
    }
    settings: list[Setting] = []
    for text in dict.fromkeys(bench.values or map(str, defaults[vary])):
        if vary != "model" and not text.isdecimal():
            raise UserError(f"--bench.values must be positive integers here: {text}")
        value: Any = text if vary == "model" else int(text)
        if vary == "tokens":
            value *= base["patch_px"]
        elif vary == "heads":
            if value not in defaults[vary]:
                raise UserError(
                    f"--bench.values for heads are 1 (the last tokens) and "
                    f"{base['attention_heads']} ({base['model']}'s own), not {value}; for others "
                    "use benchmarks/clustering.py"
                )
            every = "values" if config.cluster.tokens == "last" else config.cluster.tokens
            value = "last" if value == 1 else every
        section, name, _ = VARIED[vary]
        changes: dict[str, Any] = {section: replace(getattr(config, section), **{name: value})}
        changed = replace(config, **changes)
        sizes = sizes_of(changed)
        shown = sizes[vary.replace("-", "_")]
        label = f"{VIEWS} × {sizes['side']}²" if vary == "tokens" else str(shown)
        settings.append(Setting(label, shown, sizes, changed))
    return settings if vary == "model" else sorted(settings, key=lambda each: each.value)


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


class BenchTrainer(Trainer):
    """Training's own, with a schedule of its own."""

    def __init__(self, fabric: Fabric, config: CrocConfig) -> None:
        # The views of most of a run, not those of its early epochs.
        views = replace(config.views, early_px=None, early_epochs=0)
        super().__init__(fabric, replace(config, views=views))
        # Past the epochs with frozen prototypes, as most steps of a run.
        frozen = min(config.loss.frozen_prototype_epochs, config.optim.epochs - 1)
        self._number = frozen * STEPS_PER_EPOCH

    def next_step(self, canvases: Canvases, *, launch: bool = False) -> dict[str, Tensor]:
        """As in training (a CUDA graph where that has one), or launched kernel by kernel."""
        settings = settings_at(self._number, self.config.optim, STEPS_PER_EPOCH)
        self._number += 1
        return self.step(canvases, settings, launch=launch)


def is_out_of_memory(error: BaseException) -> bool:
    """Also where a compiler, or the CPU's allocator, only says so in words."""
    phrases = ("out of memory", "can't allocate memory", "not enough memory")
    words = any(phrase in str(error).lower() for phrase in phrases)
    return words or isinstance(error, torch.OutOfMemoryError | MemoryError)


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
    trainer = BenchTrainer(fabric, config)
    batches = synthetic_batches(config, BATCHES, device)
    trainer.next_step(next(batches), launch=True)
    _wait(device)
    first_step_s = time.perf_counter() - start
    for _ in range(bench.warmup - 1):
        trainer.next_step(next(batches), launch=True)
    _wait(device)
    ready_s = time.perf_counter() - start

    # Stages before the CUDA graph, which keeps memory for good.
    stopwatch, steps = Stopwatch(device), min(STAGE_STEPS, bench.steps)
    with stopwatch.watch():
        (whole_ms,) = _timed_ms(
            device, lambda: [trainer.next_step(next(batches), launch=True) for _ in range(steps)], 1
        )
    split_ms = {name: 1e3 * taken / steps for name, taken in stopwatch.seconds().items()}
    watched_ms = whole_ms / steps
    split_ms["rest"] = max(0.0, watched_ms - sum(split_ms.values()))

    start = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(WARM_UPS + 2 if trainer.recorded else 0):
        trainer.next_step(next(batches))
    _wait(device)
    ready_s += time.perf_counter() - start
    with host_waits(device) as waits:
        step_ms = _timed_ms(device, lambda: trainer.next_step(next(batches)), bench.steps)
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
            trainer.next_step(next(batches))
            launches.append(1e3 * (time.perf_counter() - start))
        host_ms = statistics.median(launches)
    loss = fetch(trainer.next_step(next(batches)))["loss"]
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
    trainer: BenchTrainer, steps: int, source: ImageSource, ready_rate: float
) -> dict[str, Any]:
    """The same step on photographs from the loader."""
    data, batch, device = trainer.config.data, trainer.config.optim.batch, trainer.fabric.device
    loader = make_loader(
        source,
        canvas_px=data.canvas_px,
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
    run = replace(config.run, accelerator="cpu", precision="float32", compile=False, record=False)
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
    with sdpa_kernel(SDPBackend.MATH), counter, FlopWatch(cpu).watch():
        trainer.next_step(next(synthetic_batches(config, 1, cpu)))
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


def print_settings(measured: list[dict[str, Any]], title: str) -> None:
    """One column per setting: its stages, what they add up to, and what is wrong."""
    figures = [entry["figures"] for entry in measured]
    rows: dict[str, list[str]] = {}
    for stage in figures[0]["split_ms"]:
        taken = [(each["split_ms"][stage], each["watched_ms"]) for each in figures]
        rows[f"{stage}, ms"] = [f"{ms:.2f} ({ms / whole:.1%})" for ms, whole in taken]
    rows["step, ms"] = [f"{each['step_ms']['median']:.2f}" for each in figures]
    rows["10th–90th percentile"] = ["{p10:.1f}–{p90:.1f}".format(**e["step_ms"]) for e in figures]
    rows["images/s"] = [f"{each['images_per_s']:,.5g}" for each in figures]
    rows["TFLOP/s"] = [f"{each['tflops']:.3g}" for each in figures]
    rows["of a large product"] = [f"{each['of_ceiling']:.1%}" for each in figures]
    rows["first step after, s"] = [f"{each['first_step_s']:.1f}" for each in figures]
    rows["warm-up over after, s"] = [f"{each['ready_s']:.1f}" for each in figures]
    if figures[0]["host_ms"] is not None:
        rows["launched by the host, ms"] = [f"{each['host_ms']:.2f}" for each in figures]
        rows["times the host waited"] = [str(each["host_waits"]) for each in figures]
        rows["peak GPU memory, GiB"] = [f"{each['peak_gib']:.2f}" for each in figures]
    if figures[0]["loaded"]:
        loaded = [each["loaded"] for each in figures]
        rows["images/s with loading"] = [f"{each['images_per_s']:,.5g}" for each in loaded]
        rows["of ready tensors"] = [f"{each['of_ready']:.1%}" for each in loaded]
    console, headings = table_console(), ["", *(entry["label"] for entry in measured)]
    cells = [[name, *values] for name, values in rows.items()]
    console.print(terminal_table(headings, cells, title=title))
    for entry, each in zip(measured, figures):
        if each["host_waits"]:
            places = ", ".join(each["host_wait_places"][:5])
            console.print(f"{entry['label']}: ERROR: the host waited for the device: {places}")
        if (each["host_ms"] or 0) > 0.9 * each["step_ms"]["median"]:
            console.print(f"{entry['label']}: launching a step takes the host as long as the step")
        if each["loss"] is None:
            console.print(f"{entry['label']}: ERROR: the loss is not finite")


def make_figure(measured: list[dict[str, Any]], vary: str, title: str) -> Figure:
    """Where the time of a step goes, and how it depends on what was varied."""
    figures = [entry["figures"] for entry in measured]
    split, whole = figures[0]["split_ms"], figures[0]["watched_ms"]
    figure = Figure(figsize=(8.5 if vary == "none" else 13, 5.5), dpi=120, layout="constrained")
    if vary == "none":  # one bar per stage, each beginning where the one before it ended
        axes = figure.subplots()
        starts = list(accumulate(split.values(), initial=0.0))[:-1]
        bars = axes.barh(list(split), list(split.values()), left=starts, color=STAGE_COLORS)
        axes.bar_label(bars, [f" {ms:.2f} ms, {ms / whole:.1%}" for ms in split.values()])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.25 * whole)
        axes.set_xlabel("ms from the start of the step, stages one after the other")
        peak = figures[0]["peak_gib"]
        title += f"\n{measured[0]['label']}: {figures[0]['images_per_s']:,.5g} images/s"
        title += "" if peak is None else f", peak {peak:.1f} GiB"
    else:
        axes, *others = figure.subplot_mosaic("ABC;ADE", width_ratios=[1.4, 1, 1]).values()
        labels = [entry["label"].replace("_patch", "\npatch") for entry in measured]
        bottom = np.zeros(len(figures))
        for stage, color in zip(split, STAGE_COLORS):
            taken = [each["split_ms"][stage] for each in figures]
            axes.bar(labels, taken, bottom=bottom, color=color, label=stage)
            bottom += taken
        axes.set_title("ms of a step by stage", loc="left")
        axes.legend(reverse=True, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        panels = {
            "clustering, ms per step": [each["split_ms"]["clustering"] for each in figures],
            "images/s": [each["images_per_s"] for each in figures],
            "step, ms (median)": [each["step_ms"]["median"] for each in figures],
            "peak GPU memory, GiB": [each["peak_gib"] or math.nan for each in figures],
        }
        for axes, (name, values) in zip(others, panels.items()):
            x = labels if vary == "model" else [entry["value"] for entry in measured]
            axes.plot(x, values, "o-", color=COLORS[0])
            axes.set_title(name, loc="left")
            axes.set_xlabel(VARIED[vary][2])
            axes.set_ylim(bottom=0)
            axes.set_visible(not math.isnan(values[0]))  # a CPU has no GPU memory
    figure.suptitle(title, x=0.01, ha="left")
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    return figure
