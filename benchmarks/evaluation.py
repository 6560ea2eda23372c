"""How fast the evaluations are: python -m benchmarks.evaluation --to 2026-01-31-h200.json

Features of a ViT-S/16 at 448², K-means over a set of VOC12's size, and video propagation at 480p,
on the device that is there. Data is made up unless --davis says where real videos lie.
"""

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.command import run
from benchmarks.made_up import write_davis, write_voc
from benchmarks.surroundings import hardware, versions
from croc.eval.datasets import open_segmentation
from croc.eval.features import ConvBackbone, VitBackbone, open_backbone
from croc.eval.kmeans import evaluate_kmeans
from croc.eval.protocols import KmeansConfig, VideoConfig
from croc.eval.video import (
    evaluate_video,
    follow,
    frame_size,
    neighbourhood,
    propagate,
)
from croc.eval.videos import open_videos

Made = TypeVar("Made")

RESULTS = Path(__file__).parent / "results"
WARM_UPS = 3
VARIES = ("batch", "images", "frames", "frame_px")


@dataclass(frozen=True)
class Sizes:
    """What is measured; the defaults are the protocols' and the data sets'."""

    weights: str = "random:vit_small_patch16_224"
    image_px: int = 448
    batches: tuple[int, ...] = (64, 128, 256)
    runs: int = 20
    """Timed repetitions, of which the median counts."""
    photographs: int = 1449
    photograph_px: tuple[int, int] = (500, 375)
    kmeans: KmeansConfig = field(default_factory=KmeansConfig)
    videos: int = 2
    frames: int = 70
    frame_px: tuple[int, int] = (854, 480)
    video: VideoConfig = field(default_factory=VideoConfig)


QUICK = Sizes(
    weights="random:vit_tiny_patch16_224",
    image_px=64,
    batches=(2,),
    runs=3,
    photographs=24,
    photograph_px=(100, 75),
    kmeans=KmeansConfig(image_px=64, label_px=24, seeds=2),
    videos=1,
    frames=4,
    frame_px=(128, 96),
    video=VideoConfig(short_px=64),
)


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    what: str
    value: float
    unit: str
    setting: dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", required=True, help="file, in benchmarks/results unless absolute")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--davis", help="folder or tar of DAVIS'16; else videos are made up")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    options = parser.parse_args(arguments)
    bench = Bench(torch.device(options.device), QUICK if options.quick else Sizes(), options.davis)
    figures: list[Figure] = []
    for part in options.only:
        figures += PARTS[part](bench)
        write(RESULTS / options.to, figures, bench.device)  # after each, should a later one fail
    show(figures, bench.device)


def write(path: Path, figures: Sequence[Figure], device: torch.device) -> None:
    page = {
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": hardware(device),
        "versions": versions(),
        "figures": [asdict(figure) for figure in figures],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n")


class Bench:
    """Where it is measured, and the network, in bfloat16 on a GPU."""

    def __init__(self, device: torch.device, sizes: Sizes, davis: str | None) -> None:
        self.device, self.sizes, self.davis = device, sizes, davis
        self.gpu = device.type == "cuda"
        self.dtype = torch.bfloat16 if self.gpu else torch.float32
        self.workers = len(os.sched_getaffinity(0))

    def backbone(self) -> VitBackbone | ConvBackbone:
        return open_backbone(self.sizes.weights, self.sizes.image_px).to(self.device, self.dtype)

    def setting(self, **more: Any) -> dict[str, Any]:
        network = {"weights": self.sizes.weights, "dtype": str(self.dtype).removeprefix("torch.")}
        return {**network, **more}

    def median_s(self, step: Callable[[], object]) -> float:
        """Seconds of a step, the device's work included."""
        for _ in range(WARM_UPS):
            step()
        return statistics.median(self.timed(step)[1] for _ in range(self.sizes.runs))

    def timed(self, step: Callable[[], Made]) -> tuple[Made, float]:
        self.wait()
        start = time.perf_counter()
        made = step()
        self.wait()
        return made, time.perf_counter() - start

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize(self.device)

    def forget_peak(self) -> None:
        if self.gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self, what: str, setting: dict[str, Any]) -> list[Figure]:
        """The most GPU memory held by tensors since `forget_peak`."""
        if not self.gpu:
            return []
        taken = torch.cuda.max_memory_allocated(self.device) / 2**30
        return [Figure(f"{what}: GPU memory", taken, "GiB", setting)]


def measure_kmeans(bench: Bench) -> Iterator[Figure]:
    """Seconds from files to the mean score over the seeds, and what they take of memory."""
    sizes, backbone = bench.sizes, bench.backbone()
    setting = bench.setting(
        images=sizes.photographs,
        size_px=sizes.photograph_px,
        workers=bench.workers,
        **asdict(sizes.kmeans),
    )
    with tempfile.TemporaryDirectory() as folder:
        write_voc(Path(folder), sizes.photographs, *sizes.photograph_px)
        data = open_segmentation(f"voc12:{folder}", "val")
        backbone.features(images(bench, 2))  # the device's start is not K-means'
        bench.forget_peak()
        before = resident_gib(resource.RUSAGE_SELF)
        options: dict[str, Any] = {"device": bench.device, "workers": bench.workers}
        report, taken = bench.timed(
            lambda: evaluate_kmeans(backbone, data, sizes.kmeans, **options)
        )
    yield Figure("K-means", taken, "s", setting)
    yield from bench.peak("K-means", setting)
    yield Figure("K-means: memory before", before, "GiB", setting)
    yield Figure("K-means: memory", resident_gib(resource.RUSAGE_SELF), "GiB", setting)
    workers = resident_gib(resource.RUSAGE_CHILDREN)
    yield Figure("K-means: memory of the largest worker", workers, "GiB", setting)
    yield Figure("K-means: mean IoU (of noise)", 100 * report.mean, "%", setting)


def resident_gib(whose: int) -> float:
    """The peak of resident memory: of this process, or of the largest ended child."""
    return resource.getrusage(whose).ru_maxrss / 2**20


def measure_video(bench: Bench) -> Iterator[Figure]:
    """Frames a second, first from files to scores, then of the parts that the device does."""
    sizes, backbone = bench.sizes, bench.backbone()
    with tempfile.TemporaryDirectory() as folder:
        if bench.davis is None:
            write_davis(Path(folder), sizes.videos, sizes.frames, *sizes.frame_px)
        videos = open_videos(f"davis16:{bench.davis or folder}")
        height, width, _ = videos[0].read_frame(0).shape
        frames = sum(len(videos[index]) for index in range(len(videos)))
        setting = bench.setting(frame_px=(width, height), **asdict(sizes.video))
        whole = setting | {"videos": len(videos), "frames": frames, "made_up": not bench.davis}
        list(islice(follow(backbone, videos[0], sizes.video, bench.device), WARM_UPS))
        bench.forget_peak()
        report, taken = bench.timed(
            lambda: evaluate_video(backbone, videos, sizes.video, bench.device)
        )
    yield Figure("video", frames / taken, "frames/s", whole)
    if report.scores is not None:
        yield Figure("video: J&F", 100 * report.scores.means["J&F"], "%", whole)
    yield from bench.peak("video", whole)
    pixels = torch.rand(1, 3, *frame_size(height, width, sizes.video.short_px)).to(bench.device)
    taken = bench.median_s(lambda: backbone.features(pixels))
    yield Figure("video: features alone", 1 / taken, "frames/s", setting)
    taken = bench.median_s(propagation(bench, backbone.features(pixels)[0].shape))
    yield Figure("video: propagation alone", 1 / taken, "frames/s", setting)


def propagation(bench: Bench, shape: Sequence[int]) -> Callable[[], Tensor]:
    """One frame's labels, of two objects, from as many frames as the protocol has."""
    config = bench.sizes.video
    _, rows, columns = shape
    near = neighbourhood(rows, columns, config.radius, bench.device)
    sources = [
        (F.normalize(torch.randn(*shape), dim=0), torch.rand(2, rows, columns))
        for _ in range(1 + config.last_frames)
    ]
    sources = [(source.to(bench.device), labels.to(bench.device)) for source, labels in sources]
    return lambda: propagate(sources[-1][0], sources, near, config)


def measure_features(bench: Bench) -> Iterator[Figure]:
    """Images a second, from ready tensors; compiled on a GPU alone, since it takes minutes."""
    for batch in bench.sizes.batches:
        yield from features_of(bench, batch, compiled=False)
        if bench.gpu:
            yield from features_of(bench, batch, compiled=True)


def features_of(bench: Bench, batch: int, compiled: bool) -> Iterator[Figure]:
    backbone, pixels = bench.backbone(), images(bench, batch)
    features = backbone.features
    if compiled:
        torch.compiler.reset()  # each batch is compiled for itself
        features = torch.compile(features, dynamic=False)
    features(pixels)
    bench.forget_peak()
    taken = bench.median_s(lambda: features(pixels))
    how = "compiled" if compiled else "eager"
    setting = bench.setting(image_px=bench.sizes.image_px, batch=batch, runs=bench.sizes.runs)
    yield Figure(f"features, {how}", batch / taken, "images/s", setting)
    yield from bench.peak(f"features, {how}", setting)


def images(bench: Bench, batch: int) -> Tensor:
    side = bench.sizes.image_px
    return torch.randn(batch, 3, side, side).to(bench.device, bench.dtype)


# K-means first: the peak of resident memory is the process's, and compilers are large children.
PARTS = {"kmeans": measure_kmeans, "video": measure_video, "features": measure_features}


def show(figures: Sequence[Figure], device: torch.device) -> None:
    """A line a figure, with what varies within its part."""
    print("{gpu}, {cpu}, {cores} cores".format(**hardware(device)))
    for figure in figures:
        size = next(f"{key} {figure.setting[key]}" for key in VARIES if key in figure.setting)
        print(f"{figure.what:40}{figure.value:12.4g} {figure.unit:10}{size}")


if __name__ == "__main__":
    run(main)
