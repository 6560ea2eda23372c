"""What is exported: a backbone, and what is known of it."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from croc.errors import UserError
from croc.eval.features import VitBackbone, fingerprint
from croc.eval.table.weights import architecture
from croc.train.log import read_metrics
from croc.weights.card import CardFacts
from croc.weights.export.scores import read_scores
from croc.weights.page import WeightsPage, page_of, read_page
from croc.weights.runs import find_checkpoint, open_run
from croc.weights.shipped import build_exported, find_weights, say_shipped

LICENCE = "not stated; the photographs that it was trained on have licences of their own"


@dataclass(frozen=True)
class Source:
    """The backbone that `croc.load_backbone` gives."""

    name: str
    """Of the run's folder or the file."""
    page: WeightsPage
    backbone: VitBackbone


@dataclass(frozen=True)
class Rounded:
    """The weights in the type that they are written in, and what their card says."""

    weights: dict[str, Tensor]
    """In timm's names."""
    facts: CardFacts


def open_source(spec: str, licence: str | None) -> Source:
    path = find_weights(spec)
    found = find_checkpoint(path) if path.exists() else None
    if found is not None:
        run = open_run(*found)
        page = page_of(run, licence or LICENCE, seconds_of(run.folder, run.step))
        name = run.folder.resolve().name
        return Source(name, page, VitBackbone(run.backbone.vit, name))
    held = read_page(path) if path.is_file() else None
    if held is None:
        raise UserError(
            f"{spec} is no run: give a folder of croc pretrain, a checkpoint in it, a file of "
            f"croc export, or a name ({say_shipped()})"
        )
    page = held if licence is None else replace(held, licence=licence)
    return Source(path.stem, page, VitBackbone(build_exported(path, held).vit, path.stem))


def round_weights(
    source: Source, dtype: Literal["bfloat16", "float32"], scores: str | None
) -> Rounded:
    """The backbone is left with the rounded weights."""
    exact = fingerprint(source.backbone)
    vit, kind = source.backbone.vit, getattr(torch, dtype)
    weights = {name: value.to(kind).contiguous() for name, value in vit.state_dict().items()}
    vit.load_state_dict(weights)
    facts = CardFacts(
        architecture=architecture(source.backbone),
        dtype=dtype,
        numbers=sum(value.numel() for value in weights.values()),
        page=source.page,
        scores=read_scores(scores, fingerprint(source.backbone), exact),
    )
    return Rounded(weights, facts)


def seconds_of(run: Path, step: int) -> float | None:
    """Of training up to a step, all starts together; None if the metrics do not tell."""
    try:
        lines = [line for line in read_metrics(run) if line["step"] <= step]
        marks = [float(line["seconds"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    starts = [before for before, after in pairwise(marks) if after < before]
    return sum(starts) + marks[-1] if marks else None
