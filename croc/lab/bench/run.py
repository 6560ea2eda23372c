"""`croc bench`: every setting in turn, then the page, the picture and the table."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from croc.config import CrocConfig
from croc.data.loader import batch_indices
from croc.data.sources import ImageSource, open_source
from croc.errors import UserError
from croc.lab.bench.arithmetic import Ceiling, measure_ceiling
from croc.lab.bench.measure import Figures, measure
from croc.lab.bench.options import BenchConfig
from croc.lab.bench.picture import draw_page
from croc.lab.bench.report import FILE, PICTURE, Outcome, make_page, print_page, write_page
from croc.lab.bench.settings import Setting, plan
from croc.lab.bench.trainer import dtype_of_products
from croc.train.devices import make_fabric


def run_bench(config: CrocConfig, bench: BenchConfig, recipe: str) -> Path:
    """Measure, write and print; returns the folder."""
    config = _on_one_device(config)
    settings = plan(config, bench)
    source = open_source(config.data, config.run.seed) if config.data.root else None
    if source:
        for setting in settings:  # is there a batch in the data?
            batch_indices(0, len(source), setting.sizes.batch, config.run.seed)
    fabric = make_fabric(config.run)
    folder = Path(bench.to or f"bench/{recipe}-{datetime.now(UTC):%Y-%m-%d-%H%M%S}")
    with _new_folder(folder):
        page = _measure_all(fabric, settings, bench, recipe, source, folder)
        draw_page(page, folder / PICTURE)
    print_page(page)
    return folder


def _measure_all(
    fabric: Fabric,
    settings: list[Setting],
    bench: BenchConfig,
    recipe: str,
    source: ImageSource | None,
    folder: Path,
) -> dict[str, Any]:
    """Writes the page after each, whole as far as it goes: a later one may end the process."""
    dtype = dtype_of_products(settings[0].config.run, fabric.device)
    ceiling = measure_ceiling(fabric.device, dtype)
    outcomes: list[Outcome] = []
    page: dict[str, Any] = {}
    for number, setting in enumerate(settings, start=1):
        print(f"measuring {number} of {len(settings)}: {setting.label}", file=sys.stderr)
        figures = _measure_if_it_fits(fabric, setting, bench, ceiling, source)
        outcomes.append((setting, figures))
        page = make_page(recipe, bench, fabric.device, ceiling, outcomes, settings[number:])
        if any(found for _, found in outcomes):
            write_page(folder, page)
    if not any(found for _, found in outcomes):
        raise UserError(
            "out of memory: lower --optim.batch, or pass --run.micro-batch to go through it in "
            "parts"
        )
    return page


def _on_one_device(config: CrocConfig) -> CrocConfig:
    run = config.run
    several = run.nodes > 1 or run.devices not in ("auto", 1) or run.strategy != "ddp"
    if several or int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError(
            "croc bench measures one device: leave out --run.devices, --run.nodes, --run.strategy "
            "and torchrun, and give one device's share as --optim.batch"
        )
    return replace(config, run=replace(run, devices=1))


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Made before the first figure, so that none is lost; taken away if it stays empty."""
    if (folder / FILE).exists() or (folder / PICTURE).exists():
        raise UserError(f"{folder} holds a measurement: choose another --bench.to")
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()


def _measure_if_it_fits(
    fabric: Fabric,
    setting: Setting,
    bench: BenchConfig,
    ceiling: Ceiling,
    source: ImageSource | None,
) -> Figures | None:
    """None if it runs out of memory; what it held is free afterwards."""
    try:
        return measure(fabric, setting, bench, ceiling, source)
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        print(f"out of memory: {setting.label}", file=sys.stderr)
        return None
    finally:
        # Settings share code, but not what was compiled for another's shapes.
        torch.compiler.reset()
        gc.collect()
        if fabric.device.type == "cuda":
            torch.cuda.empty_cache()


def ran_out_of_memory(error: BaseException) -> bool:
    """Also where a compiler, or the CPU's allocator, only says so in words."""
    said = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in said for words in ("out of memory", "can't allocate memory", "not enough memory")
    )
