"""Segmentation with few labels: the scores on random subsets of the training split.

Features are computed once, for the images that are in any subset.
"""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import numpy as np

from croc.data.loader import epoch_order
from croc.errors import UserError
from croc.eval.datasets import SegmentationData
from croc.eval.features import PatchFeatures, Predict, Report, in_order, progress, score
from croc.eval.incontext import fill_memory
from croc.eval.linear import few_label_steps, train_linear
from croc.eval.machine import Machine
from croc.eval.metrics import IGNORED
from croc.eval.protocols import FewLabelConfig, LinearConfig
from croc.weights.backbones import DenseBackbone


def evaluate_few_labels(
    backbone: DenseBackbone,
    machine: Machine,
    train: SegmentationData,
    val: SegmentationData,
    config: FewLabelConfig,
) -> Report:
    """For each number of labeled images, the mean and deviation of the scores over the draws.

    A draw is a random order of the images with any label, the same for all weights; its subsets are
    the first images, so that larger ones contain smaller ones. The examples and the classes' scores
    are those of the last subset, by the first method.
    """
    sizes = (config.image_px, config.label_px, config.blocks)
    patches = PatchFeatures(backbone, machine, train, *sizes)
    usable = labeled_indices(patches)
    if not len(usable):
        raise UserError("no training pixel is labeled: all labels are 255")
    counts = {text: labeled_images(text, len(usable)) for text in config.images}
    subsets = [
        (text, draw, np.sort(usable[epoch_order(len(usable), config.seed, draw)[:count]]))
        for text, count in counts.items()
        for draw in range(config.draws if count < len(usable) else 1)
    ]
    images = np.unique(np.concatenate([numbers for _, _, numbers in subsets]))
    patches = patches.subset(images.tolist())
    patches.keep()
    heads: list[tuple[str, Predict]] = []
    for text, draw, numbers in progress(subsets, "subsets", len(subsets)):
        part = patches.subset(np.searchsorted(images, numbers).tolist())
        part.quiet = True
        if "linear" in config.methods:
            layers = train_linear(part, linear_config(config, draw, counts[text]))
            heads.append((f"linear {text}", layers[0]))
        if "incontext" in config.methods:
            memory = fill_memory(part, replace(config, seed=config.seed + draw))
            heads.append((f"in-context {text}", memory))
    scored = PatchFeatures(backbone, machine, val, *sizes)
    reports = score(scored, [head for _, head in heads])
    by_draw: dict[str, list[float]] = defaultdict(list)
    for (name, _), report in zip(heads, reports):
        by_draw[name].append(report.scores["mIoU"])
    scores = {name: float(np.mean(by_draw[name])) for name in config.metrics} | {
        "deviation": {name: float(np.std(x)) for name, x in by_draw.items() if len(x) > 1},
        "by draw": {name: by_draw[name] for name in config.metrics},
        "images": counts,
    }
    last = reports[-len(set(config.methods))]
    return Report(scores, last.classes, last.examples)


def labeled_indices(patches: PatchFeatures) -> np.ndarray:
    """The indices of the images with a labeled pixel."""
    order = in_order(len(patches.data), patches.batch)
    batches = patches.progress(patches.read(order), "labels", len(order))
    labeled = [(labels != IGNORED).flatten(1).any(dim=1) for _, labels in batches]
    return np.flatnonzero(np.concatenate(labeled))


def labeled_images(text: str, total: int) -> int:
    """The number of images for `all`, a fraction or a count; at most `total`."""
    if text == "all":
        return total
    return max(1, round(total * Fraction(text))) if "/" in text else min(total, int(text))


def linear_config(config: FewLabelConfig, draw: int, images: int) -> LinearConfig:
    return LinearConfig(
        image_px=config.image_px,
        blocks=config.blocks,
        standardize=True,
        lrs=(config.lr,),
        batch=config.batch,
        epochs=None,
        steps=few_label_steps(images, config.steps),
        weight_decay_scale=config.weight_decay_scale,
        crop=None,
        train_px=config.label_px,
        score_px=config.label_px,
        seed=config.seed + draw,
    )
