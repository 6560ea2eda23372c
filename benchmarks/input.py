"""Throughput of data loading: python -m benchmarks.input --step-ms 0 70

Images/s from preloaded tensors, a pack, a tar shard and JPEG files, with a simulated training step
of each duration.
"""

import argparse
import tarfile
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.common import run, this_device, write_json
from croc.config import DataConfig
from croc.data.loader import make_loader, worker_count
from croc.data.pack import pack
from croc.data.sources import FolderSource, ImageSource, PackedSource, ShardSource
from croc.io import hardware
from croc.method.types import Canvases

WARM_UPS = 8
"""Steps after which prefetched batches are used up."""
LOG_EVERY = 10
"""Steps between two synchronizations with the device, as in training."""
OCTAVES = ((3, 70), (12, 35), (60, 20), (250, 8))
"""Cells along the width of a synthetic photograph, and their contrast. Its JPEG has about the size
of a real one."""

Batches = Generator[Canvases, None, None]
Step = Callable[[Canvases], object]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", type=Path, help="JSON file")
    parser.add_argument("--device", type=torch.device, default=this_device())
    parser.add_argument("--photographs", help="folder of photographs; default: noise")
    parser.add_argument("--images", type=int, default=1024, help="number of JPEG files")
    parser.add_argument("--size-px", type=int, nargs=2, default=(640, 480), help="width, height")
    parser.add_argument("--max-side-px", type=int, default=DataConfig().max_side_px)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60, help="timed steps")
    parser.add_argument("--step-ms", type=float, nargs="+", default=(0.0, 70.0))
    parser.add_argument("--workers", type=int, default=worker_count(DataConfig()))
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        photographs, shard = folder / "photographs", folder / "shard.tar"
        write_photographs(photographs, options.images, options.size_px, options.photographs)
        files = FolderSource([str(photographs)], options.max_side_px)
        pack(files, folder / "packed", options.max_side_px, options.workers)
        with tarfile.open(shard, "w") as archive:
            archive.add(photographs, arcname="photographs")
        sources = {
            "pack": PackedSource(str(folder / "packed")),
            "tar shard": ShardSource([str(shard)], options.max_side_px),
            "JPEG files": files,
        }
        print("{gpu}, {cpu}, {cores} cores".format(**hardware(options.device)))
        rates = [measure(sources, options, step_ms) for step_ms in options.step_ms]
    if options.to:
        write_json(options.to, options.device, setting=vars(options), images_per_s=rates)


def measure(
    sources: dict[str, ImageSource], options: argparse.Namespace, step_ms: float
) -> dict[str, Any]:
    """Images per second of each source. Preloaded tensors are measured before and after the others,
    because the device slows down as it heats up."""
    step = make_step(step_ms, options.device)
    before = measure_rate(ready_batches(options), step, options)
    rates: dict[str, float] = {}
    for name, source in sources.items():
        loader = make_loader(
            source,
            canvas_px=options.max_side_px,
            batch=options.batch,
            seed=0,
            first_step=0,
            last_step=WARM_UPS + options.steps,
            workers=options.workers,
            device=options.device,
        )
        rates[name] = measure_rate(loader, step, options)
    rates["ready tensors"] = (before + measure_rate(ready_batches(options), step, options)) / 2
    for name, rate in rates.items():
        share = f"{rate / rates['ready tensors']:.2%} of ready tensors" if step_ms else ""
        print(f"step of {step_ms:g} ms, {name:14}{rate:12.4g} images/s  {share}")
    return {"step_ms": step_ms, **rates}


def measure_rate(batches: Batches, step: Step, options: argparse.Namespace) -> float:
    with closing(batches):
        for _ in range(WARM_UPS):
            step(next(batches))
        wait(options.device)
        start = time.perf_counter()
        for number in range(1, options.steps + 1):
            step(next(batches))
            if number % LOG_EVERY == 0 or number == options.steps:
                wait(options.device)
        return options.steps * options.batch / (time.perf_counter() - start)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ready_batches(options: argparse.Namespace) -> Batches:
    batch, side = options.batch, options.max_side_px
    pixels = torch.zeros(batch, 3, side, side, dtype=torch.uint8)
    canvases = Canvases(pixels, torch.full((batch, 2), side), torch.arange(batch))
    yield from repeat(canvases.to(options.device))


def make_step(step_ms: float, device: torch.device) -> Step:
    """A step that reads the batch, then keeps a GPU busy, or sleeps on a CPU."""
    if device.type != "cuda":

        def sleep(canvases: Canvases) -> torch.Tensor:
            time.sleep(step_ms / 1000)
            return canvases.pixels[:, :, 0, 0].sum()

        return sleep
    a, b, out = torch.randn(3, 4096, 4096, dtype=torch.bfloat16, device=device)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(a, b, out=out)

    multiply(1000)  # until the clocks are stable
    wait(device)
    start = time.perf_counter()
    multiply(1000)
    wait(device)
    products = round(step_ms / (time.perf_counter() - start))  # ms of one = seconds of 1000

    def compute(canvases: Canvases) -> torch.Tensor:
        largest = canvases.pixels.amax()
        multiply(products)
        return largest

    return compute


def write_photographs(
    folder: Path, count: int, size_px: tuple[int, int], photographs: str | None
) -> None:
    """JPEGs of one size: the photographs in turn, or noise with about the same file size."""
    folder.mkdir()
    source = FolderSource([photographs], 4096) if photographs else None
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(_write_photograph, folder, size_px, source), range(count)))


def _write_photograph(
    folder: Path, size_px: tuple[int, int], source: FolderSource | None, number: int
) -> None:
    if source is None:
        image = noise(np.random.default_rng(number), *size_px)
    else:
        pixels = source.read(number % len(source))
        image = Image.fromarray(pixels).resize(size_px, Image.Resampling.BICUBIC)
    image.save(folder / f"{number:06d}.jpg", quality=92)


def noise(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    total = np.full((height, width, 3), 128, np.float32)
    for cells, contrast in OCTAVES:
        shape = (max(2, cells * height // width), cells)
        for channel in range(3):
            coarse = Image.fromarray(rng.normal(0, contrast, shape).astype(np.float32))
            fine = coarse.resize((width, height), Image.Resampling.BICUBIC)
            total[..., channel] += np.asarray(fine)
    return Image.fromarray(total.clip(0, 255).astype(np.uint8))


if __name__ == "__main__":
    run(main)
