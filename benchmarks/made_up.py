"""Data sets of smooth noise in the layouts of VOC12 and DAVIS'16, to be read and decoded."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

CLASSES = 21
REGIONS = 4
COARSE = ((3, 70), (12, 35))
"""Cells along the width and their contrast."""
OCTAVES = (*COARSE, (60, 20), (250, 8))
"""A JPEG of these is as large as a photograph's."""


def noise(
    rng: np.random.Generator,
    width: int,
    height: int,
    channels: int = 3,
    octaves: tuple[tuple[int, int], ...] = OCTAVES,
) -> Float32[np.ndarray, "h w channels"]:
    """Around 0; coarse cells are strong and fine ones faint, as in photographs."""
    total = np.zeros((height, width, channels), np.float32)
    for cells, contrast in octaves:
        shape = (max(2, cells * height // width), cells)
        for channel in range(channels):
            coarse = Image.fromarray(rng.normal(0, contrast, shape).astype(np.float32))
            total[..., channel] += np.asarray(
                coarse.resize((width, height), Image.Resampling.BICUBIC)
            )
    return total


def picture(pixels: Float32[np.ndarray, "h w 3"]) -> Image.Image:
    return Image.fromarray((pixels + 128).clip(0, 255).astype(np.uint8))


def write_voc(root: Path, count: int, width: int, height: int) -> None:
    """ROOT as `voc12:ROOT` with a val part of `count` photographs."""
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    names = "".join(f"{number:06d}\n" for number in range(count))
    (root / "ImageSets/Segmentation/val.txt").write_text(names)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(_write_labelled, root, width, height), range(count)))


def _write_labelled(root: Path, width: int, height: int, number: int) -> None:
    """A photograph in which each region has a class, and a shade by it."""
    rng = np.random.default_rng(number)
    region = noise(rng, width, height, REGIONS, COARSE).argmax(axis=-1)
    classes = rng.integers(0, CLASSES, REGIONS).astype(np.uint8)
    labels = classes[region]
    shades = np.random.default_rng(0).normal(0, 40, (CLASSES, 3)).astype(np.float32)
    pixels = noise(rng, width, height) + shades[labels]
    picture(pixels).save(root / f"JPEGImages/{number:06d}.jpg", quality=92)
    Image.fromarray(labels).save(root / f"SegmentationClass/{number:06d}.png")


def write_davis(root: Path, videos: int, frames: int, width: int, height: int) -> None:
    """ROOT as `davis16:ROOT`: a disk wanders over a ground that drifts the other way."""
    for number in range(videos):
        name = f"made-up-{number}"
        for folder in ("JPEGImages", "Annotations"):
            (root / folder / "480p" / name).mkdir(parents=True)
        rng = np.random.default_rng(number)
        ground, thing = (noise(rng, 2 * width, height) for _ in range(2))
        write = partial(_write_frame, root, name, ground, thing, frames)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(write, range(frames)))


def _write_frame(
    root: Path,
    name: str,
    ground: Float32[np.ndarray, "h w 3"],
    thing: Float32[np.ndarray, "h w 3"],
    frames: int,
    t: int,
) -> None:
    height, width = ground.shape[0], ground.shape[1] // 2
    shift = t * width // (2 * frames)
    mask = disk(height, width, width // 4 + shift)
    inside = np.roll(thing, shift, axis=1)[:, :width] + 60
    pixels = np.where(mask[..., None] > 0, inside, np.roll(ground, -shift, axis=1)[:, :width])
    picture(pixels).save(root / f"JPEGImages/480p/{name}/{t:05d}.jpg", quality=92)
    Image.fromarray(mask).save(root / f"Annotations/480p/{name}/{t:05d}.png")


def disk(height: int, width: int, center: int) -> UInt8[np.ndarray, "h w"]:
    """255 within a quarter of the height of the middle row's `center`."""
    y, x = np.mgrid[:height, :width]
    near = np.hypot(y - height / 2, x - center) < height / 4
    return np.where(near, 255, 0).astype(np.uint8)
