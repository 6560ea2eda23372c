"""`croc export`: a run's backbone as a file or a folder that loads without this project."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from croc.errors import UserError
from croc.io import read_lines
from croc.weights import hub
from croc.weights.card import make_card
from croc.weights.checksum import write_sums
from croc.weights.formats import WRITERS, check_onnx, write_file
from croc.weights.open import architecture, fingerprint, open_backbone, shipped_hint
from croc.weights.record import WeightsRecord

SAME_SETTINGS = ("protocol", "data", "config", "hold_out", "weights_hash", "machine")


@dataclass(frozen=True)
class Export:
    """Export a run's backbone, without heads, so that it loads without CrOC installed."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder (its last checkpoint is used), a checkpoint, a file written by croc export,
    hf:USER/NAME, or the name of bundled weights."""
    to: str
    """timm, transformers or onnx: write a folder in that format. Or NAME.safetensors: write one
    file, with NAME.md next to it. Nothing is overwritten."""
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
    kind, file = request.to if request.to in WRITERS else None, Path(request.to)
    if kind is None and file.suffix != ".safetensors":
        raise UserError(
            f"--to {request.to}: pass {', '.join(WRITERS)}, or a file that ends in .safetensors"
        )
    if kind is None and (request.folder or request.name):
        raise UserError("--folder and --name are for folders (--to timm …); --to names the file")
    if kind == "onnx":
        check_onnx(request.dtype)
    if request.push is not None:
        hub.check_push(request.push)
    backbone: Any = open_backbone(request.run, flag="RUN")
    record = getattr(backbone, "made", None)
    if not isinstance(record, WeightsRecord):
        raise UserError(
            f"{request.run} is not a run: pass a folder of croc pretrain, a checkpoint in it, a "
            f"file of croc export, or a name ({shipped_hint()})"
        )
    vit, record = backbone.vit, replace(record, license=request.license or record.license)
    usual = backbone.name.removesuffix(f"@{record.step}") if kind else file.stem
    name = usual if request.name is None else request.name
    if not name or Path(name).name != name or not name.isprintable():
        raise UserError(f"--name {name!r}: pass a name that is valid for a folder")
    folder = Path(request.folder or f"{name}-{kind}") if kind else file.with_suffix("")
    targets = (folder,) if kind else (file, file.with_suffix(".md"))
    for path in targets:
        if path.exists() or path.is_symlink():
            raise UserError(
                f"{path} already exists and will not be overwritten: choose another name"
            )

    dtype = request.dtype or ("float32" if kind else "bfloat16")
    exact = fingerprint(backbone)
    weights = {k: x.to(getattr(torch, dtype)).contiguous() for k, x in vit.state_dict().items()}
    vit.load_state_dict(weights)
    facts: dict[str, Any] = {
        "architecture": architecture(backbone),
        "dtype": dtype,
        "numbers": sum(value.numel() for value in weights.values()),
        "scores": _read_scores(request.scores, fingerprint(backbone), exact),
        "prefix": vit.num_prefix_tokens,
        "push": request.push,
        "kind": kind,
        "folder": folder.name,
    }
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    partial.mkdir(parents=True)
    try:
        write = WRITERS[kind] if kind else write_file
        facts["model_class"] = write(partial, record, vit, weights)
        (partial / "README.md").write_text(make_card(name, record, **facts), encoding="utf-8")
        if kind:
            write_sums(partial)
        pages = []
        if request.push:  # before anything is in place, so that the same command may be repeated
            files = {path.name: path for path in sorted(partial.iterdir())}
            pages = [hub.push(request.push, files, request.public)]
        if kind:
            partial.rename(folder)
        else:
            for source, target in zip(("model.safetensors", "README.md"), targets):
                (partial / source).rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return *targets, *pages


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
