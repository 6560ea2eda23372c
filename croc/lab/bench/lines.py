"""Whether a cost grows linearly: the straight line by least squares, and how far it is off."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Line:
    """y ≈ slope · x + intercept."""

    slope: float
    intercept: float
    r2: float
    """Share of the variance that the line explains."""
    worst: float
    """The largest |y − line| / y."""

    def at(self, x: float | int) -> float:
        return self.slope * x + self.intercept


def fit_line(x: Sequence[float | int], y: Sequence[float | int]) -> Line | None:
    """None for fewer than three points, through which a line says nothing."""
    if len(set(x)) < 3:
        return None
    across, up = np.asarray(x, float), np.asarray(y, float)
    slope, intercept = np.polyfit(across, up, 1)
    off = up - (slope * across + intercept)
    spread = ((up - up.mean()) ** 2).sum()
    r2 = 1.0 if spread == 0 else 1 - (off**2).sum() / spread
    return Line(float(slope), float(intercept), float(r2), float((abs(off) / up).max()))
