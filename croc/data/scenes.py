"""Small synthetic scenes with dense labels, and short videos of them: nothing to download.

A scene is a backdrop of two to four kinds of stuff below one another, and on it two to six
things that overlap, lit from one side. A class is a shape and a texture; its colours vary.
Everything follows from (seed, index): `make_video`'s first frame is `make_scene`'s picture.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from jaxtyping import Float32, UInt8
from numpy.random import Generator, Philox

from croc.data import scene_textures as paint

Pair = tuple[float, float]
CLASSES: tuple[str, ...] = (*paint.STUFF, *paint.THINGS)

_HUES = {"sky": 0.57, "water": 0.52, "grass": 0.27, "sand": 0.1, "tree": 0.28}
_BACKDROPS = (
    *("sky grass", "sky sand", "sky water sand", "sky water grass", "sky grass water"),
    *("sky wall grass", "sky sand water", "sky grass sand water", "sky wall sand grass"),
    *("wall sand", "wall grass sand", "wall water", "water sand", "water grass sand"),
)
_SWELL = {"sky": 0.0, "water": 0.01, "grass": 0.1, "sand": 0.06, "wall": 0.0}
_HOMES = {"fish": ("water",), "star": ("sky", "sand"), "house": ("grass",), "tree": ("grass",)}
_TURN = {"ball": 0.9, "star": 0.5, "fish": 0.3, "crate": 0.12, "cup": 0.1}


@dataclass(frozen=True)
class Scene:
    """A picture, the class of each pixel (an index into CLASSES) and its object."""

    image: UInt8[np.ndarray, "h w 3"]
    labels: UInt8[np.ndarray, "h w"]
    instances: UInt8[np.ndarray, "h w"]
    """0 for stuff; objects count from 1, those behind first."""


@dataclass(frozen=True)
class _Band:
    """Stuff from a wavy upper border downwards; lengths are in picture sides."""

    kind: str
    top: float
    swell: float
    tilt: float
    look: paint.Look


@dataclass(frozen=True)
class _Thing:
    """An object at frame 0, and its change a frame."""

    kind: str
    x: float
    y: float
    size: float
    """Half of its width."""
    turn: float
    """Tangent of half the angle: rotations stay rational."""
    mirrored: bool
    grounded: bool
    """Whether it casts a shadow at its foot."""
    velocity: Pair
    growth: float
    spin: float
    """Cycles of its size, and of its rocking, a frame."""
    look: paint.Look


@dataclass(frozen=True)
class _World:
    """All that is random about a scene but the sensor's noise; gain is exposure and cast."""

    bands: tuple[_Band, ...]
    things: tuple[_Thing, ...]
    light: Pair
    drift: Pair
    gain: Float32[np.ndarray, "3 1 1"]
    haze: float


@dataclass(frozen=True)
class _Canvas:
    """A scene in the making."""

    colours: paint.Colours
    labels: UInt8[np.ndarray, "h w"]
    instances: UInt8[np.ndarray, "h w"]


def make_scene(seed: int, index: int, size_px: int = 96) -> Scene:
    """The index-th scene of a seed."""
    return make_video(seed, index, frames=1, size_px=size_px)[0]


def make_video(seed: int, index: int, frames: int = 12, size_px: int = 96) -> list[Scene]:
    """The scene with its objects moving and the camera drifting; objects keep their numbers."""
    world = _draw_world(_generator(seed, index, 0))
    return [_render(world, t, size_px, _generator(seed, index, 1 + t)) for t in range(frames)]


def _generator(seed: int, index: int, stream: int) -> Generator:
    """Independent numbers for each (seed, index, stream), whatever was drawn before."""
    key = np.array([seed % 2**64, index % 2**64], np.uint64)
    return Generator(Philox(key=key, counter=[0, 0, 0, stream]))


def _draw_world(rng: Generator) -> _World:
    bands = _draw_bands(rng)
    side = 1 if rng.random() < 0.5 else -1
    light = (side * paint.uniform(rng, 0.35, 0.9), -paint.uniform(rng, 0.4, 0.9))
    drift = (paint.uniform(rng, -0.012, 0.012), paint.uniform(rng, -0.004, 0.004))
    exposure = paint.uniform(rng, 0.75, 1.3)
    gain = np.array([[[exposure * paint.uniform(rng, 0.85, 1.15)]] for _ in range(3)], np.float32)
    haze = paint.uniform(rng, 0.0, 0.15)
    return _World(bands, _draw_things(rng, bands), light, drift, gain, haze)


def _draw_bands(rng: Generator) -> tuple[_Band, ...]:
    """Stuff from top to bottom, the first from above the picture."""
    kinds = _BACKDROPS[int(rng.random() * len(_BACKDROPS))].split()
    tops = [-1.0, paint.uniform(rng, 0.25, 0.5)]
    while len(tops) < len(kinds):
        tops.append(tops[-1] + (1 - tops[-1]) * paint.uniform(rng, 0.25, 0.55))
    return tuple(_draw_band(rng, kind, top) for kind, top in zip(kinds, tops))


def _draw_band(rng: Generator, kind: str, top: float) -> _Band:
    look = paint.random_look(rng, _HUES.get(kind, 0.0), 0.22 if kind in _HUES else 0.5)
    swell = _SWELL[kind] * paint.uniform(rng, 0.4, 1.3) + (0.01 if top > 0.5 else 0.0)
    return _Band(kind, top, swell, paint.uniform(rng, -0.1, 0.1) if top > 0 else 0.0, look)


def _draw_things(rng: Generator, bands: tuple[_Band, ...]) -> tuple[_Thing, ...]:
    """Two to six objects, sorted from far to near, none hidden by another."""
    things: list[_Thing] = []
    wanted, kinds = 2 + int(rng.random() * 5), tuple(paint.THINGS)
    for _ in range(20):
        kind = kinds[int(rng.random() * len(kinds))]
        x, y, size = _draw_spot(rng, *_span(rng, kind, bands))
        gaps = ((max(abs(x - o.x), abs(y - o.y)), size + o.size) for o in things)
        if all(gap > 0.62 * reach for gap, reach in gaps):
            things.append(_draw_thing(rng, kind, x, y, size, y + size > bands[1].top))
        if len(things) == wanted:
            break
    return tuple(sorted(things, key=lambda thing: thing.y + thing.size))


def _draw_spot(rng: Generator, low: float, high: float) -> tuple[float, float, float]:
    """A place and a size: what is lower in the picture is nearer and larger."""
    size = 0.105 + 0.2 * rng.random() * rng.random()
    y = min(max(paint.uniform(rng, low, high), 0.1), 0.97 - 0.5 * size)
    return paint.uniform(rng, 0.06, 0.94), y, size * (0.75 + 0.6 * y)


def _draw_thing(
    rng: Generator, kind: str, x: float, y: float, size: float, grounded: bool
) -> _Thing:
    tilt = _TURN.get(kind, 0.04)
    return _Thing(
        kind=kind,
        x=x,
        y=y,
        size=size,
        turn=paint.uniform(rng, -tilt, tilt),
        mirrored=rng.random() < 0.5,
        grounded=grounded,
        velocity=(paint.uniform(rng, -0.02, 0.02), paint.uniform(rng, -0.006, 0.006)),
        growth=paint.uniform(rng, -0.03, 0.03),
        spin=paint.uniform(rng, -0.05, 0.05),
        look=paint.random_look(rng, _HUES.get(kind, 0.0), 0.25 if kind in _HUES else 0.5),
    )


def _span(rng: Generator, kind: str, bands: tuple[_Band, ...]) -> Pair:
    """Between which heights an object stands: mostly where its kind belongs."""
    homes = _HOMES.get(kind, ("grass", "sand"))
    tops = [*(max(band.top, 0.05) for band in bands), 1.0]
    spans = [(tops[i], tops[i + 1]) for i, band in enumerate(bands) if band.kind in homes]
    if not spans or rng.random() < 0.15:
        return bands[1].top - 0.1, 0.95
    return spans[int(rng.random() * len(spans))]


@lru_cache(maxsize=8)
def _grid(size_px: int) -> tuple[paint.Row, paint.Column]:
    """Pixel centres of the unit square, as open grids."""
    line = (np.arange(size_px, dtype=np.float32) + 0.5) / size_px
    line.setflags(write=False)
    return line[None, :], line[:, None]


def _render(world: _World, time: int, size_px: int, rng: Generator) -> Scene:
    camera = (world.drift[0] * time, world.drift[1] * time)
    flat = np.zeros((2, size_px, size_px), np.uint8)
    canvas = _Canvas(np.zeros((3, size_px, size_px), np.float32), flat[0], flat[1])
    borders = [_border(band, size_px, camera) for band in world.bands]
    ends = [*(int(float(border.max()) * size_px) + 2 for border in borders[1:]), size_px]
    for band, border, end in zip(world.bands, borders, ends):
        _draw_stuff(canvas, band, border, max(end, 0), camera)
    for number, thing in enumerate(world.things, start=1):
        _place(canvas, _move(thing, time, camera), number, world.light)
    return Scene(_expose(canvas.colours, world, rng), canvas.labels, canvas.instances)


def _pan(band: _Band, size_px: int, camera: Pair) -> paint.Row:
    """Where the columns look; what is far drifts less."""
    return _grid(size_px)[0] + camera[0] * (0.4 + 0.6 * max(band.top, 0))


def _border(band: _Band, size_px: int, camera: Pair) -> paint.Row:
    """The height at which a band begins in each column."""
    x = _pan(band, size_px, camera)
    swell = band.swell * (2 * paint.noise(band.look.lattice, 0 * x[:, :1], 3 * x) - 1)
    return band.top + camera[1] + band.tilt * (x - 0.5) + swell


def _draw_stuff(canvas: _Canvas, band: _Band, border: paint.Row, end: int, camera: Pair) -> None:
    """Covers all below the band's border, down to row `end`, where the next one covers all."""
    size_px = len(canvas.labels)
    rows = slice(max(int(float(border.min()) * size_px) - 1, 0), end)
    y = _grid(size_px)[1][rows]
    cover = np.clip(0.5 + (y - border) * size_px, 0, 1)
    horizon = max(band.top, -0.3)
    near = np.clip((y - camera[1] - horizon) / (1 - horizon), 0, 1)
    colour = paint.STUFF[band.kind](_pan(band, size_px, camera), y - camera[1], near, band.look)
    canvas.colours[:, rows] += (colour - canvas.colours[:, rows]) * cover
    canvas.labels[rows][cover > 0.5] = CLASSES.index(band.kind)


def _place(canvas: _Canvas, thing: _Thing, number: int, light: Pair) -> None:
    """Draws one object and its shadow inside its window."""
    size_px = len(canvas.labels)
    rows, columns = (_window(c, 1.5 * thing.size, size_px) for c in (thing.y, thing.x))
    x, y = _grid(size_px)
    right, down = (x[:, columns] - thing.x) / thing.size, (y[rows] - thing.y) / thing.size
    if not right.size or not down.size:
        return
    at = _local_frame(thing, right, down, light, size_px)
    distance, colour = paint.THINGS[thing.kind](at, thing.look)
    cover, pixels = at.inside(distance), canvas.colours[:, rows, columns]
    pixels *= 1 - thing.grounded * _shadow(right, down, light)
    pixels += (colour - pixels) * cover
    canvas.labels[rows, columns][cover > 0.5] = CLASSES.index(thing.kind)
    canvas.instances[rows, columns][cover > 0.5] = number


def _window(centre: float, reach: float, size_px: int) -> slice:
    """The pixels within reach along one axis."""
    ends = ((centre - reach) * size_px, (centre + reach) * size_px + 1)
    return slice(*(max(int(end), 0) for end in ends))


def _local_frame(
    thing: _Thing, right: paint.Row, down: paint.Column, light: Pair, size_px: int
) -> paint.Local:
    """Turns the picture's axes into the object's own."""
    scale = 1 / (1 + thing.turn * thing.turn)
    cos, sin = (1 - thing.turn * thing.turn) * scale, 2 * thing.turn * scale
    sign = -1 if thing.mirrored else 1
    towards = (sign * (cos * light[0] + sin * light[1]), cos * light[1] - sin * light[0])
    u, v = sign * (cos * right + sin * down), cos * down - sin * right
    return paint.Local(u, v, 1 / (thing.size * size_px), towards)


def _shadow(right: paint.Row, down: paint.Column, light: Pair) -> paint.Plane:
    """A soft ellipse at the foot of an object, away from the light."""
    u, v = right + 0.45 * light[0], (down - 0.85) * 3.2
    return 0.6 * np.clip(1 - 0.85 * (u * u + v * v), 0, 1)


def _swing(x: float) -> float:
    """Between -1 and 1 with period 1, from 0 on."""
    t = 2 * (x % 1) - 1
    return 4 * t * (abs(t) - 1)


def _move(thing: _Thing, time: int, camera: Pair) -> _Thing:
    """The object at a later frame, as the camera sees it."""
    return replace(
        thing,
        x=thing.x + thing.velocity[0] * time - camera[0],
        y=thing.y + thing.velocity[1] * time + camera[1],
        size=thing.size * (1 + 0.25 * _swing(thing.growth * time)),
        turn=thing.turn + 0.12 * _swing(thing.spin * time),
    )


def _expose(image: paint.Colours, world: _World, rng: Generator) -> UInt8[np.ndarray, "h w 3"]:
    """Haze, exposure and colour cast, a darker rim and the sensor's noise."""
    x, y = _grid(image.shape[-1])
    image += world.haze / (1 - world.haze)
    image *= world.gain * (270 - 115 * ((x - 0.5) ** 2 + (y - 0.5) ** 2)) * (1 - world.haze)
    image += 18 * rng.random(image.shape, dtype=np.float32) - 8.5
    levels = np.clip(image, 0, 255, out=image).astype(np.uint8)
    return np.ascontiguousarray(levels.transpose(1, 2, 0))
