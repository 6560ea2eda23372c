"""`croc segment fit`: a head from labeled images, and an estimate of its score."""

import copy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch import nn

from croc.errors import UserError
from croc.eval.datasets import Subset, open_segmentation
from croc.eval.evaluate import fit_image_size, split_training
from croc.eval.features import PatchFeatures, Report, score
from croc.eval.incontext import fill_memory
from croc.eval.linear import few_label_steps, train_linear, training_crop
from croc.eval.machine import find_machine
from croc.eval.metrics import IGNORED, iou, scores_by_class
from croc.eval.protocols import InContextConfig, LinearConfig
from croc.io import versions
from croc.segmentation.options import FitOptions
from croc.segmentation.segmenter import (
    Segmenter,
    check_new,
    default_colors,
    fold_standardization,
    save_segmenter,
)
from croc.tables import count_noun
from croc.weights.open import check_storable, open_backbone
from croc.weights.record import without_folder

MIN_IMAGES_TO_HOLD_OUT = 50
"""With this many images, some are held out; with fewer, all are scored, by two-fold validation."""
Config = LinearConfig | InContextConfig


def fit(options: FitOptions, config: Config, is_length_chosen: bool = False) -> list[str]:
    """Train, score and save; return the lines to print."""
    started = time.perf_counter()
    check_new(options.to)
    machine = find_machine(options, fast=True)
    data = open_segmentation(options.data, "train", alone=True)
    names = tuple(data.classes)
    if names == tuple(map(str, range(len(names)))):
        print(f"no classes.txt: classes are named 0 … {len(names) - 1}", file=sys.stderr)
    backbone = open_backbone(options.weights)
    check_storable(backbone)
    config = fit_image_size(config, backbone)

    def config_for(images: int) -> Any:
        if is_length_chosen or not isinstance(config, LinearConfig) or not config.steps:
            return config
        return replace(config, steps=few_label_steps(images, config.steps))

    # The working copy may be rounded to bfloat16; the stored one is not.
    working: Any = copy.deepcopy(backbone).to(machine.device, machine.precision)
    linear = isinstance(config, LinearConfig)
    sizes = (config.image_px, config.train_px if linear else config.label_px, config.blocks)
    patches = PatchFeatures(working, machine, data, *sizes, fill=True)
    if not (linear and training_crop(config)):
        patches.keep()
    pixels = count_pixels(patches) if patches.cached else None
    scores, best = score_heads(patches, config_for, options.hold_out)
    config = config_for(len(data))
    if isinstance(config, LinearConfig):
        config = replace(config, lrs=(config.lrs[best],))
    images = count_noun(len(data), "image")
    print(f"training on {images}", file=sys.stderr)
    head: Any = train_heads(patches, config)[0]
    if linear:
        head = fold_standardization(head)
    segmenter = Segmenter(
        backbone,
        head,
        names,
        default_colors(len(names)),
        config.image_px,
        config.blocks,
        getattr(config, "resize", "square"),
    )
    kind, _, path = options.data.partition(":")
    metadata = {
        "made by": "croc segment fit",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "weights": without_folder(options.weights),
        "data": f"{kind}:{without_folder(path)}",
        "images": len(data),
        "labeled pixels": pixels,
        "score": scores,
        "config": asdict(config),
        "machine": {"device": machine.device.type, "precision": machine.precision_name},
        "seconds": round(time.perf_counter() - started, 1),
        "versions": versions(),
    }
    save_segmenter(segmenter, options.to, metadata)
    measured = f"mIoU {scores['mIoU']:.1f} ({scores['how']})" if scores else "not scored"
    lines = [f"{options.to}: {len(names)} classes from {images}, {measured}"]
    if scores:
        by_class = scores["classes"].items()
        lines.append(", ".join(f"{name} {x:.1f}" for name, x in by_class if x is not None))
    return lines


def count_pixels(patches: PatchFeatures) -> dict[str, int]:
    """Labeled pixels of each class at the size of training; classes without one are reported."""
    labels: Any = patches.cached and patches.cached[1]
    by_class = dict(zip(patches.data.classes, labels.flatten().bincount(minlength=256).tolist()))
    missing = [name for name, count in by_class.items() if not count]
    if len(missing) == len(by_class):
        raise UserError(f"no training pixel is labeled: all labels are {IGNORED}")
    if missing:
        names = ", ".join(missing)
        print(
            f"no pixels are labeled {names}: the head cannot learn these classes", file=sys.stderr
        )
    return by_class


def score_heads(
    patches: PatchFeatures, config_for: Callable[[int], Config], hold_out: float | None
) -> tuple[dict[str, Any] | None, int]:
    """Scores of heads on images that they were not trained on, how they were obtained, and the
    index of the best learning rate; None if nothing can be scored."""
    data, count = patches.data, len(patches.data)
    if hold_out == 0 or count < 2:
        return None, 0
    if hold_out is None and count < MIN_IMAGES_TO_HOLD_OUT:
        first, second = split_training(data, 0.5).values()
        folds = [(first, second), (second, first)]
        how = "each half of the images scored by a head trained on the other"
    else:
        train, val = split_training(data, 0.2 if hold_out is None else hold_out).values()
        folds = [(train, val)]
        how = f"on {count_noun(len(val), 'held-out image')} by a head trained on {len(train)}"
    reports = []
    for number, (train, val) in enumerate(folds, start=1):
        part = f"half {number} of 2" if len(folds) > 1 else "held-out images"
        print(f"estimating the score: {part} (--hold-out 0 skips this)", file=sys.stderr)
        try:
            reports.append(score_fold(patches, train, val, config_for(len(train))))
        except UserError as error:  # a half of a few partly labeled images may have no labels
            if len(folds) == 1 or "labeled" not in str(error):
                raise
            return None, 0
    # One confusion matrix per learning rate, over all folds.
    totals = [iou(sum((fold.counts for fold in folds), torch.tensor(0))) for folds in zip(*reports)]
    best = max(range(len(totals)), key=lambda number: totals[number].mean)
    total = totals[best]
    scores: dict[str, Any] = {
        "how": how,
        "mIoU": 100 * total.mean,
        "accuracy": 100 * total.accuracy,
    }
    return scores | {"classes": scores_by_class(data.classes, total.per_class)}, best


def score_fold(
    patches: PatchFeatures, train: Subset, val: Subset, config: Config
) -> Sequence[Report]:
    """As `croc evaluate` does; for each learning rate."""
    heads = train_heads(patches.subset(train.numbers), config)
    scored = patches
    if isinstance(config, LinearConfig) and config.score_px != config.train_px:
        source = (patches.backbone, patches.machine, patches.data)
        sizes = (config.image_px, config.score_px, config.blocks)
        keep_ratio = config.resize == "keep-ratio"
        scored = PatchFeatures(*source, *sizes, keep_ratio=keep_ratio, fill=True)
    return score(scored.subset(val.numbers), heads)


def train_heads(patches: PatchFeatures, config: Config) -> Sequence[nn.Module]:
    """As `croc evaluate` does: a layer for each learning rate, or one memory."""
    if isinstance(config, LinearConfig):
        return train_linear(patches, config)
    return [fill_memory(patches, config)]
