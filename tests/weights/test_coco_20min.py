"""The weights that ship: that they are the ones that were scored, and that they learned."""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps

import croc
from croc.backbone import Backbone
from croc.config import ModelConfig
from croc.errors import UserError
from croc.evals.features import fingerprint
from croc.photographs import own_photographs
from croc.recipes import RECIPES
from croc.run_folder import parse_config
from croc.weights.page import read_page, without_paths
from croc.weights.shipped import shipped
from croc.weights.start import load_into

NAME = "coco-20min"
SIDE = 20


def test_they_are_those_that_were_scored():
    """The hash is that in the results, which the card's scores were taken from."""
    backbone = croc.load_backbone(NAME)
    assert fingerprint(backbone) == "928756eb0822f63e"
    assert sum(value.numel() for value in backbone.state_dict().values()) == 21_645_696
    assert shipped()[NAME].stat().st_size < 45_000_000


def test_the_card_has_scores_and_says_of_nobodys_machine():
    card = shipped()[NAME].with_suffix(".md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\w+) \| [^|]+ \| \S+ \d", card, re.M) == [
        *("linear", "linear", "kmeans", "kmeans", "incontext", "incontext", "video")
    ]
    assert "/tmp" not in card
    assert "it adds 0.5 × the mean of all tokens" in card


def test_they_are_of_the_recipe_as_it_stands():
    page = read_page(shipped()[NAME])
    assert page is not None
    config, recipe = parse_config(page.config, NAME)
    wanted = RECIPES[recipe]()
    assert recipe == NAME
    for part in ("views", "model", "head", "cluster", "loss", "optim"):
        assert getattr(config, part) == getattr(without_paths(wanted), part), part


def test_training_starts_without_the_block_that_cannot_learn():
    file = shipped()[NAME]
    for spec in (NAME, f"timm:vit_small_patch16_224@{file}"):
        with pytest.raises(UserError, match=r"it has depth 11, not 12 \(without the last block"):
            load_into(Backbone(ModelConfig(), 192), spec)
    backbone = Backbone(ModelConfig(depth=11), 192)
    assert load_into(backbone, NAME).endswith("without the last block, which was not trained")


@pytest.mark.parametrize("photograph", own_photographs(), ids=lambda path: Path(path).stem)
def test_a_token_finds_its_place_in_the_mirrored_photograph(photograph: str):
    """By its nearest token there; random weights know the place of every seventh."""
    image = Image.open(photograph).convert("RGB").resize((16 * SIDE, 16 * SIDE))
    found = {}
    for weights in (NAME, "random:vit_small_patch16_224"):
        one, other = croc.features([image, ImageOps.mirror(image)], weights, size_px=16 * SIDE)
        here, there = (
            F.normalize(x - x.mean(dim=0), dim=-1)
            for x in (one.patches.flatten(0, 1), other.patches.flip(1).flatten(0, 1))
        )
        nearest = (here @ there.T).argmax(dim=1)
        found[weights] = (nearest == torch.arange(SIDE**2)).float().mean().item()
    assert found[NAME] > 0.9
    assert found["random:vit_small_patch16_224"] < 0.3
