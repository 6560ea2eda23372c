"""Run protocols on a backbone; append the results to results.jsonl, print and draw them."""

import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from croc.config import DataConfig
from croc.data.loader import worker_count
from croc.errors import UserError
from croc.eval.command import EvaluateOptions
from croc.eval.features import progress
from croc.eval.incontext import evaluate_incontext
from croc.eval.kmeans import evaluate_kmeans, evaluate_within
from croc.eval.linear import evaluate_linear
from croc.eval.parts import OpenData, open_data
from croc.eval.pictures import segmentation_figure, video_figure
from croc.eval.protocols import Request
from croc.eval.results import FILE, Result, append_result, percent, print_results
from croc.eval.video import evaluate_video
from croc.weights.open import ConvBackbone, VitBackbone, check_fit, fingerprint, open_backbone


@dataclass(frozen=True)
class Weights:
    """A backbone, where it came from, and hashes of its tensors and of its architecture."""

    spec: str
    backbone: VitBackbone | ConvBackbone
    hash: str
    network_hash: str


@dataclass(frozen=True)
class Machine:
    """Where to compute."""

    device: torch.device
    precision: torch.dtype
    workers: int

    @property
    def precision_name(self) -> str:
        return str(self.precision).partition(".")[2]


def evaluate(
    options: EvaluateOptions,
    requests: list[Request],
    show: bool = True,
    weights: Weights | None = None,
    data: OpenData | None = None,
) -> list[Result]:
    """All requests in turn; each result is written when it is complete.

    Weights, data and options are checked before the first one starts. Weights and data that are
    open already are used as they are.
    """
    folder = Path(options.to)
    check_folder(folder)
    machine = find_machine(options)
    weights = weights or open_weights(options.weights)
    data = data or open_data(requests, folder)
    requests = [fit(request, weights.backbone) for request in requests]
    weights.backbone.to(machine.device, machine.precision)
    results: list[Result] = []
    try:
        for request in requests:
            opened = data[request.protocol, request.data]
            result = carry_out(request, weights, *opened, machine, folder)
            results += [] if result is None else [result]
    finally:
        if show and results:
            print_results(results)
            print(f"appended to {folder / FILE}; pictures in {folder / 'pictures'}")
    return results


def open_weights(spec: str) -> Weights:
    backbone = open_backbone(spec)
    return Weights(spec, backbone, fingerprint(backbone), identify_network(backbone))


def identify_network(network: nn.Module) -> str:
    """Covers what the hash of the weights does not: activations, heads, strides.

    CLIP's weights, for example, fit two timm networks that differ only in the activation.
    """
    heads = [getattr(module, "num_heads", None) for module in network.modules()]
    return hashlib.sha256(f"{network!r} {heads}".encode()).hexdigest()[:16]


def fit(request: Request, backbone: VitBackbone | ConvBackbone) -> Request:
    """Reject a size that is not a whole number of patches; if it `adapts`, take the nearest."""
    size, stride = request.size_field, backbone.stride_px
    side, blocks = getattr(request.config, size), getattr(request.config, "blocks", 1)
    if request.adapts and isinstance(backbone, VitBackbone) and side % stride:
        side = max(1, round(side / stride)) * stride
        request = replace(request, config=replace(request.config, **{size: side}))
    flag = f"--{request.protocol}.{size}".replace("_", "-") + ": images"
    check_fit(backbone, side, blocks, flag)
    return request


def check_folder(folder: Path) -> None:
    """Whether it can be created and written; nothing is created yet."""
    whole = folder.absolute()
    existing = next(path for path in (whole, *whole.parents) if path.exists())
    if not existing.is_dir():
        raise UserError(f"--to {folder}: {existing} is a file, pass a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"--to {folder}: {existing} is not writable, pass another folder")


def find_machine(options: EvaluateOptions) -> Machine:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU here; pass --device cpu")
    available = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(available if options.device == "auto" else options.device)
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    if options.precision != "auto":
        precision = getattr(torch, options.precision)
    return Machine(device, precision, worker_count(DataConfig(workers=options.workers)))


def carry_out(
    request: Request,
    weights: Weights,
    parts: dict[str, Any],
    data_hash: str,
    machine: Machine,
    folder: Path,
) -> Result | None:
    """Run a protocol, draw and append its result; None if there was nothing to score."""
    started = time.perf_counter()
    scores, classes, draw = run_protocol(request, weights.backbone, parts, machine)
    if not scores:  # videos without truth: only masks or overlays are written
        return None
    # What is scored with a hold-out is not the validation split.
    names = {"val": "held out"} if request.hold_out else {}
    device = machine.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    result = Result(
        protocol=request.protocol,
        data=request.data,
        weights=weights.spec,
        backbone=weights.backbone.name,
        weights_hash=weights.hash,
        scores=scores,
        classes=classes,
        config=asdict(request.config),
        count={names.get(part, part): len(data) for part, data in parts.items()},
        machine={"device": name, "precision": machine.precision_name},
        seconds=round(time.perf_counter() - started, 2),
        picture=None,
        data_hash=data_hash,
        network_hash=weights.network_hash,
        hold_out=request.hold_out,
    )
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    if draw is not None:
        kind = result.data.partition(":")[0]
        picture = f"pictures/{result.protocol}-{kind}-{result.key}.png"
        name, score = next(iter(scores.items()))
        title = f"{result.protocol}, {kind}{result.part}, {result.backbone}: {name} {score:.1f}"
        try:
            draw(folder / picture, title)
            result = replace(result, picture=picture)
        except (OSError, RuntimeError, ValueError) as error:  # the scores took longer
            print(f"the picture could not be drawn: {error}", file=sys.stderr)
    append_result(folder, result)
    return result


def run_protocol(
    request: Request, backbone: VitBackbone | ConvBackbone, parts: dict[str, Any], machine: Machine
) -> tuple[dict[str, Any], dict[str, float | None], Callable[[Path, str], None] | None]:
    """Scores, those of the classes or videos, and what draws a picture, given path and title."""
    protocol, config, device = request.protocol, request.config, machine.device
    track = progress(f"{protocol}, {request.data}")
    if protocol == "video":
        folders = [Path(each) if each else None for each in (request.masks, request.overlays)]
        video = evaluate_video(backbone, parts["videos"], config, device, track, *folders)
        for folder in filter(None, folders):
            print(f"written: {folder}")
        means = video.scores.means if video.scores else {}
        return (
            {name: 100 * mean for name, mean in means.items()},
            {name: 100 * scores.means["J&F"] for name, scores in video.videos.items()},
            partial(video_figure, video.examples) if video.examples else None,
        )
    where = config, device, machine.workers, track
    scores: dict[str, Any]
    if protocol in ("kmeans", "within"):
        run = evaluate_kmeans if protocol == "kmeans" else evaluate_within
        seeds = run(backbone, parts["val"], *where)
        report = seeds.first
        scores = {
            "mIoU": 100 * seeds.mean,
            "deviation": 100 * seeds.deviation,
            "by seed": [100 * score for score in seeds.scores],
        }
    elif protocol == "linear":
        linear = evaluate_linear(backbone, parts["train"], parts["val"], *where)
        report = linear.best
        scores = report.percentages
        if len(linear.by_rate) > 1:
            by_rate = {f"{rate:g}": percent(score) for rate, score in linear.by_rate.items()}
            scores |= {"best rate": f"{linear.rate:g}", "by rate": by_rate}
    else:
        report = evaluate_incontext(backbone, parts["train"], parts["val"], *where)
        scores = report.percentages
    classes = parts["val"].classes
    return (
        scores,
        dict(zip(classes, map(percent, report.iou.per_class.tolist()), strict=True)),
        partial(segmentation_figure, report.examples, classes),
    )
