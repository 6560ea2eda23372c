"""Small synthetic scenes with dense labels, and short videos of them: nothing to download.

A scene is a background of two to four kinds of stuff, one below the other, and two to six
overlapping objects on it, lit from one side. A class is a shape and a texture; its colors vary.
Everything follows from (seed, index), and `make_video`'s first frame is `make_scene`'s image.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import UInt8
from numpy.random import Generator, Philox

from croc.data import scene_textures as paint
from croc.data.scene_textures import uniform

Pair = tuple[float, float]
CLASSES: tuple[str, ...] = (*paint.STUFF, *paint.THINGS)

_HUES = {"sky": 0.57, "water": 0.52, "grass": 0.27, "sand": 0.1, "tree": 0.28}
_BACKGROUNDS = (
    *("sky grass", "sky sand", "sky water sand", "sky water grass", "sky grass water"),
    *("sky wall grass", "sky sand water", "sky grass sand water", "sky wall sand grass"),
    *("wall sand", "wall grass sand", "wall water", "water sand", "water grass sand"),
)
_SWELL = {"sky": 0.0, "water": 0.01, "grass": 0.1, "sand": 0.06, "wall": 0.0}
_HOMES = {"fish": ("water",), "star": ("sky", "sand"), "house": ("grass",), "tree": ("grass",)}
_TURN = {"ball": 0.9, "star": 0.5, "fish": 0.3, "crate": 0.12, "cup": 0.1}


@dataclass(frozen=True)
class Scene:
    """An image, the class of each pixel (an index into CLASSES) and its object."""

    image: UInt8[np.ndarray, "h w 3"]
    labels: UInt8[np.ndarray, "h w"]
    instances: UInt8[np.ndarray, "h w"]
    """0 for stuff; objects count from 1, those behind first."""


@dataclass(frozen=True)
class _Band:
    """Stuff below a wavy upper border; lengths are in image sides."""

    kind: str
    top: float
    swell: float
    tilt: float
    look: paint.Look


@dataclass(frozen=True)
class _Thing:
    """An object at frame 0, and its change per frame."""

    kind: str
    x: float
    y: float
    size: float  # half of its width
    turn: float  # tangent of half the angle: rotations stay rational
    mirrored: bool
    grounded: bool  # casts a shadow at its foot
    velocity: Pair
    growth: float  # cycles per frame of its size
    spin: float  # and of its rocking
    look: paint.Look


def make_scene(seed: int, index: int, size_px: int = 96) -> Scene:
    """The index-th scene of a seed."""
    return make_video(seed, index, frames=1, size_px=size_px)[0]


def make_video(seed: int, index: int, frames: int = 12, size_px: int = 96) -> list[Scene]:
    """The scene with moving objects and a drifting camera; objects keep their numbers."""
    rng = _generator(seed, index, 0)
    bands = _draw_bands(rng)
    side = 1 if rng.random() < 0.5 else -1
    light = (side * uniform(rng, 0.35, 0.9), -uniform(rng, 0.4, 0.9))
    drift = (uniform(rng, -0.012, 0.012), uniform(rng, -0.004, 0.004))
    exposure = uniform(rng, 0.75, 1.3)
    gain = np.array([[[exposure * uniform(rng, 0.85, 1.15)]] for _ in range(3)], np.float32)
    haze = uniform(rng, 0.0, 0.15)
    things = _draw_things(rng, bands)

    scenes: list[Scene] = []
    for time in range(frames):
        camera = (drift[0] * time, drift[1] * time)
        colors = np.zeros((3, size_px, size_px), np.float32)
        labels, instances = np.zeros((2, size_px, size_px), np.uint8)
        _render_bands(colors, labels, bands, camera)
        for number, thing in enumerate(things, start=1):
            _render_thing(colors, labels, instances, thing, number, time, camera, light)
        # Haze, exposure and color cast, a darker rim and sensor noise.
        x, y = _grid(size_px)
        colors += haze / (1 - haze)
        colors *= gain * (270 - 115 * ((x - 0.5) ** 2 + (y - 0.5) ** 2)) * (1 - haze)
        noise = _generator(seed, index, 1 + time).random(colors.shape, dtype=np.float32)
        levels = np.clip(colors + (18 * noise - 8.5), 0, 255).astype(np.uint8)
        scenes.append(Scene(np.ascontiguousarray(levels.transpose(1, 2, 0)), labels, instances))
    return scenes


def _generator(seed: int, index: int, stream: int) -> Generator:
    """Independent numbers for each (seed, index, stream)."""
    key = np.array([seed % 2**64, index % 2**64], np.uint64)
    return Generator(Philox(key=key, counter=[0, 0, 0, stream]))


def _draw_bands(rng: Generator) -> list[_Band]:
    """Stuff from top to bottom; the first begins above the image."""
    kinds = _BACKGROUNDS[int(rng.random() * len(_BACKGROUNDS))].split()
    tops = [-1.0, uniform(rng, 0.25, 0.5)]
    while len(tops) < len(kinds):
        tops.append(tops[-1] + (1 - tops[-1]) * uniform(rng, 0.25, 0.55))
    bands: list[_Band] = []
    for kind, top in zip(kinds, tops):
        look = paint.random_look(rng, _HUES.get(kind, 0.0), 0.22 if kind in _HUES else 0.5)
        swell = _SWELL[kind] * uniform(rng, 0.4, 1.3) + (0.01 if top > 0.5 else 0.0)
        tilt = uniform(rng, -0.1, 0.1) if top > 0 else 0.0
        bands.append(_Band(kind, top, swell, tilt, look))
    return bands


def _draw_things(rng: Generator, bands: list[_Band]) -> list[_Thing]:
    """Two to six objects, sorted from far to near, none hidden by another."""
    things: list[_Thing] = []
    count, kinds = 2 + int(rng.random() * 5), tuple(paint.THINGS)
    for _ in range(20):
        kind = kinds[int(rng.random() * len(kinds))]
        low, high = _heights(rng, kind, bands)
        # What is lower in the image is nearer and larger.
        size = 0.105 + 0.2 * rng.random() * rng.random()
        y = min(max(uniform(rng, low, high), 0.1), 0.97 - 0.5 * size)
        x, size = uniform(rng, 0.06, 0.94), size * (0.75 + 0.6 * y)
        gaps = ((max(abs(x - o.x), abs(y - o.y)), size + o.size) for o in things)
        if all(gap > 0.62 * reach for gap, reach in gaps):
            tilt = _TURN.get(kind, 0.04)
            thing = _Thing(
                kind=kind,
                x=x,
                y=y,
                size=size,
                turn=uniform(rng, -tilt, tilt),
                mirrored=rng.random() < 0.5,
                grounded=y + size > bands[1].top,
                velocity=(uniform(rng, -0.02, 0.02), uniform(rng, -0.006, 0.006)),
                growth=uniform(rng, -0.03, 0.03),
                spin=uniform(rng, -0.05, 0.05),
                look=paint.random_look(rng, _HUES.get(kind, 0.0), 0.25 if kind in _HUES else 0.5),
            )
            things.append(thing)
        if len(things) == count:
            break
    return sorted(things, key=lambda thing: thing.y + thing.size)


def _heights(rng: Generator, kind: str, bands: list[_Band]) -> Pair:
    """Between which heights an object stands: mostly where its kind belongs."""
    homes = _HOMES.get(kind, ("grass", "sand"))
    tops = [*(max(band.top, 0.05) for band in bands), 1.0]
    spans = [(tops[i], tops[i + 1]) for i, band in enumerate(bands) if band.kind in homes]
    if not spans or rng.random() < 0.15:
        return bands[1].top - 0.1, 0.95
    return spans[int(rng.random() * len(spans))]


@lru_cache(maxsize=8)
def _grid(size_px: int) -> tuple[paint.Row, paint.Column]:
    """Pixel centers of the unit square, as open grids."""
    line = (np.arange(size_px, dtype=np.float32) + 0.5) / size_px
    line.setflags(write=False)
    return line[None, :], line[:, None]


def _render_bands(
    colors: paint.Colors, labels: UInt8[np.ndarray, "h w"], bands: list[_Band], camera: Pair
) -> None:
    size_px = len(labels)
    columns, lines = _grid(size_px)
    # What is far drifts less.
    pans = [columns + camera[0] * (0.4 + 0.6 * max(band.top, 0)) for band in bands]
    borders = [
        band.top
        + camera[1]
        + band.tilt * (x - 0.5)
        + band.swell * (2 * paint.noise(band.look.lattice, 0 * x[:, :1], 3 * x) - 1)
        for band, x in zip(bands, pans)
    ]
    # Each band is drawn down to the row where the next one covers everything.
    ends = [*(int(float(border.max()) * size_px) + 2 for border in borders[1:]), size_px]
    for band, x, border, end in zip(bands, pans, borders, ends):
        rows = slice(max(int(float(border.min()) * size_px) - 1, 0), max(end, 0))
        y = lines[rows]
        cover = np.clip(0.5 + (y - border) * size_px, 0, 1)
        horizon = max(band.top, -0.3)
        near = np.clip((y - camera[1] - horizon) / (1 - horizon), 0, 1)
        color = paint.STUFF[band.kind](x, y - camera[1], near, band.look)
        colors[:, rows] += (color - colors[:, rows]) * cover
        labels[rows][cover > 0.5] = CLASSES.index(band.kind)


def _render_thing(
    colors: paint.Colors,
    labels: UInt8[np.ndarray, "h w"],
    instances: UInt8[np.ndarray, "h w"],
    thing: _Thing,
    number: int,
    time: int,
    camera: Pair,
    light: Pair,
) -> None:
    """One object and its shadow, inside the window that they can reach."""
    size_px = len(labels)
    center_x = thing.x + thing.velocity[0] * time - camera[0]
    center_y = thing.y + thing.velocity[1] * time + camera[1]
    growth, rocking = paint.wave(np.array([thing.growth * time, thing.spin * time])).tolist()
    size, turn = thing.size * (1 + 0.25 * growth), thing.turn + 0.12 * rocking
    x, y = _grid(size_px)
    low = [max(int((center - 1.5 * size) * size_px), 0) for center in (center_y, center_x)]
    high = [max(int((center + 1.5 * size) * size_px + 1), 0) for center in (center_y, center_x)]
    rows, columns = map(slice, low, high)
    right, down = (x[:, columns] - center_x) / size, (y[rows] - center_y) / size
    if not right.size or not down.size:
        return
    # From the image's axes to the object's own.
    scale = 1 / (1 + turn * turn)
    cos, sin = (1 - turn * turn) * scale, 2 * turn * scale
    sign = -1 if thing.mirrored else 1
    towards = (sign * (cos * light[0] + sin * light[1]), cos * light[1] - sin * light[0])
    u, v = sign * (cos * right + sin * down), cos * down - sin * right
    at = paint.Local(u, v, 1 / (size * size_px), towards)
    distance, color = paint.THINGS[thing.kind](at, thing.look)
    # A soft elliptic shadow at the foot of the object, away from the light.
    u, v = right + 0.45 * light[0], (down - 0.85) * 3.2
    shadow = 0.6 * np.clip(1 - 0.85 * (u * u + v * v), 0, 1)
    cover, pixels = at.inside(distance), colors[:, rows, columns]
    pixels *= 1 - thing.grounded * shadow
    pixels += (color - pixels) * cover
    labels[rows, columns][cover > 0.5] = CLASSES.index(thing.kind)
    instances[rows, columns][cover > 0.5] = number
