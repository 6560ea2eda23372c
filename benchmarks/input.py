"""How fast photographs reach the device: python -m benchmarks.input --step-ms 0 70

Images a second from tensors that are there already, from a pack and from JPEG files, into a loop
that does nothing with them (0) or keeps the device busy for so many milliseconds a step.
"""

import argparse
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

from benchmarks.command import run
from benchmarks.evaluation import RESULTS, Figure, write
from benchmarks.made_up import noise, picture
from benchmarks.surroundings import hardware
from croc.config import DataConfig
from croc.data import FolderSource, ImageSource, PackedSource, make_loader
from croc.data.loader import worker_count
from croc.data.pack import pack
from croc.method.types import Canvases

WARM_UPS = 8
"""Steps after which what was made ahead is used up, where the loader is the slower one."""
STEPS_A_LOOK = 10
"""Steps after which a run looks at its loss, and so waits for the device."""

Batches = Generator[Canvases, None, None]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    bench = Bench(torch.device(options.device), options.batch, options.canvas_px, options.workers)
    with tempfile.TemporaryDirectory() as folder:
        photographs = Path(folder) / "photographs"
        write_photographs(photographs, options.images, options.size_px, options.photographs)
        files = FolderSource([str(photographs)], options.canvas_px)
        pack(files, Path(folder) / "packed", options.canvas_px, bench.workers)
        sources = {"pack": PackedSource(str(Path(folder) / "packed")), "JPEG files": files}
        setting = bench.setting(images=len(files), size_px=options.size_px, steps=options.steps)
        setting["file_kb"] = _mean_kb(photographs)
        figures: list[Figure] = []
        for step_ms in options.step_ms:
            figures += bench.measure(sources, options.steps, step_ms, setting)
    if options.to:
        write(RESULTS / options.to, figures, bench.device)
    show(figures, bench.device)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", help="JSON file, in benchmarks/results unless absolute")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--photographs", help="folder of photographs; else they are made up")
    parser.add_argument("--images", type=int, default=1024, help="files to make")
    parser.add_argument("--size-px", type=int, nargs=2, default=(640, 480), help="width, height")
    parser.add_argument("--canvas-px", type=int, default=DataConfig().canvas_px)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60, help="timed steps")
    parser.add_argument("--step-ms", type=float, nargs="+", default=(0.0, 70.0))
    parser.add_argument("--workers", type=int, default=worker_count(DataConfig()))
    return parser.parse_args(arguments)


class Bench:
    """Where it is measured, and in batches of what size."""

    def __init__(self, device: torch.device, batch: int, canvas_px: int, workers: int) -> None:
        self.device, self.batch, self.canvas_px = device, batch, canvas_px
        self.workers = workers
        self.gpu = device.type == "cuda"

    def setting(self, **more: Any) -> dict[str, Any]:
        return {
            "batch": self.batch,
            "canvas_px": self.canvas_px,
            "workers": self.workers,
            **more,
        }

    def measure(
        self, sources: dict[str, ImageSource], steps: int, step_ms: float, setting: dict[str, Any]
    ) -> list[Figure]:
        """The sources also as a share of ready tensors, which come before and after them, since
        the device slows down as it grows warm."""
        setting = setting | {"step_ms": step_ms}
        step = self.step(step_ms)
        before, _ = self.rate(self.ready(), step, steps)
        loaded = {
            name: self.rate(self.load(source, WARM_UPS + steps), step, steps)
            for name, source in sources.items()
        }
        after, _ = self.rate(self.ready(), step, steps)
        ready = (before + after) / 2
        figures = [Figure("ready tensors", ready, "images/s", setting)] if step_ms else []
        for name, (rate, first_s) in loaded.items():
            figures.append(Figure(name, rate, "images/s", setting))
            figures.append(Figure(f"{name}: first batch", first_s, "s", setting))
            if step_ms:
                share = 100 * rate / ready
                figures.append(Figure(f"{name}: of ready tensors", share, "%", setting))
        return figures

    def rate(
        self, batches: Batches, step: Callable[[Canvases], object], steps: int
    ) -> tuple[float, float]:
        """Images a second, and the seconds before the first."""
        begun = time.perf_counter()
        with closing(batches):
            step(next(batches))
            self.wait()
            first_s = time.perf_counter() - begun
            for _ in range(WARM_UPS - 1):
                step(next(batches))
            self.wait()
            start = time.perf_counter()
            for number in range(steps):
                step(next(batches))
                if (number + 1) % STEPS_A_LOOK == 0:
                    self.wait()
            self.wait()
            return steps * self.batch / (time.perf_counter() - start), first_s

    def ready(self) -> Batches:
        pixels = torch.zeros(self.batch, 3, self.canvas_px, self.canvas_px, dtype=torch.uint8)
        sizes = torch.full((self.batch, 2), self.canvas_px)
        canvases = Canvases(pixels, sizes, torch.arange(self.batch)).to(self.device)
        yield from repeat(canvases)

    def load(self, source: ImageSource, steps: int) -> Batches:
        settings: dict[str, Any] = {"canvas_px": self.canvas_px, "batch": self.batch, "seed": 0}
        return make_loader(
            source,
            **settings,
            first_step=0,
            last_step=steps,
            workers=self.workers,
            device=self.device,
        )

    def step(self, step_ms: float) -> Callable[[Canvases], object]:
        """Reads the batch, then works for so long."""
        if not self.gpu:
            return partial(_sleep_over, step_ms)
        side = torch.randn(3, 4096, 4096, dtype=torch.bfloat16, device=self.device)
        products = round(step_ms / self.product_ms(side)) if step_ms else 0
        return partial(_multiply_over, side, products)

    def product_ms(self, side: torch.Tensor) -> float:
        _multiply(side, 1000)  # until the clocks have settled
        self.wait()
        start = time.perf_counter()
        _multiply(side, 1000)
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize(self.device)


def _sleep_over(step_ms: float, canvases: Canvases) -> torch.Tensor:
    time.sleep(step_ms / 1000)
    return canvases.pixels[:, :, 0, 0].sum()


def _multiply_over(side: torch.Tensor, products: int, canvases: Canvases) -> torch.Tensor:
    seen = canvases.pixels.amax()
    _multiply(side, products)
    return seen


def _multiply(side: torch.Tensor, times: int) -> None:
    for _ in range(times):
        torch.mm(side[0], side[1], out=side[2])


def write_photographs(
    folder: Path, count: int, size_px: tuple[int, int], photographs: str | None
) -> None:
    """JPEGs of one size: of the given photographs in turn, or of noise, about as large."""
    folder.mkdir()
    given = FolderSource([photographs], 4096) if photographs else None
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(_write_photograph, folder, size_px, given), range(count)))


def _write_photograph(
    folder: Path, size_px: tuple[int, int], given: FolderSource | None, number: int
) -> None:
    if given is None:
        image = picture(noise(np.random.default_rng(number), *size_px))
    else:
        pixels = given.read(number % len(given))
        image = Image.fromarray(pixels).resize(size_px, Image.Resampling.BICUBIC)
    image.save(folder / f"{number:06d}.jpg", quality=92)


def _mean_kb(folder: Path) -> float:
    sizes = [path.stat().st_size for path in folder.iterdir()]
    return round(sum(sizes) / len(sizes) / 1000, 1)


def show(figures: Sequence[Figure], device: torch.device) -> None:
    print("{gpu}, {cpu}, {cores} cores".format(**hardware(device)))
    for figure in figures:
        step = f"step of {figure.setting['step_ms']:g} ms"
        print(f"{figure.what:32}{figure.value:12.4g} {figure.unit:10}{step}")


if __name__ == "__main__":
    run(main)
