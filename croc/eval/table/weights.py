"""What a table says of weights: their architecture, and what they were trained on."""

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from croc.data.loader import steps_per_epoch
from croc.eval.features import ConvBackbone, VitBackbone
from croc.train.checkpoint import checkpoints
from croc.train.run_folder import PAGE
from croc.weights.page import read_page
from croc.weights.shipped import find_weights

# Width and number of blocks, as the ViT papers name them.
VIT_SIZES = {(192, 12): "Ti", (384, 12): "S", (768, 12): "B", (1024, 24): "L", (1280, 32): "H"}


@dataclass(frozen=True)
class Training:
    """As far as a run's folder tells it."""

    data: str = ""
    epochs: str = ""


def architecture(backbone: VitBackbone | ConvBackbone) -> str:
    """ViT-S/16, or what timm calls it."""
    if isinstance(backbone, ConvBackbone):
        return backbone.name.partition(".")[0]
    width, blocks = backbone.vit.embed_dim, len(backbone.vit.blocks)
    size = VIT_SIZES.get((width, blocks))
    return (
        f"ViT-{size}/{backbone.stride_px}"
        if size
        else f"ViT/{backbone.stride_px}, {blocks} blocks of {width}"
    )


def find_training(spec: str) -> Training:
    """The epochs are those that the checkpoint has behind it, not those that were planned.

    What cannot be read is left out: whether the weights themselves are sound is found elsewhere.
    """
    path = find_weights(spec)
    page = read_page(path) if path.is_file() else None
    if page is not None:
        return Training(" + ".join(page.data), f"{round(page.epochs, 1):g}")
    folders = [path] if path.is_dir() else [path.parent, path.parent.parent]
    run = next((folder for folder in folders if (folder / PAGE).is_file()), None)
    if run is None or not path.exists():
        return Training()
    try:
        page = json.loads((run / PAGE).read_text())
        roots = page["data"]["root"]
        data = " + ".join(Path(root).name or root for root in roots)
        checkpoint = checkpoints(path)[-1] if path.is_dir() else path
        return Training(data, _epochs_behind(checkpoint, page["optim"]["batch"]))
    except (
        *(OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError),
        *(ArithmeticError, pickle.UnpicklingError),
    ):
        return Training()


def _epochs_behind(checkpoint: Path, batch: int) -> str:
    state: Any = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    epochs = state["step"] / steps_per_epoch(state["images"], batch)
    return f"{round(epochs, 1):g}"
