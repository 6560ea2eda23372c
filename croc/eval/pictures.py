"""Pictures of predictions: figures next to the ground truth, and masks as DAVIS stores them."""

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
Masks = UInt8[np.ndarray, "t h w"]


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
        Patch(facecolor=table[number], edgecolor="0.6", label=classes[number])
        for number in named[:LEGEND_ENTRIES]
    ]
    if len(named) > LEGEND_ENTRIES:
        handles.append(Patch(color="none", label=f"and {len(named) - LEGEND_ENTRIES} more"))
    if IGNORED in shown:
        handles.append(Patch(color=UNLABELED, label="not labeled"))
    legend = figure.legend(handles=handles, loc="outside right upper", fontsize=7, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a class may be called a$_$b
    for axis in figure.axes:
        axis.set_axis_off()
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", parse_math=False)
    figure.set_layout_engine("constrained")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # names in any script; boxes are fine
        figure.savefig(path)


def few_label_figure(sets: dict[str, dict[str, dict[str, Any]]], path: Path) -> None:
    """mIoU against labeled images: a row for each dataset, a column for each method, and a line
    for the scores of each label."""
    size = (7.6, 2.8 * len(sets) + 0.4)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    panels = figure.subplots(len(sets), 2, squeeze=False, sharey="row")
    for row, (title, lines) in zip(panels, sets.items()):
        for axes, method in zip(row, ("linear", "in-context")):
            for index, (label, scores) in enumerate(lines.items()):
                names = {count: f"{method} {text}" for text, count in scores["images"].items()}
                counts = sorted(names)
                mean = np.array([scores[names[n]] for n in counts])
                spread = np.array([scores["deviation"].get(names[n], 0.0) for n in counts])
                color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
                style: Any = {"color": color, "marker": marker, "label": verbatim(label)}
                axes.plot(counts, mean, lw=1.4, ms=4, **style)
                axes.fill_between(counts, mean - spread, mean + spread, color=color, alpha=0.15)
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:,g}")
            axes.set_xlabel("labeled images", fontsize=8)
            axes.set_title(verbatim(f"{title}, {method}"), fontsize=9, loc="left")
            axes.tick_params(labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("mIoU", fontsize=8)
        span_enough(row[0])
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower left", fontsize=8, frameon=False, ncols=3)
    save_chart(figure, path)


def write_masks(folder: Path, masks: Masks) -> None:
    """FOLDER/00000.png and so on: indices of the objects with DAVIS' palette."""
    folder.mkdir(parents=True)
    for t, mask in enumerate(masks):
        image = Image.fromarray(mask)
        image.putpalette(voc_palette())
        image.save(folder / f"{t:05d}.png")


def voc_palette() -> list[int]:
    """PASCAL VOC's 256 colors, which are DAVIS': red, green, blue, red, green …

    The index's bits 0, 3, 6 are red's highest, second and third, bits 1, 4, 7 are green's, and
    bits 2, 5 blue's.
    """
    return [
        sum(((index >> (3 * place + channel)) & 1) << (7 - place) for place in range(3))
        for index in range(256)
        for channel in range(3)
    ]
