"""`croc export`: a run's backbone as a file or a folder that loads without this project."""

import json
import shutil
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from croc.errors import UserError
from croc.io import read_lines, read_metrics, replacing
from croc.weights import hub
from croc.weights.card import LICENSE, WeightsRecord, make_card, make_record, read_record
from croc.weights.checkpoint import find_checkpoint, open_run
from croc.weights.checksum import save_sealed, write_sums
from croc.weights.formats import WRITERS, check_onnx
from croc.weights.open import (
    VitBackbone,
    architecture,
    build_exported,
    find_weights,
    fingerprint,
    shipped_hint,
)

SAME_SETTINGS = ("protocol", "data", "config", "hold_out", "weights_hash", "machine")


@dataclass(frozen=True)
class Export:
    """Export a run's backbone, without heads, so that it loads without CrOC installed."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder (its last checkpoint is used), a checkpoint, a file written by croc export,
    hf:USER/NAME, or the name of bundled weights."""
    to: str
    """timm, transformers, torchhub, onnx or safetensors: write a folder in that format. Or
    NAME.safetensors: write a single file, with NAME.md next to it. Nothing is overwritten."""
    folder: str | None = None
    """Output folder; by default NAME-FORMAT in the current directory."""
    name: str | None = None
    """Model name in the model card; by default the name of the run folder or the file."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Data type of the weights; by default bfloat16 for a file and float32 for a folder."""
    scores: str | None = None
    """A results.jsonl of croc evaluate; its scores for these weights are added to the card."""
    license: str | None = None
    """A license note for the weights; by default the note in the exported file, if any."""
    push: str | None = None
    """USER/NAME: upload the export and its card to this repository on the Hugging Face hub, from
    where --weights hf:USER/NAME loads it. A new repository is private."""
    public: bool = False
    """With --push: make a new repository public."""


def export(request: Export) -> tuple[Path | str, ...]:
    """Write a folder in the layout of another library; or a file, whose metadata hold all that is
    needed to build the network, and its card. Returns what is new, the page on the hub included."""
    is_folder, file = request.to in WRITERS, Path(request.to)
    if not is_folder and file.suffix != ".safetensors":
        raise UserError(
            f"--to {request.to}: pass {', '.join(WRITERS)}, or a file that ends in .safetensors"
        )
    if not is_folder and (request.folder or request.name):
        raise UserError("--folder and --name are for folders (--to timm …); --to names the file")
    if request.to == "onnx":
        check_onnx(request.dtype)
    if request.push is not None:
        hub.check_push(request.push)
    record, backbone = _open_source(request)
    name = backbone.name if request.name is None else request.name
    if not name or Path(name).name != name or not name.isprintable():
        raise UserError(f"--name {name!r}: pass a name that is valid for a folder")
    folder = Path(request.folder or f"{name}-{request.to}")
    targets = (folder,) if is_folder else (file, file.with_suffix(".md"))
    for path in targets:
        if path.exists() or path.is_symlink():
            raise UserError(
                f"{path} already exists and will not be overwritten: choose another name"
            )

    dtype = request.dtype or ("float32" if is_folder else "bfloat16")
    exact, vit = fingerprint(backbone), backbone.vit
    weights = {k: x.to(getattr(torch, dtype)).contiguous() for k, x in vit.state_dict().items()}
    vit.load_state_dict(weights)
    facts: dict[str, Any] = {
        "architecture": architecture(backbone),
        "dtype": dtype,
        "numbers": sum(value.numel() for value in weights.values()),
        "scores": _read_scores(request.scores, fingerprint(backbone), exact),
        "prefix": vit.num_prefix_tokens,
        "push": request.push,
    }
    if not is_folder:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as partial, replacing(file.with_suffix(".md")) as card:
            save_sealed(weights, partial, record.metadata())
            card.write_text(make_card(file.stem, record, **facts), encoding="utf-8")
            pages = _push(request, {"model.safetensors": partial, "README.md": card})
        return *targets, *pages
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    partial.mkdir(parents=True)
    try:
        facts["model_class"] = WRITERS[request.to](partial, record, weights)
        card = make_card(name, record, **facts, kind=request.to, folder=folder.name)
        (partial / "README.md").write_text(card, encoding="utf-8")
        write_sums(partial)
        pages = _push(request, {path.name: path for path in sorted(partial.iterdir())})
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return *targets, *pages


def _push(request: Export, files: dict[str, Path]) -> list[str]:
    """Before anything is in place here, so that the same command may be repeated."""
    return [hub.push(request.push, files, request.public)] if request.push else []


def _open_source(request: Export) -> tuple[WeightsRecord, VitBackbone]:
    """The backbone that `croc.load_backbone` gives, and what is known about it."""
    path = find_weights(request.run)
    checkpoint = find_checkpoint(path) if path.exists() else None
    if checkpoint is not None:
        run = open_run(*checkpoint)
        seconds = seconds_trained(run.folder, run.step)
        record = make_record(run, request.license or LICENSE, seconds)
        return record, VitBackbone(run.backbone.vit, run.folder.resolve().name)
    record = read_record(path) if path.is_file() else None
    if record is None:
        raise UserError(
            f"{request.run} is not a run: pass a folder of croc pretrain, a checkpoint in it, a "
            f"file of croc export, or a name ({shipped_hint()})"
        )
    name = hub.name_of(request.run) or path.stem
    backbone = VitBackbone(build_exported(path, record).vit, name)
    return replace(record, license=request.license or record.license), backbone


def seconds_trained(run: Path, step: int) -> float | None:
    """Time of training up to a step, all starts together; None without metrics."""
    if not (run / "metrics.jsonl").exists():
        return None
    marks = [line["seconds"] for line in read_metrics(run) if line["step"] <= step]
    ends = [before for before, after in pairwise(marks) if after < before]
    return sum(ends) + marks[-1] if marks else None


def _read_scores(path: str | None, rounded: str, exact: str) -> list[dict[str, Any]]:
    """The latest of each protocol, dataset and settings, of these weights or before rounding."""
    scores: dict[str, dict[str, Any]] = {}
    for line in read_lines(Path(path)) if path else ():
        if line.get("weights_hash") in (rounded, exact):
            key = json.dumps([line.get(name) for name in SAME_SETTINGS], sort_keys=True)
            scores[key] = {**line, "as_here": line["weights_hash"] == rounded}
    if path and not scores:
        raise UserError(f"--scores {path} has no scores of these weights ({rounded})")
    return list(scores.values())
