"""What is to be scored, opened and checked as a whole before any of it is computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from croc.errors import UserError
from croc.eval.evaluate import (
    Machine,
    Request,
    Weights,
    fit,
    open_weights,
)
from croc.eval.parts import open_part, open_parts
from croc.eval.protocols import KmeansConfig, WithinConfig
from croc.eval.scoring import same_classes
from croc.eval.table.cells import cell_key, config_page
from croc.eval.table.command import SIZES, Wanted
from croc.eval.table.identity import identify_data
from croc.eval.table.layout import one_line
from croc.eval.table.weights import architecture, find_training
from croc.eval.video import SCORED_FRAMES


@dataclass(frozen=True)
class Task:
    """A protocol on a data set, with the data."""

    wanted: Wanted
    parts: dict[str, Any]
    data_hash: str

    @property
    def place(self) -> tuple[str, str]:
        return self.wanted.column, self.wanted.data


@dataclass(frozen=True)
class Planned:
    """A task for certain weights."""

    task: Task
    request: Request
    key: str


@dataclass(frozen=True)
class Entry:
    """Weights that were looked at; they are loaded again when their turn comes."""

    label: str
    spec: str
    hash: str
    known: dict[str, str]
    planned: tuple[Planned, ...]
    notes: tuple[str, ...]


def plan_tasks(wanted: Sequence[Wanted], folder: Path) -> list[Task]:
    """Open all data, each part once however many protocols read it."""
    opener, identify = cache(open_part), cache(identify_data)
    tasks = []
    for each in wanted:
        parts = open_parts(each.protocol, each.data, opener, each.hold_out)
        try:
            _check_task(each, parts)
        except UserError as error:
            raise UserError(f"{each.protocol} on {each.data}: {error}") from None
        tasks.append(Task(each, parts, identify(each.data, folder)))
    return tasks


def _check_task(wanted: Wanted, parts: dict[str, Any]) -> None:
    """What the protocols would say only when their turn came."""
    if "train" in parts:
        same_classes(parts["train"], parts["val"])
    clusters = getattr(wanted.config, "clusters", None)
    if clusters is not None and clusters < len(parts["val"].classes):
        classes = len(parts["val"].classes)
        raise UserError(f"--kmeans.clusters {clusters} is fewer than the {classes} classes")
    if "videos" in parts:
        videos = [parts["videos"][index] for index in range(len(parts["videos"]))]
        if not any(
            len(video) >= SCORED_FRAMES and all(map(video.has_mask, range(len(video))))
            for video in videos
        ):
            raise UserError(f"no video has {SCORED_FRAMES} frames and a mask for each")


def plan_weights(label: str, spec: str, tasks: Sequence[Task], machine: Machine) -> Entry:
    """Load weights, see whether all tasks suit them, let them go: memory holds one at a time."""
    try:
        weights = open_weights(spec)
        planned = [_plan(task, weights, machine) for task in tasks]
    except UserError as error:
        raise UserError(str(error) if label == spec else f"{label}: {error}") from None
    training = find_training(spec)
    known = {
        "Model": architecture(weights.backbone),
        "Data": training.data,
        "Epochs": training.epochs,
    }
    return Entry(
        label,
        spec,
        weights.hash,
        {name: one_line(fact) for name, fact in known.items()},
        tuple(planned),
        tuple(_size_notes(label, planned, weights.backbone.stride_px)),
    )


def _plan(task: Task, weights: Weights, machine: Machine) -> Planned:
    wanted = task.wanted
    request = Request(
        wanted.protocol,
        wanted.data,
        wanted.config,
        adapts=wanted.adapts,
        hold_out=wanted.hold_out,
    )
    try:
        request = fit(request, weights.backbone)
        _check_width(request.config, weights)
    except UserError as error:
        raise UserError(f"{wanted.column} on {wanted.data}: {error}") from None
    key = cell_key(
        protocol=wanted.protocol,
        config=config_page(request.config),
        data_hash=task.data_hash,
        weights_hash=weights.hash,
        network_hash=weights.network_hash,
        precision=machine.precision_name,
        hold_out=wanted.hold_out,
    )
    return Planned(task, request, key)


def _check_width(config: Any, weights: Weights) -> None:
    if not isinstance(config, KmeansConfig | WithinConfig):
        return
    if isinstance(config, KmeansConfig) and config.reading != "tokens":
        return
    side = 4 * weights.backbone.stride_px
    width = weights.backbone.features(torch.zeros(1, 3, side, side), config.blocks).shape[1]
    if config.pca > width:
        raise UserError(f"pca {config.pca} is more than the backbone's width of {width}")


def _size_notes(label: str, planned: Sequence[Planned], patch_px: int) -> list[str]:
    """Rows are compared, so a reader must know where one saw images of another size."""
    changed: dict[tuple[int, int], dict[str, None]] = {}
    for each in planned:
        protocol = each.request.protocol
        size = SIZES.get(protocol, "image_px")
        asked, taken = getattr(each.task.wanted.config, size), getattr(each.request.config, size)
        if asked != taken:
            changed.setdefault((asked, taken), {})[protocol] = None
    return [
        f"{label}: images of {taken} px instead of {asked} ({', '.join(protocols)}), "
        f"for patches of {patch_px} px."
        for (asked, taken), protocols in changed.items()
    ]
