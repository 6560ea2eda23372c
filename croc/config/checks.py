"""What a value may be, said in one line that names its flag."""

import dataclasses
import math
from typing import Any

from croc.errors import UserError


def require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)


def require_share(name: str, *values: float) -> None:
    require(all(0.0 <= value <= 1.0 for value in values), f"{name} must be in 0 … 1: {values}")


def require_least(config: Any, section: str, least: float | int, *names: str) -> None:
    """Numbers, or tuples of them, of at least so much; None and words pass."""
    for name in names:
        value, flag = getattr(config, name), f"--{section}.{name}".replace("_", "-")
        values = value if isinstance(value, tuple) else (value,)
        numbers = [number for number in values if isinstance(number, int | float)]
        right = all(number >= least for number in numbers) and values != ()
        require(right, f"{flag} must be at least {least}: {value}")


def require_finite(section: str, config: Any) -> None:
    for field_ in dataclasses.fields(config):
        value = getattr(config, field_.name)
        values = value if isinstance(value, tuple) else (value,)
        numbers = [number for number in values if isinstance(number, float)]
        flag = f"--{section}.{field_.name}".replace("_", "-")
        endless = flag == "--cluster.position-weight" and value == math.inf
        require(endless or all(map(math.isfinite, numbers)), f"{flag} must be finite: {value}")
