"""`croc export`: a run's backbone as one file that loads by itself, and its model card."""

import json
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from croc.errors import UserError

SUFFIX = ".safetensors"
LICENCE = "MIT; the photographs that it was trained on have licences of their own"


@dataclass(frozen=True)
class Export:
    """Write a run's backbone, without heads, as one file that loads by itself, and its card."""

    run: Annotated[str, tyro.conf.Positional]
    """The run's folder, of which the last checkpoint is taken, or one of its checkpoints."""
    to: str
    """The file to make, NAME.safetensors; NAME.md is written beside it. Neither may exist."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the numbers in the file."""
    scores: str | None = None
    """A results.jsonl of croc evaluate, whose scores of these weights go into the card."""
    licence: str = LICENCE
    """A note on the weights' licence."""


def export(asked: Export) -> tuple[Path, Path]:
    """Where the weights and their card lie; what is wrong is said before anything is written."""
    target = _free_target(asked.to)
    from safetensors.torch import save

    from croc.evals.features import VitBackbone, fingerprint
    from croc.evals.table.weights import architecture
    from croc.weights.card import make_card
    from croc.weights.page import metadata_of, page_of
    from croc.weights.runs import open_run

    run = open_run(*_find_run(asked.run))
    backbone = VitBackbone(run.backbone.vit, target.stem)
    exact = fingerprint(backbone)
    tensors = {name: _cast(value, asked.dtype) for name, value in backbone.vit.state_dict().items()}
    backbone.vit.load_state_dict(tensors)
    scores = _read_scores(asked.scores, fingerprint(backbone), exact)
    page = page_of(run, asked.licence, _seconds(run.folder, run.step))
    numbers = sum(value.numel() for value in tensors.values())
    named = (target.stem, architecture(backbone), asked.dtype, numbers)
    card = make_card(*named, page, scores)
    files = {target: save(tensors, metadata_of(page)), target.with_suffix(".md"): card.encode()}
    write_files(files)
    return target, target.with_suffix(".md")


def _free_target(to: str) -> Path:
    target = Path(to)
    if target.suffix != SUFFIX or not target.stem:
        raise UserError(f"--to {to}: name a file that ends in {SUFFIX}, the one kind there is yet")
    for path in (target, target.with_suffix(".md")):
        if path.exists() or path.is_symlink():
            raise UserError(f"--to {to}: {path} exists, and nothing is overwritten")
    return target


def _find_run(run: str) -> tuple[Path, Path]:
    from croc.weights.runs import find_checkpoint

    found = find_checkpoint(Path(run)) if Path(run).exists() else None
    if found is None:
        raise UserError(f"{run} is no run: give a folder of croc pretrain, or a checkpoint in it")
    return found


def _cast(value: Any, dtype: str) -> Any:
    import torch

    return value.detach().to(getattr(torch, dtype)).contiguous()


def _seconds(run: Path, step: int) -> float | None:
    """Of training up to a step, all starts together; None if the metrics do not tell."""
    from croc.log import read_metrics

    try:
        lines = [line for line in read_metrics(run) if line["step"] <= step]
        marks = [float(line["seconds"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    starts = [before for before, after in pairwise(marks) if after < before]
    return sum(starts) + marks[-1] if marks else None


def _read_scores(path: str | None, here: str, exact: str) -> list[dict[str, Any]]:
    """The latest of each protocol, data set and settings, of these weights or before rounding."""
    if path is None:
        return []
    from croc.evals.results import read_lines

    found: dict[str, dict[str, Any]] = {}
    for line in read_lines(Path(path), pass_over_bad=True):
        if line.get("weights_hash") not in (here, exact) or not _is_result(line):
            continue
        names = ("protocol", "data", "config", "hold_out", "weights_hash", "machine")
        key = json.dumps([line.get(name) for name in names], sort_keys=True)
        found[key] = {**line, "as_here": line["weights_hash"] == here}
    if not found:
        raise UserError(f"--scores {path} holds no scores of these weights ({here})")
    return list(found.values())


def _is_result(line: dict[str, Any]) -> bool:
    try:
        first = next(iter(line["scores"].values()))
        known = isinstance(line["config"], dict) and "precision" in line["machine"]
        return known and isinstance(first, int | float) and {"protocol", "data"} <= line.keys()
    except (KeyError, TypeError, AttributeError, StopIteration):
        return False


def write_files(files: dict[Path, bytes]) -> None:
    """All are written beside their places before the first is renamed."""
    partial = {path: path.with_name(f"{path.name}.partial") for path in files}
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        for path, content in files.items():
            with partial[path].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path in files:
            partial[path].replace(path)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)
