"""`croc export`: a run's backbone as a file or a folder that loads without CrOC."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor

from croc.errors import UserError
from croc.io import read_lines, write_json
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.results import key_of
from croc.weights import hub
from croc.weights.backbones import architecture, fingerprint
from croc.weights.card import hub_license, make_card
from croc.weights.checksum import save_sealed, write_sums
from croc.weights.onnx import check_onnx, write_onnx
from croc.weights.open import bundled_hint, open_backbone
from croc.weights.record import RunRecord, metadata
from croc.weights.transformers import write_transformers


@dataclass(frozen=True)
class Export:
    """Export a run's backbone, without heads, so that it loads without CrOC installed."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder (its last checkpoint is used), one of its checkpoints, a file written by croc
    export, hf:USER/NAME, or the name of bundled weights. Weights from other projects cannot be
    exported."""
    to: str
    """timm, transformers or onnx: write a folder in that format. Or NAME.safetensors: write one
    file, with NAME.md next to it. No local file is overwritten."""
    folder: str | None = None
    """Output folder; by default NAME-FORMAT in the current directory."""
    name: str | None = None
    """Model name in the model card; by default the name of the run folder or the file."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Data type of the weights; by default bfloat16 for a file and float32 for a folder."""
    scores: str | None = None
    """A results.jsonl file written by croc evaluate; its scores for these weights are added to the
    card."""
    license: str | None = None
    """A license note for the weights; by default, the note stored in the file
    being exported, if any."""
    push: str | None = None
    """USER/NAME: upload the export and its card to this repository on the Hugging Face Hub;
    load it with --weights hf:USER/NAME. A new repository is private."""
    public: bool = False
    """With --push: make a new repository public."""


def write_file(folder: Path, record: RunRecord, weights: dict[str, Tensor]) -> None:
    """What `open_backbone` reads."""
    save_sealed(weights, folder / "model.safetensors", metadata(record))


def write_timm(folder: Path, record: RunRecord, weights: dict[str, Tensor]) -> None:
    """As timm's own models on hubs; by its metadata the file is also one of ours."""
    write_file(folder, record, weights)
    config = {
        "architecture": record.model,
        "num_classes": 0,
        "num_features": weights["cls_token"].shape[-1],
        "global_pool": "token",
        "model_args": record.timm_model.options,
        "pretrained_cfg": {
            "tag": "croc",
            "input_size": [3, record.image_px, record.image_px],
            "fixed_input_size": False,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "mean": list(IMAGENET_MEAN),
            "std": list(IMAGENET_STD),
            "num_classes": 0,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "license": hub_license(record.license) or "other",
        },
    }
    write_json(folder / "config.json", config)


WRITERS = {"timm": write_timm, "transformers": write_transformers, "onnx": write_onnx}


def export(request: Export) -> tuple[Path | str, ...]:
    """Write a folder in the layout of another library; or one file, whose metadata is enough to
    build the network, and its card. Returns the new paths, and the page on the hub."""
    kind, file = request.to if request.to in WRITERS else None, Path(request.to)
    if kind is None and file.suffix != ".safetensors":
        raise UserError(
            f"--to {request.to}: pass {', '.join(WRITERS)}, or a file that ends in .safetensors"
        )
    if kind is None and (request.folder or request.name):
        raise UserError(
            "--folder and --name only apply to --to timm, transformers or onnx; for a single file, "
            "put the name in --to"
        )
    if kind == "onnx":
        check_onnx(request.dtype)
    if request.push is not None:
        hub.check_push(request.push)
    backbone: Any = open_backbone(request.run, flag="RUN")
    record = backbone.record
    if not isinstance(record, RunRecord):
        raise UserError(
            f"{request.run} is not a run: pass a folder written by croc pretrain, a checkpoint in "
            f"it, a file written by croc export, or a name ({bundled_hint()})"
        )
    vit, record = backbone.vit, replace(record, license=request.license or record.license)
    default = backbone.name.removesuffix(f"@{record.step}") if kind else file.stem
    name = default if request.name is None else request.name
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
    rounded = fingerprint(backbone)
    scores = _read_scores(request.scores, rounded, exact) if request.scores else []
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    partial.mkdir(parents=True)
    try:
        write = WRITERS[kind] if kind else write_file
        model_class = write(partial, record, weights)
        card = make_card(
            name,
            record,
            scores,
            kind,
            request.push,
            architecture=architecture(backbone),
            dtype=dtype,
            numbers=sum(value.numel() for value in weights.values()),
            prefix=vit.num_prefix_tokens,
            folder=folder.name,
            model_class=model_class,
        )
        (partial / "README.md").write_text(card, encoding="utf-8")
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


def _read_scores(path: str, rounded: str, exact: str) -> list[dict[str, Any]]:
    """The latest of each protocol, dataset and settings, of these weights or before rounding."""
    scores: dict[str, dict[str, Any]] = {}
    for line in read_lines(Path(path)):
        if line.get("weights_hash") in (rounded, exact):
            scores[key_of(line)] = {**line, "as_here": line["weights_hash"] == rounded}
    if not scores:
        raise UserError(f"--scores {path} has no scores of these weights ({rounded})")
    return list(scores.values())
