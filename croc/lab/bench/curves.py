"""How a cost grows with several quantities, and whether linearly."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from croc.lab.bench.lines import Line, fit_line
from croc.lab.bench.served import DEFINITION, KERNEL

# Okabe and Ito's blue and vermilion; the line's kind tells them apart without colour.
LOOKS: dict[str, dict[str, Any]] = {
    KERNEL: {"color": "#0072B2", "marker": "o", "ls": "-"},
    DEFINITION: {"color": "#D55E00", "marker": "s", "ls": ":", "mfc": "white"},
}


@dataclass(frozen=True)
class Point:
    value: int
    ms: float
    by: str
    """Kernel or definition."""


@dataclass(frozen=True)
class Curve:
    """How the cost grows with one quantity, all else being fixed."""

    quantity: str
    points: tuple[Point, ...]

    @property
    def ways(self) -> list[str]:
        return list(dict.fromkeys(point.by for point in self.points))

    def of(self, by: str) -> tuple[list[int], list[float]]:
        chosen = [point for point in self.points if point.by == by]
        return [point.value for point in chosen], [point.ms for point in chosen]

    def line(self, by: str) -> Line | None:
        return fit_line(*self.of(by))

    def describe(self) -> dict[str, Any]:
        lines = {way: self.line(way) for way in self.ways}
        told = {way: None if line is None else asdict(line) for way, line in lines.items()}
        return asdict(self) | {"lines": told}


def say(line: Line | None) -> str:
    if line is None:
        return "too few points for a line"
    return f"R² {line.r2:.4f}, off by {line.worst:.1%} at most"


def draw_curves(curves: Sequence[Curve], title: str, path: Path) -> None:
    rows = (len(curves) + 1) // 2
    figure = Figure(figsize=(10, 3.7 * rows + 0.3), dpi=120, layout="constrained")
    for axes, curve in zip(figure.subplots(rows, 2, squeeze=False).flat, curves):
        _draw(axes, curve)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.savefig(path)


def _draw(axes: Axes, curve: Curve) -> None:
    """On logarithmic scales where two ways are shown: their costs are far apart."""
    logarithmic = len(curve.ways) > 1
    for way in curve.ways:
        values, taken = curve.of(way)
        line = curve.line(way)
        axes.plot(values, taken, **LOOKS[way], lw=1.3, ms=5, label=way)
        if line:
            across = np.linspace(values[0], values[-1], 200)
            up = line.slope * across + line.intercept
            seen = up > 0.5 * min(taken)
            axes.plot(
                across[seen], up[seen], "--", color="#777777", lw=1.2, label=f"line: {say(line)}"
            )
    axes.set_title(curve.quantity, fontsize=9, loc="left")
    axes.set_ylabel("ms, both scales logarithmic" if logarithmic else "ms", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
        ticks = sorted({point.value for point in curve.points})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(top=6 * max(point.ms for point in curve.points))
    else:
        axes.set_xlim(0, 1.05 * max(point.value for point in curve.points))
        axes.set_ylim(0, 1.25 * max(point.ms for point in curve.points))
    axes.legend(fontsize=8, frameon=False, loc="upper left")
