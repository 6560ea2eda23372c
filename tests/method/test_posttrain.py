"""Post-training: the anchor, frozen blocks, layer-wise learning rates, gradient checkpointing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from croc.config import AnchorConfig, CrocConfig, ModelConfig, OptimConfig
from croc.method.backbone import Backbone
from croc.method.croc import Network
from croc.method.losses import gram_distance
from croc.method.optim import make_optimizer
from croc.train.loop import pretrain
from croc.weights.checkpoint import checkpoints, load_checkpoint
from tests.tiny import tiny_config
from tests.train import metrics_of
from tests.train.kills import same_weights


def test_gram_distance_equals_the_loops():
    student, anchor = torch.randn(2, 2, 3, 4, 5, dtype=torch.float64)
    for image in range(3):
        total = 0.0
        for view in range(2):
            for i in range(4):
                for j in range(4):
                    a, b = (
                        torch.cosine_similarity(x[view, image, i], x[view, image, j], dim=0)
                        for x in (student, anchor)
                    )
                    total += float(a - b) ** 2 / (2 * 4 * 4)
        assert float(gram_distance(student, anchor)[image]) == pytest.approx(total, rel=1e-5)
    rotation, _ = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))
    assert gram_distance(student, 3 * student @ rotation).max() < 1e-12  # same similarities


def test_layer_decay_lowers_learning_rates_towards_the_embeddings():
    network = Network(tiny_config(), drop_path=0.0)  # two blocks
    optimizer = make_optimizer(network, torch.device("cpu"), OptimConfig(layer_decay=0.5))
    names = {parameter: name for name, parameter in network.named_parameters()}
    factors = {names[p]: g["rate_factor"] for g in optimizer.param_groups for p in g["params"]}
    assert len(factors) == len(names)
    assert factors["head.image.directions"] == factors["backbone.vit.norm.weight"] == 1
    assert factors["backbone.vit.blocks.1.mlp.fc1.weight"] == 0.5
    assert factors["backbone.vit.blocks.0.attn.qkv.bias"] == 0.25
    assert factors["backbone.vit.pos_embed"] == factors["backbone.vit.cls_token"] == 0.125


def continued(whole: Path, folder: Path, weight: float = 0.0, **model: Any) -> CrocConfig:
    config = tiny_config(folder, report=False)
    config = replace(config, model=replace(config.model, drop_path=0.0, init=str(whole), **model))
    return replace(config, anchor=AnchorConfig(weight=weight))


def test_anchor_preserves_similarities_and_is_exact_after_resume(whole: Path, tmp_path: Path):
    drift = {}
    for weight in (1e-9, 100.0):
        folder = pretrain(continued(whole, tmp_path / str(weight), weight), "tiny")
        lines = metrics_of(folder)
        assert lines[0]["loss_anchor"] == pytest.approx(0, abs=1e-9)  # before the first update
        drift[weight] = lines[-1]["loss_anchor"]
    assert drift[100.0] < 0.5 * drift[1e-9]

    config = continued(whole, tmp_path / "parts", 100.0)
    pretrain(replace(config, run=replace(config.run, stop_after_steps=5)), "tiny")
    assert same_weights(pretrain(config, "tiny"), tmp_path / "100.0")
    states = [
        load_checkpoint(checkpoints(run)[-1])["modules"] for run in (whole, tmp_path / "parts")
    ]
    for name, value in states[1]["anchor"].items():  # the anchor is constant
        assert torch.equal(value, states[0]["teacher"][f"backbone.{name}"]), name


def test_anchor_weight_follows_its_schedule(whole: Path, tmp_path: Path):
    config = continued(whole, tmp_path / "run", 4.0)
    lines = metrics_of(pretrain(replace(config, anchor=AnchorConfig(4.0, 0.0)), "tiny"))
    rest = [x["loss"] - x["loss_image"] - x["loss_cluster"] for x in lines]
    assert rest[4] / lines[4]["loss_anchor"] == pytest.approx(2.35, abs=0.02)  # 5th of 9 steps
    assert rest[8] / lines[8]["loss_anchor"] == pytest.approx(0.12, abs=0.05)


def test_frozen_blocks_do_not_change(whole: Path, tmp_path: Path):
    folder = pretrain(continued(whole, tmp_path / "run", train_blocks=1), "tiny")
    before, after = (load_checkpoint(checkpoints(run)[-1])["modules"] for run in (whole, folder))
    for name, value in after["student"].items():
        trained = name.startswith(("head.", "backbone.vit.blocks.1.", "backbone.vit.norm."))
        if not name.startswith("head."):  # heads are initialized randomly
            assert torch.equal(value, before["teacher"][name]) != trained, name


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224"])
def test_grad_checkpointing_gives_the_same_outputs_and_gradients(name: str):
    """With stochastic depth and, for Eva, the keyed jitter of rotary positions."""
    config = ModelConfig(name, patch_px=8, depth=3, drop_path=0.4)
    pixels, keys = torch.randn(2, 4, 3, 32, 32), torch.arange(4)
    seen = []
    for model in (config, replace(config, grad_checkpointing=True)):
        torch.manual_seed(0)
        backbone = Backbone(model, 32, drop_path=0.4).train()
        cls, patches = backbone(pixels, keys)
        (cls.square().sum() + patches.sin().sum()).backward()
        gradients = {key: p.grad for key, p in backbone.named_parameters() if p.grad is not None}
        seen.append({"cls": cls, "patches": patches, **gradients})
    assert len(seen[0]) > 30
    assert seen[0].keys() == seen[1].keys()
    for key, value in seen[0].items():
        assert torch.equal(value, seen[1][key]), key


def test_gram_distance_is_exact_under_autocast():
    """In bfloat16, rounding errors would be as large as a small drift."""
    anchor = torch.randn(2, 3, 16, 24)
    student = (anchor + 0.02 * torch.randn_like(anchor)).requires_grad_()
    exact = gram_distance(student, anchor)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(gram_distance(student, anchor), exact)
    (gradient,) = torch.autograd.grad(gram_distance(anchor.requires_grad_(), anchor).sum(), anchor)
    assert gradient.abs().max() == 0  # not NaN
