"""What the charts of sweeps and of curves have in common."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from croc.io import replacing

# Okabe and Ito's, which colour-blind readers can tell apart; markers and dashes differ, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
LEAST_POINTS = 2.0
"""That an axis of scores spans: differences of hundredths must not look like much."""


def span_enough(axes: Axes) -> None:
    low, high = axes.get_ylim()
    spare = max(0.0, LEAST_POINTS - (high - low)) / 2
    axes.set_ylim(low - spare, high + spare)


def verbatim(text: str) -> str:
    """Between two dollars matplotlib would read a formula."""
    return text.replace("$", r"\$")


def save_chart(figure: Figure, path: Path) -> None:
    with replacing(path) as partial:
        figure.savefig(partial, format="png")
