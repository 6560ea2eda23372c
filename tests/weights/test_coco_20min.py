"""The bundled weights are the exported ones; tests/golden has their scores."""

from typing import Any

import timm
from safetensors.torch import load_file

import croc
from croc.config import parse_config
from croc.recipes import RECIPES
from croc.weights.backbones import fingerprint
from croc.weights.open import bundled_weights
from croc.weights.record import RunRecord, read_record, without_paths

NAME = "coco-20min"


def test_the_file_is_the_exported_one():
    """Its card's scores are of the same run in float32, before it was rounded to this file."""
    path = bundled_weights()[NAME]
    backbone = croc.load_backbone(NAME)
    assert fingerprint(backbone) == "f6434377e162559b"
    assert path.stat().st_size < 40_000_000
    card = path.with_suffix(".md").read_text(encoding="utf-8")
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
