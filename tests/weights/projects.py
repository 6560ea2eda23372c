"""Files as the projects write them: the same keys, wrappers, heads, queues and pickled arguments.

`weights` is always a network's state dict under timm's names. What a project's file holds beside
it (the momentum encoder, heads, the optimizer) is there as zeros that take no room.
"""

from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

State = dict[str, Tensor]
Write = Callable[[State, Path], Any]


def prefixed(prefix: str, weights: State) -> State:
    return OrderedDict((f"{prefix}{name}", value) for name, value in weights.items())


def other(weights: State) -> State:
    """A network of the same shapes that must not be taken."""
    return {name: torch.zeros(()).expand(value.shape) for name, value in weights.items()}


def zeros(**shapes: tuple[int, ...]) -> State:
    return {
        name.replace("__", "."): torch.zeros(()).expand(shape) for name, shape in shapes.items()
    }


def optimizer() -> dict[str, Any]:
    moments = {"step": 7, "exp_avg": torch.zeros(3, 3), "exp_avg_sq": torch.zeros(3, 3)}
    return {"state": {0: moments}, "param_groups": [{"lr": np.float64(1e-4), "params": [0]}]}


def croc_authors(weights: State, path: Path) -> None:
    """stegmuel/CrOC, main_croc.py."""
    head = zeros(head__mlp__0__weight=(8, 4), head__last_layer_c__weight_v=(16, 8))
    content = {
        "student": prefixed("module.", prefixed("backbone.", other(weights)) | head),
        "teacher": prefixed("backbone.", weights) | head,
        "optimizer": optimizer(),
        "epoch": 300,
        "args": Namespace(
            arch="vit_small",
            n_tokens=12,
            n_centroids_max=np.int64(8),
            pos_alpha=4.0,
            global_crops_scale=(0.25, 1.0),
            output_dir=Path("/scratch/croc"),
        ),
        "croc_loss": zeros(center=(1, 16), center_c=(1, 8)),
        "fp16_scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 3},
    }
    torch.save(content, path)


def dino_full(weights: State, path: Path) -> None:
    """facebookresearch/dino, main_dino.py."""
    head = zeros(head__mlp__0__weight=(8, 4), head__last_layer__weight_g=(16, 1))
    content = {
        "student": prefixed("module.", prefixed("backbone.", other(weights)) | head),
        "teacher": prefixed("module.", prefixed("backbone.", weights) | head),
        "optimizer": optimizer(),
        "epoch": 100,
        "args": Namespace(arch="vit_small", patch_size=16),
        "dino_loss": zeros(center=(1, 16)),
    }
    torch.save(content, path, _use_new_zipfile_serialization=False)


def dino_backbone(weights: State, path: Path) -> None:
    """facebookresearch/dino, dino_deitsmall16_pretrain.pth."""
    torch.save(OrderedDict(weights), path, _use_new_zipfile_serialization=False)


def ibot_full(weights: State, path: Path) -> None:
    """bytedance/ibot, main_ibot.py."""
    masked = {"masked_embed": torch.zeros(1, weights["cls_token"].shape[2])}
    head = zeros(head__last_layer2__weight_v=(16, 8))
    content = {
        "student": prefixed("module.", prefixed("backbone.", other(weights) | masked) | head),
        "teacher": prefixed("backbone.", weights) | head,
        "optimizer": optimizer(),
        "args": Namespace(arch="vit_small"),
        "ibot_loss": zeros(center=(1, 16), center2=(1, 1, 16)),
    }
    torch.save(content, path)


def ibot_teacher(weights: State, path: Path) -> None:
    """bytedance/ibot, checkpoint_teacher.pth."""
    masked = {"masked_embed": torch.zeros(1, weights["cls_token"].shape[2])}
    torch.save({"state_dict": OrderedDict(weights | masked)}, path)


def mae_encoder(weights: State, path: Path) -> None:
    """facebookresearch/mae, mae_pretrain_vit_*.pth."""
    torch.save({"model": OrderedDict(weights)}, path)


def mae_full(weights: State, path: Path) -> None:
    """facebookresearch/mae, checkpoint-*.pth with its decoder."""
    width = weights["cls_token"].shape[2]
    decoder = zeros(
        mask_token=(1, 1, 8),
        decoder_pos_embed=(1, 5, 8),
        decoder_embed__weight=(8, width),
        decoder_blocks__0__norm1__weight=(8,),
        decoder_norm__weight=(8,),
        decoder_pred__weight=(768, 8),
    )
    content = {
        "model": OrderedDict(weights | decoder),
        "optimizer": optimizer(),
        "epoch": 799,
        "scaler": {"scale": 1.0},
        "args": Namespace(model="mae_vit_small_patch16", output_dir=Path("out")),
    }
    torch.save(content, path)


def cp2(weights: State, path: Path) -> None:
    """wangf3014/CP2, main.py: mmseg segmentors inside MoCo."""
    decoder = zeros(decode_head__conv_seg__weight=(128, 8, 1, 1))
    content = {
        "epoch": 20,
        "arch": "vit",
        "state_dict": OrderedDict(
            prefixed("module.encoder_q.", prefixed("backbone.", weights) | decoder)
            | prefixed("module.encoder_k.", prefixed("backbone.", other(weights)) | decoder)
            | zeros(module__queue=(128, 64), module__queue_ptr=(1,))
        ),
        "optimizer": optimizer(),
    }
    torch.save(content, path)


def leopart(weights: State, path: Path) -> None:
    """MkuuWaUjinga/leopart, leopart_vits16.ckpt: a flat dict of the Lightning module's names."""
    head = zeros(projection_head__0__weight=(8, 4), prototypes__weight=(300, 8))
    content = prefixed("teacher.", other(weights) | head) | prefixed("model.", weights | head)
    torch.save(content, path)


def dinov2(weights: State, path: Path) -> None:
    """facebookresearch/dinov2, teacher_checkpoint.pth: blocks in chunks."""
    renamed = {"register_tokens" if k == "reg_token" else k: v for k, v in weights.items()}
    chunked = {k.replace("blocks.", "blocks.0."): v for k, v in renamed.items()}
    masked = {"mask_token": torch.zeros(1, weights["cls_token"].shape[2])}
    head = zeros(dino_head__last_layer__weight_v=(16, 8))
    torch.save({"teacher": prefixed("backbone.", chunked | masked) | head}, path)


def croc_run(weights: State, path: Path) -> None:
    """A checkpoint of ours without its run's folder."""
    modules = {
        "teacher": prefixed("backbone.vit.", weights),
        "student": prefixed("backbone.vit.", other(weights)),
    }
    torch.save({"format": 2, "step": 3, "modules": modules, "optimizer": optimizer()}, path)


VITS: list[Write] = [
    *(croc_authors, dino_full, dino_backbone, ibot_full, ibot_teacher, mae_encoder, mae_full),
    *(cp2, leopart, croc_run),
]
