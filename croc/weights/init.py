"""Starting a run from other weights (--init): its network follows them, and is filled with them."""

import contextlib
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from croc.config import CONFIG_FILE, ModelConfig, PretrainConfig, read_config
from croc.errors import UserError
from croc.method.backbone import Backbone
from croc.weights.backbones import COLORS, VitBackbone
from croc.weights.layouts import fill
from croc.weights.open import open_backbone

NETWORK_OPTIONS = {"model.name", "model.patch-px", "model.depth"}
Config = TypeVar("Config", bound=PretrainConfig)


def follow_init(config: Config, recipe: str, passed: Collection[str]) -> Config:
    """The configuration with the network of --init, and views of whole patches, unless the user
    `passed` options of the network ("model.name", "model.patch-px" …) or of the views' size.

    A resumed run keeps its network, even if the file of --init is gone.
    """
    model, views = config.model, config.views
    if model.init is None or not NETWORK_OPTIONS.isdisjoint(passed):
        return config
    config_file = Path(config.run.folder or f"runs/{recipe}") / CONFIG_FILE
    saved = read_config(config_file)[0] if config_file.is_file() else None
    if saved is not None and saved.model.init == model.init:
        model = replace(
            model, name=saved.model.name, patch_px=saved.model.patch_px, depth=saved.model.depth
        )
        sizes = {"size_px": saved.views.size_px, "early_px": saved.views.early_px}
    else:
        vit = _open_vit(model.init).vit
        model, patch_px = _describe_network(vit, model), vit.patch_embed.patch_size[0]
        sizes = {
            name: px and max(1, round(px / patch_px)) * patch_px
            for name, px in (("size_px", views.size_px), ("early_px", views.early_px))
        }
    sizes = {
        name: px for name, px in sizes.items() if f"views.{name.replace('_', '-')}" not in passed
    }
    return replace(config, model=model, views=replace(views, **sizes))


def _describe_network(vit: Any, model: ModelConfig) -> ModelConfig:
    """`model` if the network fits it as it is; else with the network's name, patch size and depth,
    if that is enough; else as it is, so that loading the weights reports what differs."""
    patch_px, name = vit.patch_embed.patch_size[0], vit.pretrained_cfg["architecture"]
    for option in (model, replace(model, name=name, patch_px=patch_px, depth=len(vit.blocks))):
        with contextlib.suppress(UserError), torch.device("meta"):
            _copy_weights(vit, Backbone(option, 16 * patch_px).vit, "--init")
            return option
    return model


def load_into(backbone: Backbone, spec: str) -> str:
    """Fill a backbone's ViT from a run, a checkpoint, timm:NAME, timm:NAME@FILE or a file (--init).

    Returns where the weights came from, for the log. Heads keep their initial values; positions
    are resampled to the backbone's grid.
    """
    source = _open_vit(spec)
    _copy_weights(source.vit, backbone.vit, f"--init {spec}")
    has_no_norm = isinstance(source.vit.norm, nn.Identity)
    return source.origin + has_no_norm * ", which has no final norm: that starts fresh"


def _open_vit(spec: str) -> VitBackbone:
    if spec.startswith("random:") or spec == COLORS:
        raise UserError(f"--init {spec}: that has no weights to start from; leave --init out")
    backbone = open_backbone(spec, flag="--init")
    if not isinstance(backbone, VitBackbone):
        raise UserError(f"--init {spec}: {backbone.name} is a ConvNet, the backbone is a ViT")
    return backbone


def _copy_weights(source: Any, target: Any, flag: str) -> None:
    """Refused unless both ViTs have the same architecture. A source without a final norm leaves the
    target's as it is; positions are resampled."""
    properties, expected = _properties(source), _properties(target)
    different = [
        f"{name} {value}, not {expected[name]}"
        for name, value in properties.items()
        if value != expected[name]
    ]
    if different:
        raise UserError(f"{flag} does not fit --model.name: it has {', '.join(different)}")
    weights = source.state_dict()
    if isinstance(source.norm, nn.Identity):
        weights |= {f"norm.{name}": value for name, value in target.norm.state_dict().items()}
    fill(target, weights, flag)


def _properties(vit: Any) -> dict[str, object]:
    """Everything that two ViTs must have in common, in words for the error message."""
    return {
        "width": vit.embed_dim,
        "depth": len(vit.blocks),
        "heads": vit.blocks[0].get_submodule("attn").num_heads,
        "patches of": f"{vit.patch_embed.patch_size[0]} px",
        "registers": vit.num_prefix_tokens - (vit.cls_token is not None),
        "class token": vit.cls_token is not None,
        "a position for the class token": vit.pos_embed is not None and not vit.no_embed_class,
        "rotary positions": type(getattr(vit, "rope", None)).__name__,
        "family": type(vit).__name__,
    }
