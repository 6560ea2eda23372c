"""A network as timm knows it: its arguments, its config.json, and the network itself."""

from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.weights.card import hub_licence
from croc.weights.page import WeightsPage

INTERPOLATION = "bicubic"
"""By which training resizes photographs."""


def timm_arguments(page: WeightsPage) -> dict[str, Any]:
    """What `timm.create_model` needs beside the name, to build the network of a page."""
    return {
        "img_size": page.image_px,
        "patch_size": page.patch_px,
        "depth": page.depth,
        "num_classes": 0,
        "global_pool": "token",
        "dynamic_img_size": True,
    }


def timm_config(page: WeightsPage, width: int) -> dict[str, Any]:
    """As timm's own config.json on model hubs."""
    return {
        "architecture": page.model,
        "num_classes": 0,
        "num_features": width,
        "global_pool": "token",
        "model_args": timm_arguments(page),
        "pretrained_cfg": {
            "tag": "croc",
            "input_size": [3, page.image_px, page.image_px],
            "fixed_input_size": False,
            "interpolation": INTERPOLATION,
            "crop_pct": 1.0,
            "mean": list(IMAGENET_MEAN),
            "std": list(IMAGENET_STD),
            "num_classes": 0,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "license": hub_licence(page.licence) or "other",
        },
    }


def plain_vit(page: WeightsPage, weights: dict[str, Tensor]) -> VisionTransformer:
    """timm's own layers, which others have too, instead of ours."""
    with torch.random.fork_rng(devices=[]):  # what timm draws is overwritten, and is no one's turn
        vit: Any = timm.create_model(page.model, **timm_arguments(page))
    vit.load_state_dict(weights)
    return vit.eval().requires_grad_(False)
