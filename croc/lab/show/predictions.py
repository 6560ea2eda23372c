"""Pictures of predictions beside the images and the truth."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib.colors
import numpy as np
from jaxtyping import Float, Integer
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from croc.eval.metrics import IGNORED
from croc.eval.scoring import Example
from croc.eval.video import VideoExample
from croc.lab.show.figures import PALETTE
from croc.lab.show.overlays import paint_objects

UNLABELLED = (0.5, 0.5, 0.5)
LEGEND_ENTRIES = 24


def class_colours(count: int) -> Float[np.ndarray, "count 3"]:
    """Colours that colour-blind readers can tell apart, as far as there are any; then a wheel's."""
    wheel = [
        matplotlib.colors.hsv_to_rgb(
            ((0.61803 * i) % 1, 0.45 + 0.4 * (i % 2), 0.9 - 0.12 * (i % 5))
        )
        for i in range(max(0, count - len(PALETTE)))
    ]
    return np.array([*PALETTE.tolist()[:count], *wheel])


def paint_classes(
    labels: Integer[np.ndarray, "h w"], colours: Float[np.ndarray, "count 3"]
) -> Float[np.ndarray, "h w 3"]:
    """What is ignored is gray."""
    table = np.tile(np.array(UNLABELLED), (IGNORED + 1, 1))
    table[: len(colours)] = colours
    return table[labels]


def segmentation_figure(
    examples: Sequence[Example], classes: Sequence[str], path: Path, title: str
) -> None:
    """Rows: images; columns: the image, its truth, the prediction."""
    colours = class_colours(len(classes))
    columns = ("image", "truth", "prediction")
    figure = Figure(figsize=(2.1 * len(columns) + 1.6, 2.1 * len(examples) + 0.5), dpi=110)
    axes = figure.subplots(len(examples), len(columns), squeeze=False)
    shown: set[int] = set()
    for row, example in zip(axes, examples):
        truth, predicted = example.truth.numpy(), example.predicted.numpy()
        row[0].imshow(example.image.permute(1, 2, 0).numpy(), aspect="auto")
        row[1].imshow(paint_classes(truth, colours), interpolation="nearest", aspect="auto")
        row[2].imshow(paint_classes(predicted, colours), interpolation="nearest", aspect="auto")
        shown |= set(np.unique(truth)) | set(np.unique(predicted))
    for axis, name in zip(axes[0], columns):
        axis.set_title(name, fontsize=9)
    _finish(figure, title)
    names = [(number, classes[number]) for number in sorted(shown) if number < len(classes)]
    handles = [
        Patch(facecolor=colours[number], edgecolor="0.6", label=name)
        for number, name in names[:LEGEND_ENTRIES]
    ]
    if len(names) > LEGEND_ENTRIES:
        handles.append(Patch(color="none", label=f"and {len(names) - LEGEND_ENTRIES} more"))
    if IGNORED in shown:
        handles.append(Patch(color=UNLABELLED, label="not labelled"))
    legend = figure.legend(handles=handles, loc="outside right upper", fontsize=7, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a class may be called a$_$b
    _save(figure, path)


def video_figure(examples: Sequence[VideoExample], path: Path, title: str) -> None:
    """Rows: videos, the truth above the prediction; columns: moments from first to last."""
    moments = max(len(example.frames) for example in examples)
    figure = Figure(figsize=(2.6 * moments, 3.1 * len(examples) + 0.4), dpi=110)
    axes = figure.subplots(2 * len(examples), moments, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for index, example in enumerate(examples):
        for row, masks in enumerate((example.truth, example.predicted)):
            for axis, frame, mask in zip(axes[2 * index + row], example.frames, masks):
                axis.imshow(paint_objects(frame, mask))
            said = f"{example.name}, truth" if row == 0 else "prediction"
            heading = {"fontsize": 8, "loc": "left", "pad": 3, "parse_math": False}
            axes[2 * index + row, 0].set_title(said, **heading)
    _finish(figure, title)
    _save(figure, path)


def _finish(figure: Figure, title: str) -> None:
    for axis in figure.axes:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_frame_on(False)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left", parse_math=False)
    figure.set_layout_engine("constrained")


def _save(figure: Figure, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # names in any script; boxes will do
        figure.savefig(path)
