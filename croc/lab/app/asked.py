"""What the page asks for, every value checked: types, ranges, and nothing that is no number."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from croc.config import ClusterConfig
from croc.lab.app.models import Model
from croc.lab.app.pictures import Picture, Pictures
from croc.lab.app.refusal import Refusal

LEAST_BOX_PX = 16
TOKENS = ("queries", "keys", "values", "last")
K_START = (2, 24)
SHARPNESS = (1.0, 200.0)
POSITION_WEIGHT = (0.0, 8.0)
INFINITE = "inf"
"""JSON has no infinite number."""
LARGEST_SEED = 2**31 - 1
LONGEST_WORD = 64

Box = tuple[int, int, int, int]
"""x, y, width and height in pixels of the photograph."""


@dataclass(frozen=True)
class Asked:
    """A picture, two boxes on it, and a setting of the clustering for one of the models."""

    page: str
    """Which open page asks: its newer requests replace its older ones."""
    model: int
    picture: Picture
    boxes: tuple[Box, Box]
    seed: int
    config: ClusterConfig
    head: int
    view: int
    patch: int


def read_json(data: bytes) -> dict[str, Any]:
    try:
        page = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Refusal("The request is no JSON.") from None
    if not isinstance(page, dict):
        raise Refusal("The request is no JSON object.")
    return page


def read_asked(page: dict[str, Any], models: Sequence[Model], pictures: Pictures) -> Asked:
    number = whole(page, "model", 0, len(models) - 1)
    model, picture = models[number], pictures.get(word(page, "picture"))
    config = _cluster_config(page, model.cluster)
    return Asked(
        page=word(page, "page"),
        model=number,
        picture=picture,
        boxes=_boxes(page.get("boxes"), picture),
        seed=whole(page, "seed", 0, LARGEST_SEED, 0),
        config=config,
        head=whole(page, "head", 0, model.heads(config.tokens) - 1, 0),
        view=whole(page, "view", 0, 1, 0),
        patch=whole(page, "patch", 0, model.grid**2 - 1, 0),
    )


def _cluster_config(page: dict[str, Any], default: ClusterConfig) -> ClusterConfig:
    tokens: Any = page.get("tokens", default.tokens)
    if tokens not in TOKENS:
        raise Refusal(f"tokens must be one of {', '.join(TOKENS)}.")
    k_start = whole(page, "k_start", *K_START, min(default.k_start, K_START[1]))
    weight = page.get("position_weight", _as_json(default.position_weight))
    if weight == INFINITE:
        weight = math.inf
        if default.variant == "released":
            raise Refusal("An infinite λ_pos is for the paper's variant; this run is released's.")
    else:
        weight = real({"position_weight": weight}, "position_weight", *POSITION_WEIGHT)
    return replace(
        default,
        tokens=tokens,
        k_start=k_start,
        k_max=None if default.k_max is None else min(default.k_max, k_start),
        position_weight=weight,
        sharpness=real(page, "sharpness", *SHARPNESS, default.sharpness),
    )


def defaults(config: ClusterConfig) -> dict[str, Any]:
    """A model's own setting, as the page's controls can show it."""
    weight = config.position_weight
    return {
        "position_weight": INFINITE if math.isinf(weight) else _within(weight, POSITION_WEIGHT),
        "k_start": min(max(config.k_start, K_START[0]), K_START[1]),
        "sharpness": _within(config.sharpness, SHARPNESS),
        "tokens": config.tokens,
    }


def whole(page: dict[str, Any], name: str, least: int, most: int, default: Any = None) -> int:
    value = page.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise Refusal(f"{name} must be a whole number in {least} … {most}.")
    return value


def real(page: dict[str, Any], name: str, least: float, most: float, default: Any = None) -> float:
    value = page.get(name, default)
    if type(value) not in (int, float) or not least <= value <= most:
        raise Refusal(f"{name} must be a number in {least:g} … {most:g}.")
    return float(value)


def word(page: dict[str, Any], name: str) -> str:
    value = page.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_WORD:
        raise Refusal(f"{name} must be a short word.")
    return value


def _boxes(value: Any, picture: Picture) -> tuple[Box, Box]:
    if not isinstance(value, list) or len(value) != 2:
        raise Refusal("boxes must be two.")
    first, second = (_box(box, picture) for box in value)
    return first, second


def _box(value: Any, picture: Picture) -> Box:
    if not isinstance(value, list) or len(value) != 4 or any(type(v) is not int for v in value):
        raise Refusal("A box must be four whole numbers: x, y, width, height.")
    x, y, width, height = value
    inside = 0 <= x <= picture.width - width and 0 <= y <= picture.height - height
    if min(width, height) < LEAST_BOX_PX or not inside:
        raise Refusal(f"A box must lie within the photograph, {LEAST_BOX_PX} px wide or more.")
    return x, y, width, height


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _as_json(value: float) -> float | str:
    return INFINITE if math.isinf(value) else value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
