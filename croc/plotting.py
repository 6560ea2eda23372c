"""Colours, and what charts have in common."""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from croc.io import replacing

# Okabe and Ito's, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
# Twelve that colour-blind readers can tell apart, also over a photograph (test_figures.py). Found
# by a search from Okabe and Ito's; the first eight differ most, the darkest come last.
PALETTE = (
    torch.tensor(
        [
            (217, 136, 1),
            (12, 151, 255),
            (239, 240, 0),
            (197, 72, 143),
            (83, 255, 122),
            (7, 51, 215),
            (169, 117, 91),
            (0, 230, 255),
            (187, 38, 1),
            (179, 245, 204),
            (7, 56, 38),
            (45, 16, 77),
        ]
    )
    / 255.0
)
LEAST_POINTS = 2.0
"""Smallest range of a score axis: differences of hundredths must not look large."""


def span_enough(axes: Axes) -> None:
    low, high = axes.get_ylim()
    spare = max(0.0, LEAST_POINTS - (high - low)) / 2
    axes.set_ylim(low - spare, high + spare)


def verbatim(text: str) -> str:
    """Without matplotlib's formulas between dollars."""
    return text.replace("$", r"\$")


def save_chart(figure: Figure, path: Path) -> None:
    with replacing(path) as partial:
        figure.savefig(partial, format="png")
