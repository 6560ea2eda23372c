"""What `croc export` was asked for, checked before anything is written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from croc.errors import UserError

SUFFIX = ".safetensors"
KINDS = ("timm", "transformers", "torchhub", "onnx", "safetensors")


@dataclass(frozen=True)
class Export:
    """Write a run's backbone, without heads, so that it loads without this project."""

    run: Annotated[str, tyro.conf.Positional]
    """The run's folder, of which the last checkpoint is taken, one of its checkpoints, a file of
    croc export, or the name of shipped weights."""
    to: str
    """timm, transformers, torchhub, onnx or safetensors: a folder in that layout. Or a file
    NAME.safetensors to make, with NAME.md beside it. Nothing that exists is overwritten."""
    folder: str | None = None
    """The folder to make; by default NAME-KIND here."""
    name: str | None = None
    """What the model is called in its card; by default as the run's folder or the file."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Of the numbers; by default bfloat16 for a file and float32 for a folder."""
    scores: str | None = None
    """A results.jsonl of croc evaluate, whose scores of these weights go into the card."""
    licence: str | None = None
    """A note on the weights' licence; by default that of the file, or none."""


def export(asked: Export) -> tuple[Path, ...]:
    """What was made: a folder, or a file and its card."""
    if asked.to in KINDS:
        from croc.weights.export.folder import export_folder

        return (export_folder(asked),)
    if Path(asked.to).suffix != SUFFIX or not Path(asked.to).stem:
        raise UserError(
            f"--to {asked.to}: give {', '.join(KINDS[:-1])} or {KINDS[-1]} for a folder, or a file "
            f"that ends in {SUFFIX}"
        )
    for option in ("folder", "name"):
        if getattr(asked, option) is not None:
            raise UserError(f"--{option} is for folders, as --to {KINDS[0]}; --to names the file")
    from croc.weights.export.file import export_file

    return export_file(asked)
