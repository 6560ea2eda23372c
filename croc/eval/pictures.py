"""Pictures of predictions: figures next to the ground truth, and masks as DAVIS stores them."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.colors
import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from croc.eval.features import Example
from croc.eval.metrics import IGNORED
from croc.plotting import COLORS, MARKERS, PALETTE, save_chart, span_enough, verbatim

UNLABELED = (0.5, 0.5, 0.5)
LEGEND_ENTRIES = 24
PANEL_IN = (3.8, 3.0)
Masks = UInt8[np.ndarray, "t h w"]
Point = tuple[float, float | None, float | None]


def class_colors(count: int) -> Float[np.ndarray, "count 3"]:
    """Colors that color-blind readers can tell apart, as far as they go; then a color wheel."""
    wheel = [
        matplotlib.colors.hsv_to_rgb(
            ((0.61803 * i) % 1, 0.45 + 0.4 * (i % 2), 0.9 - 0.12 * (i % 5))
        )
        for i in range(max(0, count - len(PALETTE)))
    ]
    return np.array([*PALETTE.tolist()[:count], *wheel])


def segmentation_figure(
    examples: Sequence[Example], classes: Sequence[str], path: Path, title: str
) -> None:
    """Rows: images; columns: the image, its truth, the prediction."""
    table = np.tile(np.array(UNLABELED), (IGNORED + 1, 1))
    table[: len(classes)] = class_colors(len(classes))
    columns = ("image", "truth", "prediction")
    figure = Figure(figsize=(2.1 * len(columns) + 1.6, 2.1 * len(examples) + 0.5), dpi=110)
    axes = figure.subplots(len(examples), len(columns), squeeze=False)
    shown: set[int] = set()
    for row, example in zip(axes, examples):
        row[0].imshow(example.image.permute(1, 2, 0).numpy(), aspect="auto")
        for axis, labels in zip(row[1:], (example.truth.numpy(), example.predicted.numpy())):
            axis.imshow(table[labels], interpolation="nearest", aspect="auto")
            shown |= set(np.unique(labels).tolist())
    for axis, name in zip(axes[0], columns):
        axis.set_title(name, fontsize=9)
    named = [number for number in sorted(shown) if number < len(classes)]
    handles = [
        Patch(facecolor=table[number], edgecolor="0.6", label=verbatim(classes[number]))
        for number in named[:LEGEND_ENTRIES]
    ]
    if len(named) > LEGEND_ENTRIES:
        handles.append(Patch(color="none", label=f"and {len(named) - LEGEND_ENTRIES} more"))
    if IGNORED in shown:
        handles.append(Patch(color=UNLABELED, label="not labeled"))
    figure.legend(handles=handles, loc="outside right upper", fontsize=7, frameon=False)
    for axis in figure.axes:
        axis.set_axis_off()
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", parse_math=False)
    figure.set_layout_engine("constrained")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # names in any script; boxes are fine
        figure.savefig(path)


def line_figure(
    panels: dict[str, dict[str, list[Point]]],
    x_label: str,
    across: int,
    *,
    log: bool = False,
    rows_share_y: bool = False,
) -> Figure:
    """A panel for each title with a line for each label, from (x, score, deviation) in order. A
    score that is None leaves a gap."""
    down = math.ceil(len(panels) / across)
    size = (PANEL_IN[0] * across, PANEL_IN[1] * down + 0.5)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    axes = None
    for place, (title, lines) in enumerate(panels.items(), start=1):
        left = axes if rows_share_y and place % across != 1 else None
        axes = figure.add_subplot(down, across, place, sharey=left)
        for index, (label, points) in enumerate(lines.items()):
            x, scores, deviations = np.array(points, dtype=float).T  # None becomes nan
            color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
            style: Any = {"color": color, "marker": marker, "label": verbatim(label)}
            axes.plot(x, scores, lw=1.4, ms=4, **style)
            spread = np.nan_to_num(deviations)
            axes.fill_between(x, scores - spread, scores + spread, color=color, alpha=0.15, lw=0)
        axes.set_xscale("log" if log else "linear")
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.set_xlabel(x_label, fontsize=8)
        axes.set_title(verbatim(title), fontsize=9, loc="left")
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in figure.axes:  # last, since it fixes the limits of panels that share them
        span_enough(axes)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", fontsize=8, frameon=False)
    return figure


def few_label_figure(sets: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """mIoU against labeled images: a row for each dataset, a column for each method, and a line
    for the scores of each label."""
    panels: dict[str, dict[str, list[Point]]] = {}
    all_scores = [scores for lines in sets.values() for scores in lines.values()]
    names = {name.split()[0] for scores in all_scores for name in scores["by draw"]}
    methods = sorted(names, reverse=True)  # linear first
    for title, lines in sets.items():
        for method in methods:
            panel = panels[f"{title}, {method} (mIoU)"] = {}
            for label, scores in lines.items():
                counts = sorted((count, f"{method} {x}") for x, count in scores["images"].items())
                spread = scores["deviation"]
                panel[label] = [(float(n), scores[name], spread.get(name)) for n, name in counts]
    figure = line_figure(panels, "labeled images", len(methods), log=True, rows_share_y=True)
    save_chart(figure, path)


def write_masks(folder: Path, masks: Masks) -> None:
    """FOLDER/00000.png and so on: palette PNGs of the objects' indices, as DAVIS stores them."""
    folder.mkdir(parents=True)
    palette = np.vstack([np.zeros(3), class_colors(255)])
    for t, mask in enumerate(masks):
        image = Image.fromarray(mask)
        image.putpalette(np.round(255 * palette).astype(np.uint8).tobytes())
        image.save(folder / f"{t:05d}.png")
