"""What the benchmarks share: figures in a JSON file, data made of smooth noise, exit codes."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from PIL import Image

from croc.errors import UserError
from croc.io import gpu_versions, hardware
from croc.tables import one_line

RESULTS = Path(__file__).parent / "results"
CLASSES, REGIONS = 21, 4
COARSE = ((3, 70), (12, 35))
"""Cells along the width and their contrast."""
OCTAVES = (*COARSE, (60, 20), (250, 8))
"""A JPEG of these is as large as a photograph's."""
Octaves = tuple[tuple[int, int], ...]
Figure = dict[str, Any]
"""One measured number."""


def run(main: Callable[[], None]) -> None:
    """A user's mistake is one line and exit code 2, as in `croc`."""
    try:
        main()
    except UserError as error:
        print(f"{Path(sys.argv[0]).stem}: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2)


def this_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def figure(what: str, value: float, unit: str, setting: dict[str, Any]) -> Figure:
    return {"what": what, "value": value, "unit": unit, "setting": setting}


def write_json(path: Path, device: torch.device, **results: Any) -> None:
    """With the date, hardware and versions of the measurement."""
    date = datetime.now(UTC).date().isoformat()
    record = {"date": date, "hardware": hardware(device), "versions": gpu_versions()} | results
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def show(
    figures: Sequence[Figure], device: torch.device, describe: Callable[[dict[str, Any]], str]
) -> None:
    """One line per figure."""
    print("{gpu}, {cpu}, {cores} cores".format(**hardware(device)))
    for each in figures:
        text = f"{each['what']:40}{each['value']:12.4g} {each['unit']:10}"
        print(text + describe(each["setting"]))


def noise(
    rng: np.random.Generator, width: int, height: int, channels: int = 3, octaves: Octaves = OCTAVES
) -> Float32[np.ndarray, "h w channels"]:
    """Around 0; coarse cells are strong and fine ones faint, as in photographs."""
    total = np.zeros((height, width, channels), np.float32)
    for cells, contrast in octaves:
        shape = (max(2, cells * height // width), cells)
        for channel in range(channels):
            coarse = Image.fromarray(rng.normal(0, contrast, shape).astype(np.float32))
            resized = coarse.resize((width, height), Image.Resampling.BICUBIC)
            total[..., channel] += np.asarray(resized)
    return total


def picture(pixels: Float32[np.ndarray, "h w 3"]) -> Image.Image:
    return Image.fromarray((pixels + 128).clip(0, 255).astype(np.uint8))


def write_voc(root: Path, count: int, width: int, height: int) -> None:
    """ROOT as `voc12:ROOT` with `count` validation images; a region has a class and its shade."""
    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    names = "".join(f"{number:06d}\n" for number in range(count))
    (root / "ImageSets/Segmentation/val.txt").write_text(names)
    shades = np.random.default_rng(0).normal(0, 40, (CLASSES, 3)).astype(np.float32)

    def write(number: int) -> None:
        rng = np.random.default_rng(number)
        region = noise(rng, width, height, REGIONS, COARSE).argmax(axis=-1)
        labels = rng.integers(0, CLASSES, REGIONS).astype(np.uint8)[region]
        pixels = noise(rng, width, height) + shades[labels]
        picture(pixels).save(root / f"JPEGImages/{number:06d}.jpg", quality=92)
        Image.fromarray(labels).save(root / f"SegmentationClass/{number:06d}.png")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, range(count)))


def write_davis(root: Path, videos: int, frames: int, width: int, height: int) -> None:
    """ROOT as `davis16:ROOT`: a disk moves over a background that drifts the other way."""
    y, x = np.mgrid[:height, :width]
    for number in range(videos):
        name = f"made-up-{number}"
        for folder in ("JPEGImages", "Annotations"):
            (root / folder / "480p" / name).mkdir(parents=True)
        rng = np.random.default_rng(number)
        background, thing = (noise(rng, 2 * width, height) for _ in range(2))
        for t in range(frames):
            shift = t * width // (2 * frames)
            disk = np.hypot(y - height / 2, x - width // 4 - shift) < height / 4
            inside = np.roll(thing, shift, axis=1)[:, :width] + 60
            outside = np.roll(background, -shift, axis=1)[:, :width]
            pixels = np.where(disk[..., None], inside, outside)
            picture(pixels).save(root / f"JPEGImages/480p/{name}/{t:05d}.jpg", quality=92)
            mask = Image.fromarray(np.where(disk, 255, 0).astype(np.uint8))
            mask.save(root / f"Annotations/480p/{name}/{t:05d}.png")
