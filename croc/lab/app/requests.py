"""What the page may request. Every value is checked here: type and range."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.exceptions import HTTPException

from croc.config import ClusterConfig
from croc.lab.app.models import Model
from croc.lab.app.pictures import LONGER_PX, MAX_BYTES, MAX_MEGAPIXELS, Picture, find_picture

LIMITS: dict[str, Any] = {
    "box_px": 16,
    "k_start": (2, 24),
    "sharpness": (1.0, 200.0),
    "position_weight": (0.0, 8.0),
    "tokens": ("queries", "keys", "values", "last"),
    "bytes": MAX_BYTES,
    "megapixels": MAX_MEGAPIXELS,
    "longer_px": LONGER_PX,
}
"""As the page gets them."""
INFINITE = "inf"
"""JSON has no infinite number."""

Box = tuple[int, int, int, int]
"""x, y, width and height in pixels of the photograph."""


@dataclass(frozen=True)
class Query:
    """Two boxes on a picture and the clustering's settings, for one of the models."""

    page: str
    """The browser's page: its newer queries replace its older ones."""
    model: int
    picture: Picture
    boxes: tuple[Box, Box]
    seed: int
    config: ClusterConfig
    head: int
    view: int
    patch: int


def default_settings(config: ClusterConfig) -> dict[str, Any]:
    """A model's own settings, within the range of the page's controls."""
    settings: dict[str, Any] = {"tokens": config.tokens}
    for name in ("position_weight", "k_start", "sharpness"):
        value, (low, high) = getattr(config, name), LIMITS[name]
        settings[name] = INFINITE if math.isinf(value) else min(max(value, low), high)
    return settings


def read_query(body: bytes, models: Sequence[Model], pictures: dict[str, Picture]) -> Query:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "The request is not JSON.") from None
    if not isinstance(fields, dict):
        raise HTTPException(400, "The request is not a JSON object.")

    def integer(name: str, low: int, high: int) -> int:
        return _check(name, fields.get(name, 0), low, high, int)

    page, picture_id = fields.get("page"), fields.get("picture")
    for value in (page, picture_id):
        if not isinstance(value, str) or not 0 < len(value) <= 64:
            raise HTTPException(400, "page and picture must be short strings.")
    number = integer("model", 0, len(models) - 1)
    model, picture = models[number], find_picture(pictures, str(picture_id))
    config = _cluster_config(default_settings(model.cluster) | fields, model.cluster)
    boxes = fields.get("boxes")
    if not isinstance(boxes, list) or len(boxes) != 2:
        raise HTTPException(400, "boxes must be two.")
    return Query(
        page=str(page),
        model=number,
        picture=picture,
        boxes=(_box(boxes[0], picture), _box(boxes[1], picture)),
        seed=integer("seed", 0, 2**31 - 1),
        config=config,
        head=integer("head", 0, model.heads(config.tokens) - 1),
        view=integer("view", 0, 1),
        patch=integer("patch", 0, model.grid**2 - 1),
    )


def _check(name: str, value: Any, low: int | float, high: int | float, *types: type) -> Any:
    """The comparison also refuses NaN, and the type true and false."""
    if type(value) not in types or not low <= value <= high:
        raise HTTPException(400, f"{name} must be a number in {low:g} … {high:g}.")
    return value


def _cluster_config(fields: dict[str, Any], config: ClusterConfig) -> ClusterConfig:
    if fields["tokens"] not in LIMITS["tokens"]:
        raise HTTPException(400, f"tokens must be one of {', '.join(LIMITS['tokens'])}.")
    weight = math.inf
    if fields["position_weight"] != INFINITE:
        limits = LIMITS["position_weight"]
        weight = float(_check("λ_pos", fields["position_weight"], *limits, int, float))
    elif config.variant != "paper":
        raise HTTPException(400, f"The {config.variant} variant has no infinite λ_pos.")
    k_start = _check("k_start", fields["k_start"], *LIMITS["k_start"], int)
    sharpness = _check("sharpness", fields["sharpness"], *LIMITS["sharpness"], int, float)
    return replace(
        config,
        tokens=fields["tokens"],
        k_start=k_start,
        k_max=None if config.k_max is None else min(config.k_max, k_start),
        position_weight=weight,
        sharpness=float(sharpness),
    )


def _box(value: Any, picture: Picture) -> Box:
    if not isinstance(value, list) or len(value) != 4 or any(type(v) is not int for v in value):
        raise HTTPException(400, "A box must be four integers: x, y, width, height.")
    x, y, width, height = value
    inside = 0 <= x <= picture.width - width and 0 <= y <= picture.height - height
    if min(width, height) < LIMITS["box_px"] or not inside:
        message = f"A box must be within the photograph, {LIMITS['box_px']} px or wider."
        raise HTTPException(400, message)
    return x, y, width, height
