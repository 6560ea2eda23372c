"""Run protocols on a backbone; append the results to results.jsonl, print and draw them.

With a hold-out, one part of the training split is trained on and the other is scored: this is for
model selection, so that the validation split is used only once, at the end.
"""

import functools
import hashlib
import os
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from croc.data import scenes
from croc.errors import UserError
from croc.eval.datasets import SPLITS, SegmentationData, Subset, open_segmentation
from croc.eval.features import Report
from croc.eval.fewlabel import evaluate_few_labels
from croc.eval.incontext import evaluate_incontext
from croc.eval.kmeans import evaluate_kmeans, evaluate_within
from croc.eval.linear import evaluate_linear
from croc.eval.machine import Machine, find_machine
from croc.eval.metrics import IGNORED
from croc.eval.pictures import few_label_figure, segmentation_figure
from croc.eval.protocols import VERSIONS, EvaluateOptions, Request, VideoConfig
from croc.eval.video import evaluate_video
from croc.eval.videos import open_videos
from croc.results import FILE, Result, append_result, describe
from croc.weights.backbones import (
    FrozenBackbone,
    VitBackbone,
    check_fit,
    fingerprint,
)
from croc.weights.open import open_backbone

EVALUATORS: dict[str, Callable[..., Report]] = {
    "linear": evaluate_linear,
    "kmeans": evaluate_kmeans,
    "within": evaluate_within,
    "incontext": evaluate_incontext,
    "fewlabel": evaluate_few_labels,
    "video": evaluate_video,
}
"""By protocol: from a backbone, a machine, the data and a configuration to a report."""
READ_WHOLE_BYTES = 2**28
SAMPLED_FILES = 64
SAMPLED_BYTES = 2**20

OpenData = dict[tuple[str, str], tuple[dict[str, Any], str]]
"""By protocol and data: what is trained on ("train") and scored ("val", or "videos"), and the
hash of the dataset, by which finished scores are found."""


@dataclass(frozen=True)
class Weights:
    """A backbone, where it came from, and hashes of its tensors and of its architecture."""

    spec: str
    backbone: FrozenBackbone
    hash: str
    network_hash: str


def evaluate(
    options: EvaluateOptions, requests: Sequence[Request], show: bool = True
) -> list[Result]:
    """All requests in turn; each result is written when it is complete.

    Weights, data and options are checked before the first one starts.
    """
    folder = Path(options.to)
    machine = find_machine(options)
    weights = open_weights(options.weights)
    data = open_data(requests, folder)
    fitted = [
        replace(request, config=fit_image_size(request.config, weights.backbone))
        for request in requests
    ]
    results: list[Result] = []
    for request in fitted:
        print(request.label, file=sys.stderr, flush=True)
        results.append(run_protocol(request, weights, data, machine, folder))
        if show:
            print(describe(results[-1]), flush=True)
    if show and results:
        print(f"appended to {folder / FILE}; pictures in {folder / 'pictures'}")
    return results


def open_weights(spec: str) -> Weights:
    backbone = open_backbone(spec)
    return Weights(spec, backbone, fingerprint(backbone), identify_network(backbone))


def identify_network(network: nn.Module) -> str:
    """A hash of what that of the weights does not cover: activations, heads, strides.

    CLIP's weights, for example, fit two timm networks that differ only in the activation.
    """
    heads = [getattr(module, "num_heads", None) for module in network.modules()]
    return hashlib.sha256(f"{network!r} {heads}".encode()).hexdigest()[:16]


def fit_image_size(config: Any, backbone: FrozenBackbone) -> Any:
    """The configuration with the nearest image size that is a whole number of patches."""
    name = "short_px" if isinstance(config, VideoConfig) else "image_px"
    side, stride = getattr(config, name), backbone.stride_px
    is_vit = isinstance(backbone, VitBackbone)
    fitting = max(1, round(side / stride)) * stride if is_vit else side
    check_fit(backbone, fitting, getattr(config, "blocks", 1))
    if fitting == side:
        return config
    what = f"image size changed from {side} to {fitting} px, a multiple of the patch size"
    print(f"{what} ({stride} px)", file=sys.stderr)
    return replace(config, **{name: fitting})


def run_protocol(
    request: Request, weights: Weights, data: OpenData, machine: Machine, folder: Path
) -> Result:
    """Run a protocol, append its result and draw it."""
    started = time.perf_counter()
    protocol, config, device = request.protocol, request.config, machine.device
    parts, data_hash = data[protocol, request.data]
    (folder / "pictures").mkdir(parents=True, exist_ok=True)  # fails before the computation
    backbone = weights.backbone.to(device, machine.precision)
    more = {"masks": Path(request.masks)} if request.masks else {}
    report = EVALUATORS[protocol](backbone, machine, *parts.values(), config, **more)
    if request.masks:
        print(f"written: {request.masks}")
    # With a hold-out, the scored images are not the validation split.
    part_names = {"val": "held out"} if request.hold_out else {}
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    result = Result(
        protocol=protocol,
        data=request.data,
        weights=weights.spec,
        backbone=backbone.name,
        weights_hash=weights.hash,
        scores=report.scores,
        classes=report.classes,
        config=asdict(config),
        count={part_names.get(part, part): len(images) for part, images in parts.items()},
        machine={"device": gpu, "precision": machine.precision_name},
        seconds=round(time.perf_counter() - started, 2),
        picture=None,
        data_hash=data_hash,
        network_hash=weights.network_hash,
        hold_out=request.hold_out,
        protocol_version=VERSIONS.get(protocol, 1),
    )
    kind = result.data.partition(":")[0]
    picture = f"pictures/{protocol}-{kind}-{result.key}.png"
    result = replace(result, picture=picture)
    append_result(folder, result)  # before the picture: the scores took longer
    name, score = next(iter(report.scores.items()))
    title = f"{protocol}, {kind}{result.part}, {result.backbone}: {name} {score:.1f}"
    if protocol == "fewlabel":
        few_label_figure({kind + result.part: {result.backbone: report.scores}}, folder / picture)
    else:
        objects = ("background", *(f"object {number}" for number in range(1, IGNORED)))
        classes = objects if protocol == "video" else parts["val"].classes
        segmentation_figure(report.examples, classes, folder / picture, title)
    return result


def open_data(requests: Iterable[Request], folder: Path) -> OpenData:
    """Everything is opened once; files in `folder`, where results are, do not change the hash."""
    splits = functools.cache(open_segmentation)
    hash_of = functools.cache(identify_data)
    opened: OpenData = {}
    for request in requests:
        protocol, data, share = request.protocol, request.data, request.hold_out
        names = ("val",) if protocol in ("kmeans", "within") else SPLITS
        if protocol == "video":
            parts: dict[str, Any] = {"videos": open_videos(data)}
        else:
            split = split_training(splits(data, "train", alone=True), share) if share else None
            parts = {name: split[name] if split else splits(data, name) for name in names}
            if len({tuple(part.classes) for part in parts.values()}) > 1:
                raise UserError(f"{data}: the two splits have different classes")
        opened[protocol, data] = parts, hash_of(data, folder)
    return opened


def split_training(data: SegmentationData, share: float) -> dict[str, Subset]:
    """The share whose names hash lowest is scored ("val"), the rest trains ("train").

    The choice depends on the names alone, not on the order of files, the machine or a seed, and
    a larger share contains a smaller one.
    """

    def key(name: str) -> tuple[bytes, str]:
        text = f"croc hold-out\0{name}".encode("utf-8", "surrogateescape")
        return hashlib.sha256(text).digest(), name

    names = [data.name(number) for number in range(len(data))]
    ranked = sorted(set(names), key=key)  # images of one name stay together
    count = round(share * len(ranked))
    if not 0 < count < len(ranked):
        left = "to train on" if count else "to score"
        raise UserError(f"--hold-out {share:g} of {len(ranked)} training images leaves none {left}")
    chosen = set(ranked[:count])
    return {
        "train": Subset(data, tuple(i for i, name in enumerate(names) if name not in chosen)),
        "val": Subset(data, tuple(i for i, name in enumerate(names) if name in chosen)),
    }


def identify_data(spec: str, outside: Path | None = None) -> str:
    """Independent of the path; files below the folder `outside` do not count.

    Small datasets are read whole. Of large ones the names and sizes of all files count, and some
    of the bytes: an edit that keeps a file's size may go unnoticed. Dates do not count, since
    copying changes them.
    """
    kind, _, place = spec.partition(":")
    digest = hashlib.sha256(kind.encode())
    root, excluded = Path(place).expanduser(), outside.resolve() if outside else None
    if kind != "scenes" and root.resolve() == excluded:
        raise UserError(f"--to {outside} is the folder of the data: choose another")
    if kind == "scenes":  # generated by this file
        digest.update(place.encode() + Path(scenes.__file__).read_bytes())
    elif root.is_dir():
        sizes = {}
        for folder, subfolders, names in os.walk(root, followlinks=True):
            subfolders[:] = [
                name
                for name in subfolders
                if not name.startswith(".") and Path(folder, name).resolve() != excluded
            ]
            for path in (Path(folder, name) for name in names if not name.startswith(".")):
                if path.is_file():
                    sizes[path.relative_to(root).as_posix()] = path.stat().st_size
        sizes = dict(sorted(sizes.items()))
        for name, size in sizes.items():
            digest.update(f"{name}\0{size}\n".encode("utf-8", "surrogateescape"))
        names, limit = list(sizes), -1
        if sum(sizes.values()) > READ_WHOLE_BYTES:
            names, limit = names[:: max(1, len(names) // SAMPLED_FILES)], SAMPLED_BYTES
        for name in names:
            with (root / name).open("rb") as file:
                digest.update(file.read(limit))
    elif root.stat().st_size <= READ_WHOLE_BYTES:
        with root.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    else:
        with tarfile.open(root, "r:") as tar:  # copying keeps the dates of members
            for member in tar:
                line = f"{member.name}\0{member.size}\0{member.mtime}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]
