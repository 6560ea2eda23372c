"""Small synthetic scenes with dense labels, and short videos of them: nothing to download.

A scene is a background of two to four kinds of stuff, one below the other, and two to six
overlapping objects on it, lit from one side. A class is a shape and a texture; its colors vary.
Everything follows from (seed, index), and `make_video`'s first frame is `make_scene`'s image.
Only + - * / % floor and sqrt touch pixels, which IEEE fixes to the bit, so that a scene is the
same on every platform: waves are parabolas and rotations are rational.
"""

from collections import namedtuple
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float32, UInt8
from numpy.random import Generator, Philox

Plane = Float32[np.ndarray, "h w"]
Colors = Float32[np.ndarray, "3 h w"]
Labels = UInt8[np.ndarray, "h w"]
Column = Float32[np.ndarray, "h 1"]
Row = Float32[np.ndarray, "1 w"]
Sprite = tuple[Plane, Colors]  # signed distance to an object's outline, and its colors
Pair = tuple[float, float]

LATTICE = 32  # side of the random grids under all noise, a power of two; they repeat beyond it
_TIPS = [(0, 1), (0.951057, 0.309017), (0.587785, -0.809017)]
PENTAGON = np.array(_TIPS + [(-x, y) for x, y in _TIPS[1:]], np.float32)  # away from a star's tips
_HUES = {"sky": 0.57, "water": 0.52, "grass": 0.27, "sand": 0.1, "tree": 0.28}
_BACKGROUNDS = (
    *("sky grass", "sky sand", "sky water sand", "sky water grass", "sky grass water"),
    *("sky wall grass", "sky sand water", "sky grass sand water", "sky wall sand grass"),
    *("wall sand", "wall grass sand", "wall water", "water sand", "water grass sand"),
)
_SWELL = {"sky": 0.0, "water": 0.01, "grass": 0.1, "sand": 0.06, "wall": 0.0}
_HOMES = {"fish": ("water",), "star": ("sky", "sand"), "house": ("grass",), "tree": ("grass",)}
_TURN = {"ball": 0.9, "star": 0.5, "fish": 0.3, "crate": 0.12, "cup": 0.1}

# What makes a region or object differ from others of its class: main, second and accent color, one
# per row; a random grid; the fineness of the texture, about 1; and its phase.
Look = namedtuple("Look", "palette lattice pitch phase")
# Stuff below a wavy upper border, and an object at frame 0 with its change per frame. Lengths are
# in image sides; a size is half a width, a turn the tangent of half an angle; growth and spin are
# cycles per frame of the size and of rocking; what is grounded casts a shadow at its foot.
_Band = namedtuple("_Band", "kind top swell tilt look")
_Thing = namedtuple("_Thing", "kind x y size turn mirrored grounded velocity growth spin look")


@dataclass(frozen=True)
class Scene:
    """An image, the class of each pixel (an index into CLASSES) and its object."""

    image: UInt8[np.ndarray, "h w 3"]
    labels: Labels
    instances: Labels
    """0 for stuff; objects count from 1, those behind first."""


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
            window, is_covered = _render_thing(colors, thing, time, camera, light)
            labels[window][is_covered] = CLASSES.index(thing.kind)
            instances[window][is_covered] = number
        # Haze, exposure and color cast, a darker rim and sensor noise.
        x, y = _grid(size_px)
        colors += haze / (1 - haze)
        colors *= gain * (270 - 115 * ((x - 0.5) ** 2 + (y - 0.5) ** 2)) * (1 - haze)
        grain = _generator(seed, index, 1 + time).random(colors.shape, dtype=np.float32)
        levels = np.clip(colors + (18 * grain - 8.5), 0, 255).astype(np.uint8)
        scenes.append(Scene(np.ascontiguousarray(levels.transpose(1, 2, 0)), labels, instances))
    return scenes


def _generator(seed: int, index: int, stream: int) -> Generator:
    """Independent numbers for each (seed, index, stream)."""
    key = np.array([seed % 2**64, index % 2**64], np.uint64)
    return Generator(Philox(key=key, counter=[0, 0, 0, stream]))


def uniform(rng: Generator, low: float, high: float) -> float:
    """A number from low to high. All draws are of this kind: their stream never changes."""
    return low + (high - low) * rng.random()


def _draw_bands(rng: Generator) -> list[_Band]:
    """Stuff from top to bottom; the first begins above the image."""
    kinds = _BACKGROUNDS[int(rng.random() * len(_BACKGROUNDS))].split()
    tops = [-1.0, uniform(rng, 0.25, 0.5)]
    while len(tops) < len(kinds):
        tops.append(tops[-1] + (1 - tops[-1]) * uniform(rng, 0.25, 0.55))
    bands: list[_Band] = []
    for kind, top in zip(kinds, tops):
        look = _draw_look(rng, kind, 0.22)
        swell = _SWELL[kind] * uniform(rng, 0.4, 1.3) + (0.01 if top > 0.5 else 0.0)
        tilt = uniform(rng, -0.1, 0.1) if top > 0 else 0.0
        bands.append(_Band(kind, top, swell, tilt, look))
    return bands


def _draw_things(rng: Generator, bands: list[_Band]) -> list[_Thing]:
    """Two to six objects, sorted from far to near, none hidden by another."""
    things: list[_Thing] = []
    count, kinds = 2 + int(rng.random() * 5), tuple(THINGS)
    for _ in range(20):
        kind = kinds[int(rng.random() * len(kinds))]
        # Mostly where its kind belongs.
        homes, ends = _HOMES.get(kind, ("grass", "sand")), [*(band.top for band in bands[1:]), 1.0]
        spans = [(max(b.top, 0.05), end) for b, end in zip(bands, ends) if b.kind in homes]
        if not spans or rng.random() < 0.15:
            low, high = bands[1].top - 0.1, 0.95
        else:
            low, high = spans[int(rng.random() * len(spans))]
        # What is lower in the image is nearer and larger.
        size = 0.105 + 0.2 * rng.random() * rng.random()
        y = min(max(uniform(rng, low, high), 0.1), 0.97 - 0.5 * size)
        x, size = uniform(rng, 0.06, 0.94), size * (0.75 + 0.6 * y)
        gaps = ((max(abs(x - o.x), abs(y - o.y)), size + o.size) for o in things)
        if all(gap > 0.62 * reach for gap, reach in gaps):
            turn = uniform(rng, -_TURN.get(kind, 0.04), _TURN.get(kind, 0.04))
            mirrored, grounded = rng.random() < 0.5, y + size > bands[1].top
            velocity = (uniform(rng, -0.02, 0.02), uniform(rng, -0.006, 0.006))
            growth, spin = uniform(rng, -0.03, 0.03), uniform(rng, -0.05, 0.05)
            motion = (velocity, growth, spin, _draw_look(rng, kind, 0.25))
            things.append(_Thing(kind, x, y, size, turn, mirrored, grounded, *motion))
        if len(things) == count:
            break
    return sorted(things, key=lambda thing: thing.y + thing.size)


def _draw_look(rng: Generator, kind: str, spread: float) -> Look:
    """Colors near the kind's hue: the second differs in brightness, the accent in all."""
    spread = spread if kind in _HUES else 0.5
    hue = _HUES.get(kind, 0.0) + uniform(rng, -spread, spread)
    saturation, value = uniform(rng, 0.12, 0.8), uniform(rng, 0.5, 0.95)
    other = value * uniform(rng, 0.42, 0.6) if value > 0.62 else value * uniform(rng, 1.5, 1.65)
    second = _hsv(hue + uniform(rng, -0.08, 0.08), saturation * uniform(rng, 0.5, 1.2), other)
    accent = _hsv(rng.random(), uniform(rng, 0.1, 0.7), uniform(rng, 0.75, 1.0))
    palette = np.array([_hsv(hue, saturation, value), second, accent], np.float32)
    lattice = rng.random((LATTICE, LATTICE), dtype=np.float32)
    return Look(palette, lattice, uniform(rng, 0.85, 1.2), rng.random())


def _hsv(hue: float, saturation: float, value: float) -> list[float]:
    """Red, green and blue from 0 to 1; the hue wraps at 1."""
    turns = [(n + 6 * hue) % 6 for n in (5, 3, 1)]
    return [value * (1 - saturation * min(max(min(k, 4 - k), 0), 1)) for k in turns]


@lru_cache(maxsize=8)
def _grid(size_px: int) -> tuple[Row, Column]:
    """Pixel centers of the unit square, as open grids."""
    line = (np.arange(size_px, dtype=np.float32) + 0.5) / size_px
    line.setflags(write=False)
    return line[None, :], line[:, None]


def _render_bands(colors: Colors, labels: Labels, bands: list[_Band], camera: Pair) -> None:
    size_px = len(labels)
    columns, lines = _grid(size_px)
    # What is far drifts less.
    pans = [columns + camera[0] * (0.4 + 0.6 * max(band.top, 0)) for band in bands]
    borders = [
        band.top
        + camera[1]
        + band.tilt * (x - 0.5)
        + band.swell * (2 * noise(band.look.lattice, 0 * x[:, :1], 3 * x) - 1)
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
        color = STUFF[band.kind](x, y - camera[1], near, band.look)
        colors[:, rows] += (color - colors[:, rows]) * cover
        labels[rows][cover > 0.5] = CLASSES.index(band.kind)


def _render_thing(
    colors: Colors, thing: _Thing, time: int, camera: Pair, light: Pair
) -> tuple[tuple[slice, slice], np.ndarray]:
    """One object and its shadow; the window that they can reach, and where in it the object is."""
    size_px = colors.shape[-1]
    center_x = thing.x + thing.velocity[0] * time - camera[0]
    center_y = thing.y + thing.velocity[1] * time + camera[1]
    growth, rocking = wave(np.array([thing.growth * time, thing.spin * time])).tolist()
    size, turn = thing.size * (1 + 0.25 * growth), thing.turn + 0.12 * rocking
    x, y = _grid(size_px)
    low = [max(int((center - 1.5 * size) * size_px), 0) for center in (center_y, center_x)]
    high = [max(int((center + 1.5 * size) * size_px + 1), 0) for center in (center_y, center_x)]
    rows, columns = map(slice, low, high)
    right, down = (x[:, columns] - center_x) / size, (y[rows] - center_y) / size
    # From the image's axes to the object's own.
    scale = 1 / (1 + turn * turn)
    cos, sin = (1 - turn * turn) * scale, 2 * turn * scale
    sign = -1 if thing.mirrored else 1
    towards = (sign * (cos * light[0] + sin * light[1]), cos * light[1] - sin * light[0])
    u, v = sign * (cos * right + sin * down), cos * down - sin * right
    at = Local(u, v, 1 / (size * size_px), towards)
    distance, color = THINGS[thing.kind](at, thing.look)
    # A soft elliptic shadow at the foot of the object, away from the light.
    u, v = right + 0.45 * light[0], (down - 0.85) * 3.2
    shadow = 0.6 * np.clip(1 - 0.85 * (u * u + v * v), 0, 1)
    cover, pixels = at.inside(distance), colors[:, rows, columns]
    pixels *= 1 - thing.grounded * shadow
    pixels += (color - pixels) * cover
    return (rows, columns), cover > 0.5


# Painters, one per class. One of stuff gets open grids of the unit square, and how near a row is:
# 0 at the horizon, 1 at the lower edge. One of a thing gets the object's own frame.


@dataclass(frozen=True)
class Local:
    """An object's own frame: it fills about -1..1, u to the right, v down."""

    u: Plane
    v: Plane
    pixel: float  # its width in this frame
    light: Pair  # where it comes from

    def inside(self, distance: Plane) -> Plane:
        """1 where a signed distance is negative, with an edge one pixel wide."""
        return np.clip(0.5 - distance / self.pixel, 0, 1)

    def lit(self, u: float = 0.3, v: float = 0.3) -> Plane:
        """Brightness that falls off away from the light, by so much along each axis."""
        return 0.85 + u * self.light[0] * self.u + v * self.light[1] * self.v


def wave(x: np.ndarray) -> np.ndarray:
    """Parabolic sine of period 1, from -1 to 1."""
    t = 2 * (x - np.floor(x)) - 1
    return 4 * t * (np.abs(t) - 1)


def step(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """A ramp from 0 at low to 1 at high."""
    return np.clip((x - low) / (high - low), 0, 1)


def _lerp_at(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lattice lines before and after a coordinate, and the smoothed way between them."""
    floor = np.floor(x)
    way, line = x - floor, floor.astype(np.intp)
    return line & (LATTICE - 1), (line + 1) & (LATTICE - 1), way * way * (3 - 2 * way)


def noise(lattice: np.ndarray, v: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Value noise from 0 to 1: the lattice, smoothly interpolated at (v, u)."""
    (i, i_next, fv), (j, j_next, fu) = _lerp_at(v), _lerp_at(u)
    if v.shape[1] == u.shape[0] == 1:  # an open grid: rows first, many times faster
        rows = lattice[i[:, 0]] * (1 - fv) + lattice[i_next[:, 0]] * fv
        left = rows.take(j[0], axis=1)
        return left + (rows.take(j_next[0], axis=1) - left) * fu
    top, bottom = i * LATTICE, i_next * LATTICE
    left = lattice.take(top + j) * (1 - fv) + lattice.take(bottom + j) * fv
    right = lattice.take(top + j_next) * (1 - fv) + lattice.take(bottom + j_next) * fv
    return left + (right - left) * fu


def mix(look: Look, amount: Plane) -> Colors:
    """From the main color at 0 to the second at 1."""
    main, second, _ = look.palette[:, :, None, None]
    return main + (second - main) * amount


def over(base: Colors, color: np.ndarray | float, mask: Plane) -> Colors:
    """Paints one color, or a gray, where the mask is 1."""
    paint = color[:, None, None] if isinstance(color, np.ndarray) else color
    return base + (paint - base) * mask


def box(u: Plane, v: Plane, width: float, height: float) -> Plane:
    """Signed distance to a centered rectangle of these half sides."""
    return np.maximum(np.abs(u) - width, np.abs(v) - height)


def disc(u: Plane, v: Plane, radius: float) -> Plane:
    """Signed distance to a centered disc."""
    return np.sqrt(u * u + v * v) - radius


def sky(x: Row, y: Column, near: Column, look: Look) -> Colors:
    """A vertical gradient under soft clouds."""
    u, v = x * 3 * look.pitch + 9 * look.phase, y * 6 * look.pitch
    clouds = 0.65 * noise(look.lattice, v, u) + 0.35 * noise(look.lattice, 2.2 * v + 7, 2.2 * u)
    veil = mix(look, 0.5 * step(y, 0.7, 0.0) + 0 * x)
    return over(veil, 0.25 * look.palette[2] + 0.75, 0.85 * step(clouds, 0.46, 0.74))


def water(x: Row, y: Column, near: Column, look: Look) -> Colors:
    """Ripples that draw together towards the horizon, with glints."""
    rows = 1.8 * near / (0.8 + near) * look.pitch
    ripple = wave(9 * rows + 0.9 * noise(look.lattice, 14 * rows, 5 * x) + look.phase)
    glints = noise(look.lattice, 26 * rows + 3, 9 * x)
    base = mix(look, 0.45 + 0.45 * ripple * np.minimum(1, 0.3 + 4 * near))
    return over(base, 1.0, 0.75 * step(glints * (1 - 0.3 * ripple), 0.72, 0.95))


def grass(x: Row, y: Column, near: Column, look: Look) -> Colors:
    """Upright blades, finer far away, and a few flowers."""
    u, v = x * look.pitch, y * look.pitch
    fine = noise(look.lattice, 13 * v, 44 * u)
    blades = fine + (noise(look.lattice, 5 * v + 3, 24 * u) - fine) * near
    flowers = noise(look.lattice.T, 25 * v, 25 * u)
    return over(mix(look, step(blades, 0.25, 0.75)), look.palette[2], step(flowers, 0.86, 0.93))


def sand(x: Row, y: Column, near: Column, look: Look) -> Colors:
    """Fine round grain on soft patches, with dark pebbles."""
    grain = noise(look.lattice, 47 * y, 47 * x)
    patches = noise(look.lattice, 5 * y + 3, 3 * x)
    pebbles = noise(look.lattice.T, 19 * y, 17 * x)
    base = mix(look, 0.3 * patches + 0.5 * step(grain, 0.3, 0.9))
    return over(base, 0.2 * look.palette[1], 0.7 * step(pebbles, 0.8, 0.9))


def wall(x: Row, y: Column, near: Column, look: Look) -> Colors:
    """Bricks, each of its own tone, in light mortar."""
    v = y * 10 * look.pitch + look.phase
    u = x * 5.5 * look.pitch + 0.5 * (np.floor(v) % 2)
    tone = look.lattice[_lerp_at(v)[0], _lerp_at(u)[0]]
    joint = np.maximum(np.abs(v - np.floor(v) - 0.5), 2 * np.abs(u - np.floor(u) - 0.5) - 0.5)
    return over(mix(look, 0.75 * tone), 0.3 * look.palette[2] + 0.6, step(joint, 0.36, 0.46))


def ball(at: Local, look: Look) -> Sprite:
    """A beach ball: panels that meet at its poles, and a highlight."""
    u, v = at.u / 0.9, at.v / 0.9
    panels = wave(0.8 * look.pitch * u / np.sqrt(np.maximum(1 - v * v, 0.02)) + look.phase)
    color = mix(look, step(panels, -0.1, 0.1))
    color = over(color, look.palette[2], at.inside(disc(u, np.abs(v) - 0.95, 0.3)))
    height = np.sqrt(np.maximum(1 - u * u - v * v, 0))
    facing = 0.65 * (u * at.light[0] + v * at.light[1]) + 0.7 * height
    color = over(color * (0.4 + 0.7 * np.maximum(facing, 0)), 1.0, 0.7 * step(facing, 0.9, 0.97))
    return disc(at.u, at.v, 0.9), color


def crate(at: Local, look: Look) -> Sprite:
    """A wooden box: boards with grain, a frame, a brace, and a brighter lid."""
    lean = (0.3 if look.phase > 0.5 else -0.3) * step(at.v, -0.5, -0.85)
    u, v = at.u - lean, at.v - 0.15
    face = box(u, v, 0.75, 0.68)
    grain = noise(look.lattice, 3 * v, 16 * u)
    brace = np.abs(u - v if look.phase > 0.5 else u + v) - 0.13
    frame = np.minimum(np.abs(face + 0.09) - 0.09, brace)
    color = mix(look, 0.35 * grain + 0.5 * step(np.abs(wave(2.2 * look.pitch * u)), 0.45, 0.1))
    color = over(color, look.palette[0] * 1.25, at.inside(frame))
    color = over(color, look.palette[1] * 0.6, at.inside(np.abs(frame) - 0.04))
    lid = box(u, at.v + 0.69, 0.75, 0.17)
    color = over(color * at.lit(), look.palette[0] * 1.2, at.inside(lid) * (0.7 + 0.3 * grain))
    return np.minimum(face, lid), color


def tree(at: Local, look: Look) -> Sprite:
    """A trunk under a ragged crown of leaves."""
    u, v = at.u, at.v
    crown = np.minimum(disc(np.abs(u) - 0.36, v + 0.12, 0.45), disc(u, v + 0.42, 0.5))
    crown += 0.3 * noise(look.lattice, 5 * v, 5 * u) - 0.15
    leaves = noise(look.lattice.T, 9 * look.pitch * v, 9 * look.pitch * u)
    foliage = mix(look, step(leaves, 0.3, 0.65)) * (at.lit(0.4, 0.5) + 0.1)
    bark = 0.55 + 0.4 * noise(look.lattice, 2 * v, 14 * u)
    wood = np.array([0.42, 0.3, 0.2], np.float32)[:, None, None] * bark
    wood += (foliage - wood) * at.inside(crown)
    return np.minimum(crown, box(u, v - 0.5, 0.12, 0.45)), wood


def house(at: Local, look: Look) -> Sprite:
    """Boarded walls, a shingled gable roof, two windows and a door."""
    u, v = at.u, at.v
    walls = box(u, v - 0.4, 0.72, 0.5)
    roof = np.maximum(v + 0.05, 0.65 * np.abs(u) - 0.75 * (v + 0.95))
    rows = v * 6 * look.pitch
    shingles = wave(u * 5 + 0.5 * (np.floor(rows) % 2)) * 0.5 + rows % 1
    color = mix(look, 0.15 + 0.45 * step(wave(4.5 * look.pitch * v), 0.2, 0.6)) * at.lit()
    panes = box(np.abs(u) - 0.42, v - 0.28, 0.17, 0.17)
    color = over(color, 0.95, at.inside(panes - 0.06))
    color = over(color, 0.15, at.inside(np.maximum(panes, 0.03 - np.abs(np.abs(u) - 0.42))))
    color = over(color, 0.5 * look.palette[2], at.inside(box(u, v - 0.6, 0.14, 0.3)))
    tiles = look.palette[2][:, None, None] * (0.5 + 0.45 * np.clip(shingles, 0, 1)) * at.lit()
    return np.minimum(walls, roof), color + (tiles - color) * at.inside(roof)


def fish(at: Local, look: Look) -> Sprite:
    """An oval of scales with a forked tail, a fin and an eye."""
    u, v = at.u, at.v
    body = disc((u + 0.22) * 0.66, v, 0.46)
    tail = np.maximum(np.abs(v) - 0.85 * (u - 0.2), u - 0.95 + 0.45 * (0.5 - np.abs(v)))
    fin = np.maximum(np.abs(u + 0.1) + 0.7 * v + 0.1, -v - 0.72)
    scales = wave((u + v) * 2.6 * look.pitch) * wave((u - v) * 2.6 * look.pitch)
    color = mix(look, step(scales, -0.25, 0.35)) * (0.9 + 0.35 * at.light[1] * v)
    rays = look.palette[2][:, None, None] * (0.75 + 0.25 * wave(7 * v))
    color = rays + (color - rays) * at.inside(body)
    color = over(color, look.palette[0], at.inside(np.maximum(body, u + 0.5)))
    color = over(color, 1.0, at.inside(disc(u + 0.62, v + 0.1, 0.13)))
    color = over(color, 0.0, at.inside(disc(u + 0.64, v + 0.1, 0.065)))
    return np.minimum(np.minimum(body, tail), fin), color


def cup(at: Local, look: Look) -> Sprite:
    """A tapered mug with a handle, zigzag bands and a dark opening."""
    u, v = at.u + 0.18, at.v
    side = np.maximum(np.abs(u) + 0.1 * v - 0.62, np.abs(v - 0.1 + 0.1 * (u * u)) - 0.78)
    handle = np.abs(disc(at.u - 0.48, (v - 0.1) * 0.85, 0.33)) - 0.08
    opening = disc(u, (v + 0.7) * 3.6, 0.64)
    zigzag = wave(2.1 * look.pitch * v + 0.3 * np.abs(wave(1.4 * u)) + look.phase)
    color = mix(look, step(zigzag, -0.15, 0.15)) * (1 + (0.35 * at.light[0] - 1.12 * u) * u)
    color = over(color, look.palette[0], at.inside(opening))
    color = over(color, 0.12, at.inside(disc(u, (v + 0.7) * 3.8, 0.54)))
    shape = np.minimum(side, opening)
    handled = look.palette[0][:, None, None] * at.lit(0.2, 0.4)
    return np.minimum(shape, handle), handled + (color - handled) * at.inside(shape)


def star(at: Local, look: Look) -> Sprite:
    """Five arms, dotted, with a rim; a point is in it when inside four of five lines."""
    u, v = at.u, at.v - 0.07
    lines = np.partition(PENTAGON[:, :1, None] * u + PENTAGON[:, 1:, None] * v, 3, axis=0)
    distance = lines[3] - 0.3
    rows = v * 3.6 * look.pitch
    columns = u * 3.6 * look.pitch + 0.5 * (np.floor(rows) % 2)
    dots = disc(rows % 1 - 0.5, columns % 1 - 0.5, 0.3)
    color = mix(look, step(dots, 0.08, -0.08)) * at.lit(0.35, 0.35)
    return distance, over(color, look.palette[2], step(distance, -0.12, -0.08))


def car(at: Local, look: Look) -> Sprite:
    """A glossy body with a stripe, a glazed cabin and two wheels."""
    u, v = at.u, at.v
    body = np.maximum(box(u, v - 0.17, 0.97, 0.27), np.abs(u) + 0.6 * np.abs(v - 0.2) - 1.03)
    cabin = np.maximum(np.abs(u + 0.08) - 0.62 - 0.65 * (v + 0.1), np.abs(v + 0.27) - 0.27)
    wheels = disc(np.abs(u) - 0.56, v - 0.42, 0.24)
    gloss = step(v, 0.5, -0.15) + 0.25 * step(np.abs(v - 0.02), 0.07, 0.0)
    color = look.palette[0][:, None, None] * (0.45 + 0.6 * gloss) + 0 * u
    color = over(color, look.palette[1], at.inside(np.abs(v - 0.22) - 0.05))
    glass = np.maximum(cabin + 0.1, 0.05 - np.abs(u + 0.08))
    color = over(color, 0.25 + 0.3 * look.phase, at.inside(glass))
    color = over(color, look.palette[2], at.inside(disc(np.abs(u) - 0.9, v - 0.12, 0.08)))
    color = over(color, 0.08, at.inside(wheels))
    color = over(color, 0.75, at.inside(wheels + 0.13))
    return np.minimum(np.minimum(body, cabin), wheels), color


STUFF = {paint.__name__: paint for paint in (sky, water, grass, sand, wall)}
THINGS = {paint.__name__: paint for paint in (ball, crate, tree, house, fish, cup, star, car)}
CLASSES: tuple[str, ...] = (*STUFF, *THINGS)
