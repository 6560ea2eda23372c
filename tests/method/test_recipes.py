"""Every recipe trains at reduced size, and has the paper's hyperparameters."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from croc.config import DinoConfig, MaeConfig, PretrainConfig
from croc.fabric import Fabric
from croc.recipes import RECIPES
from croc.train.loop import Trainer, schedule_at
from tests.method.test_croc import make_canvases
from tests.tiny import tiny_config, tiny_dino, tiny_mae


def reduced(config: PretrainConfig) -> PretrainConfig:
    """The recipe with a small network, batch and dataset."""
    tiny = tiny_mae() if isinstance(config, MaeConfig) else tiny_config()
    small = "decoder" if isinstance(config, MaeConfig) else "head"
    head = tiny_dino().head if type(config) is DinoConfig else getattr(tiny, small)
    parts: dict[str, Any] = {
        "data": tiny.data,
        "views": replace(config.views, size_px=32, early_px=config.views.early_px and 24),
        "model": replace(config.model, depth=2, patch_px=8),
        "optim": replace(config.optim, batch=8),
        small: head,
    }
    return replace(config, **parts)


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_trains_a_step(name: str):
    config = reduced(RECIPES[name]())
    trainer = Trainer(Fabric(accelerator="cpu", devices=1), config)
    projection = trainer.method.student.get_parameter("backbone.vit.patch_embed.proj.weight")
    before = projection.detach().clone()
    metrics = trainer.step(make_canvases(config, 8), schedule_at(1, config.optim, 3))
    assert all(value.isfinite() for value in metrics.values())
    assert not torch.equal(before, projection)


def test_recipes_have_the_papers_hyperparameters():
    recipes: dict[str, Any] = {name: make() for name, make in RECIPES.items()}
    coco, imagenet = recipes["coco-vits16"], recipes["imagenet-vits16"]
    model, views, head, cluster = coco.model, coco.views, coco.head, coco.cluster
    loss, optim = coco.loss, coco.optim
    assert (model.name, model.drop_path) == ("vit_small_patch16_224", 0.1)
    assert (views.size_px, views.scale) == (224, (0.25, 1.0))
    assert (head.image_prototypes, head.cluster_prototypes) == (65_536, 8192)
    assert (cluster.position_weight, cluster.k_start, cluster.sharpness) == (4, 12, 20)
    assert (loss.alpha, loss.student_temp, loss.teacher_temp) == (1, 0.1, 0.07)
    assert (loss.teacher_temp_start, loss.temp_warmup_epochs) == (0.04, 30)
    assert (loss.teacher_momentum, loss.frozen_prototype_epochs) == (0.996, 1)
    assert (optim.weight_decay, optim.weight_decay_end) == (0.04, 0.4)
    assert (optim.lr, optim.lr_end, optim.warmup_epochs) == (5e-4, 1e-5, 10)
    assert (optim.batch, optim.epochs, optim.clip_gradient) == (256, 300, 0)
    assert (cluster.tokens, imagenet.cluster.tokens) == ("values", "keys")
    assert (imagenet.cluster.position_weight, imagenet.optim.batch) == (3, 1024)
    assert recipes["cocoplus-vits16"].data.subfolders == ("train2017", "unlabeled2017")
    dino, mae = recipes["dino-coco-vits16"], recipes["mae-coco-vits16"]
    assert (dino.optim, dino.views, dino.model, dino.data) == (optim, views, model, coco.data)
    assert (dino.head.image_prototypes, dino.head.unit_prototypes) == (65_536, False)
    decoder, optim, views = mae.decoder, mae.optim, mae.views
    assert (decoder.mask_ratio, decoder.width, decoder.depth, decoder.heads) == (0.75, 512, 8, 16)
    assert (optim.lr, optim.lr_end, optim.warmup_epochs) == (1.5e-4, 0.0, 40)
    assert (optim.weight_decay, optim.weight_decay_end, optim.betas) == (0.05, 0.05, (0.9, 0.95))
    assert (optim.batch, optim.epochs) == (256, 300)
    assert (views.scale, views.flip, views.jitter, views.grayscale) == ((0.2, 1.0), 0.5, 0.0, 0.0)
    assert views.blur == views.solarize == (0.0, 0.0)
