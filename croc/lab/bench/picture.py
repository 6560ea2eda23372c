"""bench.png: where the time of a step goes, and how it follows what was varied."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from croc.lab.bench.lines import fit_line
from croc.lab.bench.served import DEFINITION, KERNEL

# Okabe and Ito's, which colour-blind readers can tell apart; neighbours differ in lightness too.
COLOURS = {
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
HATCHES = {"rest": "////"}
QUANTITIES = {
    "batch": "images in a batch",
    "tokens": "tokens of an image's two views",
    "k-start": "K_start",
    "heads": "heads that are clustered",
    "model": "",
}
CLUSTERING = "clustering, ms a step"
LINE = "#0072B2"
FITTED = "#D55E00"


def draw_page(page: dict[str, Any], path: Path) -> None:
    measured = [entry for entry in page["settings"] if entry["figures"]]
    varied = page["bench"]["vary"]
    if varied == "none":
        figure = _draw_one(measured[0])
    else:
        figure = _draw_several(measured, varied)
    figure.suptitle(_title(page), x=0.01, ha="left", fontsize=10)
    figure.savefig(path)


def _title(page: dict[str, Any]) -> str:
    device = page["hardware"]
    where = device["cpu"] if device["gpu"] == "no GPU" else device["gpu"]
    lost = [entry["label"] for entry in page["settings"] if entry["out_of_memory"]]
    without = f"; out of memory: {', '.join(lost)}" if lost else ""
    return f"{page['recipe']}, {where}, torch {page['versions']['torch']}, {page['date'][:10]}" + (
        without
    )


def _draw_one(entry: dict[str, Any]) -> Figure:
    """A bar a stage, each beginning where the one before it ended."""
    figures = entry["figures"]
    split, whole = figures["split_ms"], figures["watched_ms"]
    drawing = Figure(figsize=(8.5, 0.34 * len(split) + 1.5), dpi=120, layout="constrained")
    axes = drawing.subplots()
    begun = 0.0
    for row, (stage, taken) in enumerate(split.items()):
        axes.barh(row, taken, left=begun, height=0.72, **_look(stage))
        begun += taken
        text = f"{taken:.2f} ms, {taken / whole:.1%}"
        right = begun < 0.75 * whole
        place = begun + 0.01 * whole if right else begun - taken - 0.01 * whole
        axes.text(place, row, text, ha="left" if right else "right", va="center", fontsize=8)
    axes.set_yticks(range(len(split)), list(split))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.01 * max(begun, whole))
    peak = "" if figures["peak_gib"] is None else f", {figures['peak_gib']:.1f} GiB at most"
    axes.set_xlabel("ms from the beginning of the step, stages one after the other")
    axes.set_title(
        f"{entry['label']}: {figures['images_per_s']:,.5g} images/s, "
        f"{figures['tflops']:.3g} TFLOP/s ({figures['of_ceiling']:.0%} of a large product){peak}",
        fontsize=9,
        loc="left",
    )
    _plain(axes)
    return drawing


def _draw_several(measured: list[dict[str, Any]], varied: str) -> Figure:
    has_peak = all(entry["figures"]["peak_gib"] is not None for entry in measured)
    columns = 2 if has_peak else 1
    width = max(4.6, 0.8 * len(measured) + 1.6)
    drawing = Figure(figsize=(width + 3.9 * columns, 6.2), dpi=120, layout="constrained")
    grid = drawing.add_gridspec(2, 1 + columns, width_ratios=[width, *[3.9] * columns])
    _stack(drawing.add_subplot(grid[:, 0]), measured, varied)
    panels = [
        (CLUSTERING, [entry["figures"]["split_ms"]["clustering"] for entry in measured]),
        ("step, ms (median)", [entry["figures"]["step_ms"]["median"] for entry in measured]),
        ("images/s", [entry["figures"]["images_per_s"] for entry in measured]),
        ("GPU memory at most, GiB", [entry["figures"]["peak_gib"] for entry in measured]),
    ]
    for number, (name, values) in enumerate(panels[: 2 * columns]):
        axes = drawing.add_subplot(grid[number % 2, 1 + number // 2])
        _follow(axes, name, measured, values, varied, fits=name != "images/s")
    return drawing


def _stack(axes: Axes, measured: list[dict[str, Any]], varied: str) -> None:
    """A bar a setting; shares of the step stand in the parts that have room for them."""
    highest = max(entry["figures"]["watched_ms"] for entry in measured)
    stages = list(dict.fromkeys(stage for e in measured for stage in e["figures"]["split_ms"]))
    for place, entry in enumerate(measured):
        below, whole = 0.0, entry["figures"]["watched_ms"]
        for stage in stages:
            taken = entry["figures"]["split_ms"].get(stage, 0.0)
            axes.bar(place, taken, bottom=below, width=0.78, **_look(stage))
            if taken > 0.035 * highest:
                dark = stage in ("teacher", "EMA", "student", "clustering")
                axes.text(
                    place,
                    below + taken / 2,
                    f"{taken / whole:.0%}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if dark else "black",
                )
            below += taken
        axes.text(place, below + 0.01 * highest, f"{whole:.3g}", ha="center", fontsize=8)
    axes.set_ylim(0, 1.08 * highest)
    axes.set_xticks(range(len(measured)), _labels(measured))
    axes.set_xlabel(QUANTITIES[varied])
    axes.set_title("where a step's milliseconds go", fontsize=9, loc="left")
    keys = [Patch(label=stage, **_look(stage)) for stage in reversed(stages)]
    axes.legend(
        handles=keys, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    _plain(axes)


def _follow(
    axes: Axes,
    name: str,
    measured: list[dict[str, Any]],
    values: list[float],
    varied: str,
    fits: bool,
) -> None:
    """One figure against what was varied; a dashed straight line where three points allow it."""
    axes.set_title(name, fontsize=9, loc="left")
    if varied == "model":
        axes.bar(range(len(values)), values, width=0.6, color=LINE)
        axes.set_xticks(range(len(values)), _labels(measured))
        _plain(axes)
        return
    across = [entry["value"] for entry in measured]
    by = [entry["figures"]["clustering_by"] for entry in measured]
    # Where the definition took over from the kernel, its cost is another curve.
    apart = name == CLUSTERING and len(set(by)) > 1
    fitted = [point for point in zip(across, values, by) if not apart or point[2] == KERNEL]
    line = fit_line([x for x, _, _ in fitted], [y for _, y, _ in fitted]) if fits else None
    if line:
        ends = [fitted[0][0], fitted[-1][0]]
        label = f"straight line: R² {line.r2:.4f}, off by {line.worst:.1%} at most"
        axes.plot(ends, [line.at(x) for x in ends], "--", color=FITTED, lw=1.3, label=label)
    axes.plot(across, values, lw=0 if line else 1.3, color=LINE)
    for x, y, served in zip(across, values, by):
        hollow = apart and served == DEFINITION
        axes.plot(x, y, "o", color=LINE, ms=5, mfc="white" if hollow else LINE, zorder=3)
    if apart:
        axes.plot([], [], "o", color=LINE, ms=5, mfc="white", label="without the kernel")
    if line or apart:
        axes.legend(fontsize=7, frameon=False, loc="upper left")
    axes.set_xlabel(QUANTITIES[varied])
    axes.set_xlim(0, 1.05 * across[-1])
    axes.set_ylim(0, 1.22 * max(values))
    _plain(axes)


def _labels(measured: list[dict[str, Any]]) -> list[str]:
    return [entry["label"].replace("_patch", "\npatch") for entry in measured]


def _look(stage: str) -> dict[str, Any]:
    return {
        "facecolor": COLOURS.get(stage, "#BBBBBB"),
        "edgecolor": "#666666",
        "linewidth": 0.5,
        "hatch": HATCHES.get(stage),
    }


def _plain(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.set_xlabel(axes.get_xlabel(), fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
