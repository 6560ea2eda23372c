"""`croc export`: a run's backbone as a file or a folder that loads without this project."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

KINDS = ("timm", "transformers", "torchhub", "onnx", "safetensors")


@dataclass(frozen=True)
class Export:
    """Export a run's backbone, without heads, so that it loads without CrOC installed."""

    run: Annotated[str, tyro.conf.Positional]
    """A run folder (its last checkpoint is used), a checkpoint, a file written by croc export, or
    the name of bundled weights."""
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
    """A results.jsonl of croc evaluate; its scores of these weights go into the model card."""
    licence: str | None = None
    """A license note for the weights; by default that of the file, or none."""


def export(request: Export) -> tuple[Path, ...]:
    """What was written: a folder, or a file and its card."""
    from croc.weights.export.write import write  # slow to import

    return write(request)
