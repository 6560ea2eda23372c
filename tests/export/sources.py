"""Weights of other architectures, in a file as `croc export` writes it."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from croc.config import ModelConfig
from croc.method.backbone import Backbone
from croc.weights.page import WeightsPage, metadata_of

PAGE = WeightsPage(
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
    licence="Apache-2.0, of mine",
    config={},
)


def make_file(path: Path, model: str, patch_px: int = 16, image_px: int = 32) -> Path:
    """One block, no weight of which is what timm starts from."""
    page = replace(PAGE, model=model, patch_px=patch_px, image_px=image_px)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = Backbone(ModelConfig(model, patch_px=patch_px, depth=1), image_px).vit
        weights = {name: x + 0.1 * torch.randn_like(x) for name, x in vit.state_dict().items()}
    save_file(weights, path, metadata_of(page))
    return path
