"""Exported files of small networks for all tests of weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from croc.config import ModelConfig
from croc.method.backbone import Backbone
from croc.weights import open as weights_open
from croc.weights.export import Export, export
from croc.weights.record import RunRecord, metadata

RECORD = RunRecord(
    model="vit_tiny_patch16_224",
    patch_px=16,
    depth=1,
    image_px=32,
    recipe="tiny",
    method="croc",
    network="teacher",
    data=["scenes"],
    step=1,
    images_seen=8,
    epochs=0.5,
    seconds=None,
    license="Apache-2.0, of mine",
    config={},
)


@pytest.fixture
def bundled(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of bundled weights: small-a and small-b, the same."""
    folder = tmp_path / "weights"
    monkeypatch.setattr(weights_open, "bundled_folders", lambda: [folder, tmp_path / "nowhere"])
    for name in ("small-a", "small-b"):
        export(Export(str(run), str(folder / f"{name}.safetensors")))
    return folder


def make_file(path: Path, model: str, patch_px: int = 16, image_px: int = 32) -> Path:
    """Random weights of another architecture with one block, as `croc export` writes them."""
    record = replace(RECORD, model=model, patch_px=patch_px, image_px=image_px)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = Backbone(ModelConfig(model, patch_px=patch_px, depth=1), image_px).vit
        weights = {name: x + 0.1 * torch.randn_like(x) for name, x in vit.state_dict().items()}
    save_file(weights, path, metadata(record))
    return path
