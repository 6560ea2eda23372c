"""Every recipe, at a size that a test can afford."""

from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric

from croc.config import CrocConfig, DinoConfig, MaeConfig, PretrainConfig
from croc.method.build import Method, build_method
from croc.method.optim import Guard, make_optimizer
from croc.recipes import RECIPES
from croc.train.cuda_graph import Gradients
from croc.train.loop import settings_at, train_step
from tests.method.test_croc import make_canvases
from tests.tiny import tiny_config, tiny_dino, tiny_mae


def reduced(config: PretrainConfig) -> PretrainConfig:
    """Its own choices stay."""
    tiny = tiny_config()
    config = replace(
        config,
        data=tiny.data,
        views=replace(config.views, size_px=32, early_px=config.views.early_px and 24),
        model=replace(config.model, depth=2, patch_px=8),
        optim=replace(config.optim, batch=8),
    )
    if isinstance(config, CrocConfig):
        return replace(config, head=tiny.head)
    if isinstance(config, DinoConfig):
        return replace(config, head=tiny_dino().head)
    assert isinstance(config, MaeConfig)
    return replace(config, decoder=tiny_mae().decoder)


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_does_a_step(name: str):
    config = reduced(RECIPES[name]())
    torch.manual_seed(0)
    fabric, device = Fabric(accelerator="cpu", devices=1), torch.device("cpu")
    method = build_method(config, device, compile=False)
    assert isinstance(method, Method)
    optimizer = make_optimizer(method.student, device, config.optim)
    student, optimizer = fabric.setup(method.student, optimizer)
    projection = method.student.get_parameter("backbone.vit.patch_embed.proj.weight")
    before = projection.detach().clone()
    settings = settings_at(1, config.optim, 3)
    gradients = Gradients(fabric, method, student)
    metrics = train_step(
        gradients, Guard(optimizer, fabric.device), make_canvases(config, 8), settings, config.optim
    )
    assert all(value.isfinite() for value in metrics.values())
    assert not torch.equal(before, projection)


def test_the_baselines_have_the_papers_settings():
    dino, croc = RECIPES["dino-coco-vits16"](), RECIPES["coco-vits16"]()
    assert isinstance(dino, DinoConfig)
    assert not isinstance(dino, CrocConfig)
    assert (dino.optim, dino.views, dino.model, dino.data) == (
        croc.optim,
        croc.views,
        croc.model,
        croc.data,
    )
    assert (dino.head.image_prototypes, dino.head.unit_prototypes) == (65_536, False)
    assert (dino.loss.teacher_temperature_start, dino.loss.teacher_temperature) == (0.04, 0.07)
    mae = RECIPES["mae-coco-vits16"]()
    assert isinstance(mae, MaeConfig)
    assert (mae.decoder.mask, mae.decoder.width) == (0.75, 512)
    assert (mae.decoder.depth, mae.decoder.heads) == (8, 16)
    assert (mae.optim.rate, mae.optim.rate_end, mae.optim.warmup_epochs) == (1.5e-4, 0.0, 40)
    assert (mae.optim.weight_decay, mae.optim.weight_decay_end) == (0.05, 0.05)
    assert (mae.optim.batch, mae.optim.epochs) == (256, 300)
    assert mae.optim.betas == (0.9, 0.95)
    views = mae.views
    assert (views.scale, views.flip, views.jitter, views.grayscale) == ((0.2, 1.0), 0.5, 0.0, 0.0)
    assert views.blur == views.solarise == (0.0, 0.0)


def test_what_is_compared_sees_as_many_images():
    croc, dino, mae = (RECIPES[f"{name}coco-20min"]() for name in ("", "dino-", "mae-"))
    for other in (dino, mae):
        assert (other.optim.epochs, other.optim.batch) == (
            croc.optim.epochs,
            croc.optim.batch,
        )
        assert other.data == croc.data
        assert replace(other.model, position_window=croc.model.position_window) == croc.model
        assert other.views.size_px == croc.views.size_px
    assert (dino.views, dino.optim, dino.model) == (
        croc.views,
        croc.optim,
        croc.model,
    )
