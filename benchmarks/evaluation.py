"""How fast the evaluations are: python -m benchmarks.evaluation --to 2026-01-31-h200.json

Features of a ViT-S/16 at 448², K-means over a dataset of VOC12's size, and video propagation at
480p. Data is synthetic unless --davis names a folder of real videos.
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.common import (
    RESULTS,
    Figure,
    figure,
    run,
    show,
    this_device,
    wait,
    write_davis,
    write_json,
    write_voc,
)
from croc.eval.datasets import open_segmentation
from croc.eval.kmeans import evaluate_kmeans
from croc.eval.protocols import KmeansConfig, VideoConfig
from croc.eval.video import evaluate_video, follow, frame_size, neighborhood, propagate
from croc.eval.videos import open_videos
from croc.weights.open import ConvBackbone, VitBackbone, open_backbone

WARM_UPS = 3
VARIES = ("batch", "images", "frames", "frame_px")


@dataclass(frozen=True)
class Sizes:
    """What is measured; the defaults are those of the protocols and datasets. The median of
    `runs` timed repetitions counts."""

    weights: str = "random:vit_small_patch16_224"
    image_px: int = 448
    batches: tuple[int, ...] = (64, 128, 256)
    runs: int = 20
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--to", required=True, help="file, in benchmarks/results unless absolute")
    parser.add_argument("--device", type=torch.device, default=this_device())
    parser.add_argument("--davis", help="folder or tar of DAVIS'16; else videos are made up")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS))
    options = parser.parse_args(arguments)
    bench = Bench(options.device, QUICK if options.quick else Sizes(), options.davis)
    figures: list[Figure] = []
    for part in options.only:
        figures += PARTS[part](bench)
        # After each part, in case a later one fails.
        write_json(RESULTS / options.to, bench.device, figures=figures)
    show(figures, bench.device, lambda it: next(f"{key} {it[key]}" for key in VARIES if key in it))


class Bench:
    """Where it is measured, and the network, in bfloat16 on a GPU."""

    def __init__(self, device: torch.device, sizes: Sizes, davis: str | None) -> None:
        self.device, self.sizes, self.davis = device, sizes, davis
        self.gpu = device.type == "cuda"
        self.dtype = torch.bfloat16 if self.gpu else torch.float32
        self.workers = len(os.sched_getaffinity(0))
        dtype = str(self.dtype).removeprefix("torch.")
        self.setting: dict[str, Any] = {"weights": sizes.weights, "dtype": dtype}

    def backbone(self) -> VitBackbone | ConvBackbone:
        return open_backbone(self.sizes.weights, self.sizes.image_px).to(self.device, self.dtype)

    def images(self, batch: int) -> torch.Tensor:
        side = self.sizes.image_px
        return torch.randn(batch, 3, side, side).to(self.device, self.dtype)

    def median_s(self, step: Callable[[], object]) -> float:
        """Seconds of a step, the device's work included."""
        taken: list[float] = []
        for _ in range(WARM_UPS + self.sizes.runs):
            wait(self.device)
            start = time.perf_counter()
            step()
            wait(self.device)
            taken.append(time.perf_counter() - start)
        return statistics.median(taken[WARM_UPS:])

    def reset_peak(self) -> None:
        if self.gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self, what: str, setting: dict[str, Any]) -> list[Figure]:
        """The most GPU memory in tensors since `reset_peak`."""
        if not self.gpu:
            return []
        gib = torch.cuda.max_memory_allocated(self.device) / 2**30
        return [figure(f"{what}: GPU memory", gib, "GiB", setting)]


def measure_kmeans(bench: Bench) -> Iterator[Figure]:
    """Seconds from files to the mean score over the seeds, and memory."""
    sizes, backbone = bench.sizes, bench.backbone()
    setting = bench.setting | {"images": sizes.photographs, "size_px": sizes.photograph_px}
    setting |= {"workers": bench.workers} | asdict(sizes.kmeans)
    with tempfile.TemporaryDirectory() as folder:
        write_voc(Path(folder), sizes.photographs, *sizes.photograph_px)
        data = open_segmentation(f"voc12:{folder}", "val")
        backbone.features(bench.images(2))  # starting the device does not count
        wait(bench.device)
        bench.reset_peak()
        before = resident_gib(resource.RUSAGE_SELF)
        start = time.perf_counter()
        report = evaluate_kmeans(backbone, data, sizes.kmeans, bench.device, bench.workers)
        wait(bench.device)
        yield figure("K-means", time.perf_counter() - start, "s", setting)
    yield from bench.peak("K-means", setting)
    yield figure("K-means: memory before", before, "GiB", setting)
    yield figure("K-means: memory", resident_gib(resource.RUSAGE_SELF), "GiB", setting)
    workers = resident_gib(resource.RUSAGE_CHILDREN)
    yield figure("K-means: memory of the largest worker", workers, "GiB", setting)
    yield figure("K-means: mean IoU (of noise)", report.scores["mIoU"], "%", setting)


def resident_gib(whose: int) -> float:
    """The peak of resident memory: of this process, or of the largest ended child."""
    return resource.getrusage(whose).ru_maxrss / 2**20


def measure_video(bench: Bench) -> Iterator[Figure]:
    """Frames per second, first from files to scores, then of the parts that the device does."""
    sizes, config, device, backbone = bench.sizes, bench.sizes.video, bench.device, bench.backbone()
    with tempfile.TemporaryDirectory() as folder:
        if bench.davis is None:
            write_davis(Path(folder), sizes.videos, sizes.frames, *sizes.frame_px)
        videos = open_videos(f"davis16:{bench.davis or folder}")
        height, width, _ = videos[0].read_frame(0).shape
        frames = sum(len(videos[index]) for index in range(len(videos)))
        setting = bench.setting | {"frame_px": (width, height)} | asdict(config)
        whole = setting | {"videos": len(videos), "frames": frames, "made_up": not bench.davis}
        list(islice(follow(backbone, videos[0], config, device), WARM_UPS))
        wait(device)
        bench.reset_peak()
        start = time.perf_counter()
        report = evaluate_video(backbone, videos, config, device)
        wait(device)
        yield figure("video", frames / (time.perf_counter() - start), "frames/s", whole)
    yield figure("video: J&F", report.means["J&F"], "%", whole)
    yield from bench.peak("video", whole)

    pixels = torch.rand(1, 3, *frame_size(height, width, config.short_px)).to(device)
    taken = bench.median_s(lambda: backbone.features(pixels))
    yield figure("video: features alone", 1 / taken, "frames/s", setting)
    # One frame's labels of two objects, from as many frames as the protocol has.
    _, rows, columns = shape = backbone.features(pixels)[0].shape
    near = neighborhood(rows, columns, config.radius, device)
    sources = [
        (F.normalize(torch.randn(*shape), dim=0).to(device), torch.rand(2, *shape[1:]).to(device))
        for _ in range(1 + config.last_frames)
    ]
    taken = bench.median_s(lambda: propagate(sources[-1][0], sources, near, config))
    yield figure("video: propagation alone", 1 / taken, "frames/s", setting)


def measure_features(bench: Bench) -> Iterator[Figure]:
    """Images per second, from ready tensors; compiled only on a GPU, because it takes minutes."""
    for batch in bench.sizes.batches:
        for how in ("eager", "compiled") if bench.gpu else ("eager",):
            pixels, features = bench.images(batch), bench.backbone().features
            if how == "compiled":
                torch.compiler.reset()  # each batch size is compiled separately
                features = torch.compile(features, dynamic=False)
            features(pixels)
            bench.reset_peak()
            taken = bench.median_s(lambda run=features, pixels=pixels: run(pixels))
            setting = bench.setting | {"image_px": bench.sizes.image_px, "batch": batch}
            setting["runs"] = bench.sizes.runs
            yield figure(f"features, {how}", batch / taken, "images/s", setting)
            yield from bench.peak(f"features, {how}", setting)


# K-means first: the peak of resident memory is the process's, and compilers are large children.
PARTS = {"kmeans": measure_kmeans, "video": measure_video, "features": measure_features}


if __name__ == "__main__":
    run(main)
