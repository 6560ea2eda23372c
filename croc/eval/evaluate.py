"""Run protocols on a backbone; draw, append to results.jsonl and print what they found."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from croc.config import DataConfig
from croc.data.loader import worker_count
from croc.errors import UserError
from croc.eval.bars import Bars
from croc.eval.command import EvaluateOptions
from croc.eval.datasets import SegmentationData
from croc.eval.features import (
    ConvBackbone,
    VitBackbone,
    check_fit,
    fingerprint,
    open_backbone,
)
from croc.eval.incontext import evaluate_incontext
from croc.eval.kmeans import KmeansReport, evaluate_kmeans
from croc.eval.linear import evaluate_linear
from croc.eval.parts import count_parts, open_parts
from croc.eval.results import FILE, Result, append_result, percent, print_results
from croc.eval.scoring import SegmentationReport
from croc.eval.table.identity import identify_data, identify_network
from croc.eval.tracking import Track
from croc.eval.video import evaluate_video
from croc.eval.within import evaluate_within
from croc.lab.show.predictions import segmentation_figure, video_figure


@dataclass(frozen=True)
class Request:
    """One protocol on one data set."""

    protocol: str
    data: str
    config: Any
    masks: str | None = None
    overlays: str | None = None
    adapts: bool = False
    """Whether a size that does not fit the patches may be changed."""
    hold_out: float = 0.0
    """The share of the training part that is scored, instead of the validation part."""


@dataclass(frozen=True)
class Found:
    """What a protocol's report comes down to."""

    scores: dict[str, Any]
    classes: dict[str, float | None]
    draw: Callable[[Path, str], None] | None


@dataclass(frozen=True)
class Weights:
    """A backbone, where it came from, and hashes of its tensors and of how it uses them."""

    spec: str
    backbone: VitBackbone | ConvBackbone
    hash: str
    network_hash: str


@dataclass(frozen=True)
class Machine:
    """What it is computed on, and how."""

    device: torch.device
    precision: torch.dtype
    workers: int

    @property
    def precision_name(self) -> str:
        return str(self.precision).partition(".")[2]


@dataclass(frozen=True)
class Job:
    """A request with all it needs."""

    request: Request
    weights: Weights
    parts: dict[str, Any]
    data_hash: str
    machine: Machine
    counter: str = ""
    """Which of several jobs it is, for its bars."""

    @property
    def backbone(self) -> VitBackbone | ConvBackbone:
        return self.weights.backbone

    @property
    def rest(self) -> tuple[Any, torch.device, int, Track]:
        """What every protocol takes after the backbone and the data."""
        track = Bars(f"{self.counter}{self.request.protocol}, {self.request.data}").track
        return self.request.config, self.machine.device, self.machine.workers, track


def evaluate(options: EvaluateOptions, requests: list[Request], show: bool = True) -> list[Result]:
    """All requests in turn, each written when it is whole.

    What can be wrong with any of them is found before the first one starts.
    """
    folder = Path(options.to)
    check_folder(folder)
    machine = find_machine(options)
    weights = open_weights(options.weights)
    parts = [open_parts(each.protocol, each.data, hold_out=each.hold_out) for each in requests]
    hashes = {data: identify_data(data, folder) for data in {each.data for each in requests}}
    requests = [fit(request, weights.backbone) for request in requests]
    weights.backbone.to(machine.device, machine.precision)
    jobs = [
        Job(each, weights, data, hashes[each.data], machine) for each, data in zip(requests, parts)
    ]
    results: list[Result] = []
    try:
        for job in jobs:
            result = carry_out(job, folder)
            results += [] if result is None else [result]
    finally:
        if show and results:
            print_results(results)
            print(f"appended to {folder / FILE}; pictures in {folder / 'pictures'}")
    return results


def open_weights(spec: str) -> Weights:
    backbone = open_backbone(spec)
    return Weights(spec, backbone, fingerprint(backbone), identify_network(backbone))


def carry_out(job: Job, folder: Path) -> Result | None:
    """Run a protocol and write what it found; None if there was nothing to score."""
    started = time.perf_counter()
    found = RUNNERS[job.request.protocol](job)
    if not found.scores:  # videos without truth: only masks or overlays were asked for
        return None
    device = job.machine.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    result = Result(
        protocol=job.request.protocol,
        data=job.request.data,
        weights=job.weights.spec,
        backbone=job.backbone.name,
        weights_hash=job.weights.hash,
        scores=found.scores,
        classes=found.classes,
        config=asdict(job.request.config),
        count=count_parts(job.parts, job.request.hold_out),
        machine={"device": name, "precision": job.machine.precision_name},
        seconds=round(time.perf_counter() - started, 2),
        picture=None,
        data_hash=job.data_hash,
        network_hash=job.weights.network_hash,
        hold_out=job.request.hold_out,
    )
    return _write(folder, result, found)


def fit(request: Request, backbone: VitBackbone | ConvBackbone) -> Request:
    """Refuse a size that is no whole number of patches; under `all`, take the nearest one."""
    size = "short_px" if request.protocol == "video" else "image_px"
    side, blocks = getattr(request.config, size), getattr(request.config, "blocks", 1)
    stride = backbone.stride_px
    if request.adapts and isinstance(backbone, VitBackbone) and side % stride:
        side = max(1, round(side / stride)) * stride
        request = replace(request, config=replace(request.config, **{size: side}))
    flag = f"--{request.protocol}.{size}".replace("_", "-") + ": images"
    check_fit(backbone, side, blocks, flag)
    return request


def check_folder(folder: Path) -> None:
    """Whether it can be made and written; nothing is made yet."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"--to {folder}: {there} is a file, name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"--to {folder}: nothing can be written to {there}, name another folder")


def find_machine(options: EvaluateOptions) -> Machine:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; pass --device cpu")
    there = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(there if options.device == "auto" else options.device)
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    if options.precision != "auto":
        precision = getattr(torch, options.precision)
    return Machine(device, precision, worker_count(DataConfig(workers=options.workers)))


def _write(folder: Path, result: Result, found: Found) -> Result:
    """The picture first: a line of results.jsonl speaks only of what is there."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    if found.draw is not None:
        kind = result.data.partition(":")[0]
        picture = f"pictures/{result.protocol}-{kind}-{result.key}.png"
        name, score = next(iter(result.scores.items()))
        title = f"{result.protocol}, {kind}{result.part}, {result.backbone}: {name} {score:.1f}"
        try:
            found.draw(folder / picture, title)
            result = replace(result, picture=picture)
        except (OSError, RuntimeError, ValueError) as error:  # the scores took longer
            print(f"the picture could not be drawn: {error}", file=sys.stderr)
    append_result(folder, result)
    return result


def _linear(job: Job) -> Found:
    report = evaluate_linear(job.backbone, job.parts["train"], job.parts["val"], *job.rest)
    found = _segmentation(report.best, job.parts["val"])
    if len(report.by_rate) == 1:
        return found
    by_rate = {f"{rate:g}": percent(score) for rate, score in report.by_rate.items()}
    return replace(
        found, scores=found.scores | {"best rate": f"{report.rate:g}", "by rate": by_rate}
    )


def _kmeans(job: Job) -> Found:
    return _over_seeds(evaluate_kmeans(job.backbone, job.parts["val"], *job.rest), job)


def _within(job: Job) -> Found:
    return _over_seeds(evaluate_within(job.backbone, job.parts["val"], *job.rest), job)


def _over_seeds(report: KmeansReport, job: Job) -> Found:
    scores = {
        "mIoU": 100 * report.mean,
        "deviation": 100 * report.deviation,
        "by seed": [100 * score for score in report.scores],
    }
    return replace(_segmentation(report.first, job.parts["val"]), scores=scores)


def _incontext(job: Job) -> Found:
    report = evaluate_incontext(job.backbone, job.parts["train"], job.parts["val"], *job.rest)
    return _segmentation(report, job.parts["val"])


def _video(job: Job) -> Found:
    config, device, _, track = job.rest
    masks, overlays = job.request.masks, job.request.overlays
    report = evaluate_video(
        job.backbone,
        job.parts["videos"],
        config,
        device,
        track,
        masks=None if masks is None else Path(masks),
        overlays=None if overlays is None else Path(overlays),
    )
    for written in filter(None, (masks, overlays)):
        print(f"written: {written}")
    means = {} if report.scores is None else report.scores.means
    return Found(
        {name: 100 * means[name] for name in ("J&F", "J", "F") if name in means},
        {name: 100 * each.means["J&F"] for name, each in report.videos.items()},
        partial(video_figure, report.examples) if report.examples else None,
    )


RUNNERS = {
    "linear": _linear,
    "kmeans": _kmeans,
    "within": _within,
    "incontext": _incontext,
    "video": _video,
}


def _segmentation(report: SegmentationReport, val: SegmentationData) -> Found:
    shares = map(percent, report.iou.per_class.tolist())
    return Found(
        {"mIoU": 100 * report.iou.mean, "accuracy": 100 * report.iou.accuracy},
        dict(zip(val.classes, shares, strict=True)),
        partial(segmentation_figure, report.examples, val.classes),
    )
