"""The results of a bench: a table on the terminal, and bench.png."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from croc.plotting import COLOURS, save_chart

# Okabe and Ito's colors, in which neighbors differ in lightness too.
STAGES: dict[str, str] = {
    "views": "#56B4E9",
    "teacher": "#0072B2",
    "clustering": "#D55E00",
    "heads": "#F0E442",
    "student": "#009E73",
    "loss": "#CC79A7",
    "backward": "#E69F00",
    "update": "#999999",
    "EMA": "#333333",
    "rest": "#FFFFFF",
}
QUANTITIES = {
    "batch": "images in a batch",
    "tokens": "tokens of an image's two views",
    "k-start": "K_start",
    "heads": "heads that are clustered",
    "model": "",
}


def _title(results: dict[str, Any]) -> str:
    device = results["hardware"]
    name = device["cpu"] if device["gpu"] == "no GPU" else device["gpu"]
    return f"{results['recipe']} on {name}, torch {results['versions']['torch']}"


def print_results(results: dict[str, Any]) -> None:
    """The stages of a single setting; one row for each of several."""
    console = Console(markup=False, emoji=False, highlight=False)
    measured = [entry for entry in results["settings"] if entry["figures"]]
    vary, title = results["bench"]["vary"], _title(results)
    if vary == "none":
        _print_stages(console, measured[0], title, results["ceiling"])
    else:
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        rows = [_row(entry, vary) for entry in measured]
        for name in rows[0]:
            table.add_column(name, justify="left" if name == vary else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row.values())
        console.print(table)
        console.print(
            "ms of a step, of its launch by the host and of the clustering; peak GiB; limit: "
            "share of the FLOP/s of a large product"
        )
    for entry in results["settings"]:
        for line in _warnings(entry["figures"]):
            console.print(f"{entry['label']}: {line}")


def _speed(tflops: float) -> str:
    return f"{tflops:.0f} T" if tflops >= 10 else f"{1e3 * tflops:.4g} G"


def _print_stages(
    console: Console, entry: dict[str, Any], title: str, ceiling: dict[str, Any]
) -> None:
    figures = entry["figures"]
    whole, flop = figures["watched_ms"], figures["flop"]

    def cells(name: str, taken_ms: float, flop: int) -> list[str]:
        tflops = flop / max(taken_ms, 1e-9) / 1e9
        speeds = [_speed(tflops), f"{tflops / ceiling['tflops']:.1%}"] if flop else ["", ""]
        return [name, f"{taken_ms:.2f}", f"{taken_ms / whole:.1%}", *speeds]

    table = Table(title=f"{title}, {entry['label']}", title_justify="left", show_footer=True)
    limit = f"of {_speed(ceiling['tflops'])} ({ceiling['dtype']})"
    totals = cells("step", whole, sum(flop.values()))
    for column, footer in zip(("stage", "ms", "share", "FLOP/s", limit), totals):
        table.add_column(column, footer=footer, justify="left" if column == "stage" else "right")
    for stage, taken_ms in figures["split_ms"].items():
        table.add_row(*cells(stage, taken_ms, flop.get(stage, 0)))
    console.print(table)

    step, loaded = figures["step_ms"], figures["loaded"]
    lines = [
        f"{figures['images_per_s']:,.5g} images/s; a step takes {step['median']:.2f} ms "
        f"(10th to 90th percentile {step['p10']:.2f} to {step['p90']:.2f}), "
        f"{_speed(figures['tflops'])}FLOP/s, {figures['of_ceiling']:.1%} of a large product",
        f"first step after {figures['first_step_s']:.1f} s, "
        f"end of the warm-up after {figures['ready_s']:.1f} s",
    ]
    if figures["host_ms"] is not None:
        lines.append(
            f"the host launches a step in {figures['host_ms']:.2f} ms and waited for the GPU "
            f"{figures['host_waits']} times"
        )
        lines.append(f"peak memory {figures['peak_gib']:.2f} GiB on the GPU")
    if loaded:
        lines.append(
            f"from {loaded['images']:,} images with {loaded['workers']} workers: "
            f"{loaded['images_per_s']:,.5g} images/s, {loaded['of_ready']:.1%} of ready tensors"
        )
    console.print(*lines, sep="\n")


def _row(entry: dict[str, Any], vary: str) -> dict[str, str]:
    """Columns in which nothing was measured are left out."""
    figures, step = entry["figures"], entry["figures"]["step_ms"]
    row = {
        vary: entry["label"].removesuffix("_patch16_224"),
        "ms": f"{step['median']:.2f}",
        "10th–90th": f"{step['p10']:.1f}–{step['p90']:.1f}",
        "images/s": f"{figures['images_per_s']:,.4g}",
        "cluster": f"{figures['split_ms']['clustering']:.2f}",
        "limit": f"{figures['of_ceiling']:.1%}",
    }
    if figures["host_ms"] is not None:
        row |= {"host": f"{figures['host_ms']:.1f}", "GiB": f"{figures['peak_gib']:.1f}"}
    if figures["loaded"]:
        row["loaded"] = f"{figures['loaded']['of_ready']:.1%}"
    return row


def _warnings(figures: dict[str, Any] | None) -> Iterator[str]:
    if figures is None:
        yield "out of memory"
        return
    if figures["host_waits"]:
        places = ", ".join(figures["host_wait_places"][:5])
        yield f"ERROR: the host waited for the device {figures['host_waits']} times: {places}"
    if (figures["host_ms"] or 0) > 0.9 * figures["step_ms"]["median"]:
        yield "bound by launches: the host takes as long as the device"
    if figures["loss"] is None:
        yield "ERROR: the loss is not finite"


def draw_results(results: dict[str, Any], path: Path) -> None:
    """Where the time of a step goes, and how it depends on what was varied."""
    measured = [entry for entry in results["settings"] if entry["figures"]]
    vary = results["bench"]["vary"]
    figure = _draw_one(measured[0]) if vary == "none" else _draw_several(measured, vary)
    failed = [entry["label"] for entry in results["settings"] if entry["out_of_memory"]]
    title = f"{_title(results)}, {results['date'][:10]}"
    title += f"; out of memory: {', '.join(failed)}" if failed else ""
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    for axes in figure.axes:
        axes.tick_params(labelsize=8)
        axes.set_xlabel(axes.get_xlabel(), fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    save_chart(figure, path)


def _style(stage: str) -> dict[str, Any]:
    color, hatch = STAGES.get(stage, "#BBBBBB"), "////" if stage == "rest" else None
    return {"facecolor": color, "edgecolor": "#666666", "linewidth": 0.5, "hatch": hatch}


def _draw_one(entry: dict[str, Any]) -> Figure:
    """One bar per stage, each beginning where the one before it ended."""
    figures = entry["figures"]
    split, whole = figures["split_ms"], figures["watched_ms"]
    figure = Figure(figsize=(8.5, 0.34 * len(split) + 1.5), dpi=120, layout="constrained")
    axes, end = figure.subplots(), 0.0
    for row, (stage, taken) in enumerate(split.items()):
        axes.barh(row, taken, left=end, height=0.72, **_style(stage))
        end += taken
        x, side = (end, "left") if end < 0.75 * whole else (end - taken, "right")
        text = f" {taken:.2f} ms, {taken / whole:.1%} "
        axes.text(x, row, text, ha=side, va="center", fontsize=8)
    axes.set_yticks(range(len(split)), list(split))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.01 * max(end, whole))
    axes.set_xlabel("ms from the start of the step, stages one after the other")
    peak = "" if figures["peak_gib"] is None else f", peak {figures['peak_gib']:.1f} GiB"
    title = (
        f"{entry['label']}: {figures['images_per_s']:,.5g} images/s, "
        f"{figures['tflops']:.3g} TFLOP/s ({figures['of_ceiling']:.0%} of a large product){peak}"
    )
    axes.set_title(title, fontsize=9, loc="left")
    return figure


def _draw_several(measured: list[dict[str, Any]], vary: str) -> Figure:
    """Stacked stages on the left; clustering, step, images/s and memory on the right."""
    figures = [entry["figures"] for entry in measured]
    labels = [entry["label"].replace("_patch", "\npatch") for entry in measured]
    columns = 1 if figures[0]["peak_gib"] is None else 2
    width = max(4.6, 0.8 * len(measured) + 1.6)
    figure = Figure(figsize=(width + 3.9 * columns, 6.2), dpi=120, layout="constrained")
    grid = figure.add_gridspec(2, 1 + columns, width_ratios=[width, *[3.9] * columns])

    axes = figure.add_subplot(grid[:, 0])
    axes.set_title("ms of a step by stage", fontsize=9, loc="left")
    for place, each in enumerate(figures):
        below = 0.0
        for stage, taken in each["split_ms"].items():
            axes.bar(place, taken, bottom=below, width=0.78, **_style(stage))
            below += taken
        axes.text(place, below, f"{below:.3g}", ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(measured)), labels)
    axes.set_xlabel(QUANTITIES[vary])
    keys = [Patch(label=stage, **_style(stage)) for stage in reversed(figures[0]["split_ms"])]
    axes.legend(handles=keys, fontsize=8, frameon=False, bbox_to_anchor=(1.0, 1.0))

    panels = {
        "clustering, ms per step": [each["split_ms"]["clustering"] for each in figures],
        "step, ms (median)": [each["step_ms"]["median"] for each in figures],
        "images/s": [each["images_per_s"] for each in figures],
        "peak GPU memory, GiB": [each["peak_gib"] for each in figures],
    }
    x = range(len(measured)) if vary == "model" else [entry["value"] for entry in measured]
    for number, (name, values) in enumerate(list(panels.items())[: 2 * columns]):
        axes = figure.add_subplot(grid[number % 2, 1 + number // 2])
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_xlabel(QUANTITIES[vary])
        axes.plot(x, values, "o-", color=COLOURS[0], lw=1.3, ms=5)
        axes.set_ylim(0, 1.15 * max(values))
        if vary == "model":
            axes.set_xticks(x, labels)
            continue
        axes.set_xlim(0, 1.05 * max(x))
        # Where the definition took over from the kernel, the cost is another curve.
        plain = [n for n, each in enumerate(figures) if each["clustering_by"] == "definition"]
        if number == 0 and 0 < len(plain) < len(figures):
            points = [x[n] for n in plain], [values[n] for n in plain]
            axes.plot(*points, "o", color=COLOURS[0], mfc="white", ms=5, label="without the kernel")
            axes.legend(fontsize=7, frameon=False, loc="upper left")
    return figure
