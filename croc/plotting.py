"""Colors, and what charts have in common."""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from croc.io import replacing

# Okabe and Ito's, which color-blind readers can tell apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
MARKERS = "osD^vP*X"
# Twelve that color-blind readers can tell apart, found by a search from Okabe and Ito's: any two
# differ by ΔE 38, and by 25 with protanopia or deuteranopia (Machado 2009); over a gray photograph
# by 18, the first eight by 21. The darkest come last.
PALETTE_HEX = "d98801 0c97ff eff000 c5488f 53ff7a 0733d7 a9755b 00e6ff bb2601 b3f5cc 073826 2d104d"
PALETTE = torch.tensor(list(bytes.fromhex(PALETTE_HEX))).view(-1, 3) / 255.0
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
    with replacing(path, shared=True) as partial:
        figure.savefig(partial, format="png")
