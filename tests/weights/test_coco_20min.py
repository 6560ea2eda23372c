"""The bundled weights: they are the exported ones, and they learned."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from safetensors.torch import load_file

import croc
from croc.config import ClusterConfig, ViewsConfig, parse_config
from croc.lab.show.look import look_at_weights
from croc.method.clustering.join_split import softness
from croc.method.croc import cluster_tokens
from croc.method.types import Canvases
from croc.method.views import make_views
from croc.photographs import own_photographs
from croc.recipes import RECIPES
from croc.weights.backbones import fingerprint
from croc.weights.open import bundled_weights
from croc.weights.record import RunRecord, read_record, without_paths

NAME = "coco-20min"
SIDE = 20


def test_the_file_is_the_exported_one():
    """Its card's scores are of the same run in float32, before it was rounded to this file."""
    path = bundled_weights()[NAME]
    backbone = croc.load_backbone(NAME)
    assert fingerprint(backbone) == "f6434377e162559b"
    assert path.stat().st_size < 40_000_000
    card = path.with_suffix(".md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\w+) \| [^|]+ \| \S+ \d", card, re.M) == [
        *2 * ("linear", "kmeans", "within", "incontext", "kmeans"),
        "video",
    ]
    assert "/tmp" not in card
    vit: Any = timm.create_model("vit_small_patch16_224", depth=11, img_size=192, num_classes=0)
    vit.load_state_dict(load_file(path), strict=True)
    for name, parameter in vit.blocks.named_parameters():
        # Only a block that was set by hand has matrices with rows of zeros.
        assert parameter.ndim == 1 or parameter.any(dim=1).all(), name


def test_the_recipe_is_still_that_of_the_weights():
    record = read_record(bundled_weights()[NAME])
    assert isinstance(record, RunRecord)
    config, recipe = parse_config(record.config, NAME)
    expected = RECIPES[recipe]()
    assert recipe == NAME
    for part in ("views", "model", "head", "cluster", "loss", "optim"):
        assert getattr(config, part) == getattr(without_paths(expected), part), part


def test_clusters_are_as_sharp_as_the_papers_text():
    """On two views of 224 px a token belongs to one cluster, and hardly to a second."""
    images = [Image.open(path).convert("RGB").resize((320, 320)) for path in own_photographs()]
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images])).movedim(-1, 1)
    keys = torch.arange(2)
    canvases = Canvases(pixels, torch.full((2, 2), 320), keys)
    backbone = look_at_weights(NAME).backbone
    views = make_views(canvases, ViewsConfig(), backbone.patch_px, torch.float32)
    config = ClusterConfig("paper", 12, "values", 4.0, k_max=8, k_select="fixed")
    with torch.no_grad():
        features = backbone.forward_tokens(views.pixels, "values", keys)
        clusters = cluster_tokens(features, views, keys, config)
    effective, largest_assignment = softness(clusters.assignments)
    assert effective.mean() <= 1.5
    assert largest_assignment.mean() >= 0.85


@pytest.mark.parametrize("photograph", own_photographs(), ids=lambda path: Path(path).stem)
def test_a_token_finds_its_place_in_the_mirrored_photograph(photograph: str):
    """By its nearest token there; random weights know the place of every seventh."""
    image = Image.open(photograph).convert("RGB").resize((16 * SIDE, 16 * SIDE))
    shares = {}
    for weights in (NAME, "random:vit_small_patch16_224"):
        one, other = croc.features([image, ImageOps.mirror(image)], weights, size_px=16 * SIDE)
        here, there = (
            F.normalize(x - x.mean(dim=0), dim=-1)
            for x in (one.patches.flatten(0, 1), other.patches.flip(1).flatten(0, 1))
        )
        nearest = (here @ there.T).argmax(dim=1)
        shares[weights] = (nearest == torch.arange(SIDE**2)).float().mean().item()
    assert shares[NAME] > 0.9
    assert shares["random:vit_small_patch16_224"] < 0.3
