"""What a bench found: bench.json, whole or not at all, and a table on the terminal."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from croc.io import replacing
from croc.lab.bench.arithmetic import Ceiling
from croc.lab.bench.measure import Figures
from croc.lab.bench.options import BenchConfig
from croc.lab.bench.settings import Setting
from croc.lab.bench.surroundings import hardware, versions

FILE = "bench.json"
PICTURE = "bench.png"
FORMAT = 1

Outcome = tuple[Setting, Figures | None]
"""None for a setting that did not fit into the memory."""


def make_page(
    recipe: str,
    bench: BenchConfig,
    device: torch.device,
    ceiling: Ceiling,
    outcomes: Sequence[Outcome],
    left: Sequence[Setting],
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "recipe": recipe,
        "hardware": hardware(device),
        "versions": versions(),
        "bench": dataclasses.asdict(bench),
        "ceiling": dataclasses.asdict(ceiling),
        "settings": [_entry(setting, figures) for setting, figures in outcomes],
        "not_yet_measured": [setting.label for setting in left],
    }


def _entry(setting: Setting, figures: Figures | None) -> dict[str, Any]:
    return {
        "label": setting.label,
        "value": setting.value,
        "sizes": dataclasses.asdict(setting.sizes),
        "config": dataclasses.asdict(setting.config),
        "out_of_memory": figures is None,
        "figures": None if figures is None else dataclasses.asdict(figures),
    }


def write_page(folder: Path, page: dict[str, Any]) -> None:
    text = json.dumps(page, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with replacing(folder / FILE) as partial:
        partial.write_text(text)


def print_page(page: dict[str, Any], console: Console | None = None) -> None:
    """The split of a single setting; of several, a row each."""
    console = console or Console(markup=False, emoji=False, highlight=False)
    device = page["hardware"]
    where = device["cpu"] if device["gpu"] == "no GPU" else device["gpu"]
    title = f"{page['recipe']} on {where}, torch {page['versions']['torch']}"
    measured = [entry for entry in page["settings"] if entry["figures"]]
    if page["bench"]["vary"] == "none":
        console.print(_split_table(measured[0], title, page["ceiling"]))
        for line in _lines(measured[0]["figures"]):
            console.print(line)
    else:
        console.print(_settings_table(page, title))
        console.print(
            "ms of a step, of its launching by the host and of the clustering; GiB at most; limit: "
            "share of the FLOP/s of a large product"
        )
    for entry in page["settings"]:
        for line in _warnings(entry["figures"]):
            console.print(f"{entry['label']}: {line}")


def _split_table(entry: dict[str, Any], title: str, ceiling: dict[str, Any]) -> Table:
    figures = entry["figures"]
    table = Table(title=f"{title}, {entry['label']}", title_justify="left", show_footer=True)
    whole = figures["watched_ms"]
    table.add_column("stage", footer="step")
    table.add_column("ms", footer=f"{whole:.2f}", justify="right")
    table.add_column("share", footer="100.0%", justify="right")
    total = _rate(sum(figures["flop"].values()), whole)
    table.add_column("FLOP/s", footer=_speed(total), justify="right")
    reached = f"of {_speed(ceiling['tflops'])} ({ceiling['dtype']})"
    table.add_column(reached, footer=f"{total / ceiling['tflops']:.1%}", justify="right")
    for stage, taken in figures["split_ms"].items():
        cells = [stage, f"{taken:.2f}", f"{taken / whole:.1%}"]
        if stage in figures["flop"]:
            rate = _rate(figures["flop"][stage], taken)
            cells += [_speed(rate), f"{rate / ceiling['tflops']:.1%}"]
        table.add_row(*cells)
    return table


def _rate(flop: int, taken_ms: float) -> float:
    """In TFLOP/s."""
    return flop / max(taken_ms, 1e-9) / 1e9


def _speed(tflops: float) -> str:
    return f"{tflops:.0f} T" if tflops >= 10 else f"{1e3 * tflops:.4g} G"


def _lines(figures: dict[str, Any]) -> Iterator[str]:
    step = figures["step_ms"]
    yield (
        f"{figures['images_per_s']:,.5g} images/s; a step takes {step['median']:.2f} ms "
        f"(10th to 90th percentile {step['p10']:.2f} to {step['p90']:.2f}), "
        f"{_speed(figures['tflops'])}FLOP/s, {figures['of_ceiling']:.1%} of a large product"
    )
    if figures["host_ms"] is not None:
        yield (
            f"the host launches a step in {figures['host_ms']:.1f} ms and waited for the device "
            f"{figures['host_waits']} times"
        )
    if figures["peak_gib"] is not None:
        yield f"at most {figures['peak_gib']:.2f} GiB on the GPU"
    yield (
        f"first step after {figures['first_step_s']:.1f} s, "
        f"end of the warm-up after {figures['ready_s']:.1f} s"
    )
    if figures["loss_alone_ms"] is not None:
        yield f"loss alone, forward and backward: {figures['loss_alone_ms']:.2f} ms"
    loaded = figures["loaded"]
    if loaded:
        yield (
            f"from {loaded['images']:,} images with {loaded['workers']} workers: "
            f"{loaded['images_per_s']:,.5g} images/s, {loaded['of_ready']:.1%} of ready tensors"
        )


def _settings_table(page: dict[str, Any], title: str) -> Table:
    """Columns in which nothing was measured are left out."""
    rows = [_row(entry) for entry in page["settings"]]
    names = [name for row in rows for name in row if row[name] is not None]
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(page["bench"]["vary"], no_wrap=True)
    for name in dict.fromkeys(names):
        table.add_column(name, justify="right", no_wrap=True)
    for entry, row in zip(page["settings"], rows):
        if row:
            label = entry["label"].removesuffix("_patch16_224")
            table.add_row(label, *(row[name] or "–" for name in dict.fromkeys(names)))
    return table


def _row(entry: dict[str, Any]) -> dict[str, str | None]:
    figures = entry["figures"]
    if figures is None:
        return {}
    step, host, peak, loaded = (figures[n] for n in ("step_ms", "host_ms", "peak_gib", "loaded"))
    return {
        "ms": f"{step['median']:.2f}",
        "10th–90th": f"{step['p10']:.1f}–{step['p90']:.1f}",
        "images/s": f"{figures['images_per_s']:,.4g}",
        "host": None if host is None else f"{host:.1f}",
        "cluster": f"{figures['split_ms']['clustering']:.2f}",
        "GiB": None if peak is None else f"{peak:.1f}",
        "limit": f"{figures['of_ceiling']:.1%}",
        "loaded": None if loaded is None else f"{loaded['of_ready']:.1%}",
    }


def _warnings(figures: dict[str, Any] | None) -> Iterator[str]:
    if figures is None:
        yield "out of memory"
        return
    step_ms = figures["step_ms"]["median"]
    if figures["host_waits"]:
        places = ", ".join(figures["host_wait_places"][:5])
        yield f"ERROR: the host waited for the device {figures['host_waits']} times: {places}"
    if figures["host_ms"] is not None and figures["host_ms"] > 0.9 * step_ms:
        yield "bound by launches: the host takes as long as the device"
    if figures["loss"] is None:
        yield "ERROR: the loss is not finite"
