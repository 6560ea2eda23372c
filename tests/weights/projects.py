"""Files as the projects write them: the same keys, wrappers, heads, queues and pickled arguments.

`w` is always a network's state dict, a ViT's under timm's names, a ResNet's under torchvision's.
What a project's file holds beside it (the other network, heads) is there as zeros without memory.
"""

import pickle
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

State = dict[str, Tensor]
Content = Callable[[State], Any]


def save_zip(content: Any, path: Path) -> None:
    torch.save(content, path)


def save_old(content: Any, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def save_pickle(content: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(content))


Save = Callable[[Any, Path], None]
SAVES: list[Save] = [save_zip, save_old, save_pickle]


def prefixed(prefix: str, weights: State) -> State:
    return OrderedDict((f"{prefix}{name}", value) for name, value in weights.items())


def other(weights: State) -> State:
    """A network of the same shapes that must not be taken."""
    return {name: torch.zeros(()).expand(value.shape) for name, value in weights.items()}


def zeros(*names: str, shape: tuple[int, ...] = (4, 4)) -> State:
    return {name: torch.zeros(()).expand(shape) for name in names}


def two(first: str, w: State, second: str, *heads: str) -> State:
    """The network, another that is not evaluated, and heads."""
    return OrderedDict(prefixed(first, w) | prefixed(second, other(w)) | zeros(*heads))


OPTIMIZER = {
    "state": {0: {"step": 7, "exp_avg": torch.zeros(3, 3)}},
    "param_groups": [{"lr": np.float64(1e-4), "params": [0]}],
}
META = {"epoch": 800, "config": "model = dict()", "mmcv_version": "0.6.2"}
CROC_ARGS = Namespace(
    arch="vit_small",
    n_tokens=12,
    n_centroids_max=np.int64(8),
    pos_alpha=4.0,
    global_crops_scale=(0.25, 1.0),
    output_dir=Path("/scratch/croc"),
)


def self_distilled(loss: str, teacher: str, arguments: Namespace = CROC_ARGS) -> Content:
    """stegmuel/CrOC, main_croc.py, facebookresearch/dino, main_dino.py, and bytedance/ibot."""
    return lambda w: {
        "student": prefixed("module.backbone.", other(w)) | zeros("module.head.mlp.0.weight"),
        "teacher": prefixed(teacher, w) | zeros("head.last_layer.weight_g"),
        "optimizer": OPTIMIZER,
        "args": arguments,
        loss: zeros("center", "center_c"),
        "fp16_scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 3},
    }


croc_authors = self_distilled("croc_loss", "backbone.")


def mae_full(w: State) -> dict[str, Any]:
    """facebookresearch/mae, checkpoint-*.pth with its decoder."""
    decoder = ("mask_token", "decoder_pos_embed", "decoder_embed.weight", "decoder_pred.weight")
    more = zeros(*decoder, "decoder_blocks.0.norm1.weight", "decoder_norm.weight")
    return {"model": w | more, "optimizer": OPTIMIZER, "args": Namespace(model="mae_vit_small")}


def dinov2(w: State) -> dict[str, Any]:
    """facebookresearch/dinov2, teacher_checkpoint.pth: blocks in chunks."""
    renamed = {k.replace("reg_token", "register_tokens"): v for k, v in w.items()}
    chunked = {k.replace("blocks.", "blocks.0."): v for k, v in renamed.items()}
    heads = zeros("backbone.mask_token", "dino_head.last_layer.weight_v")
    return {"teacher": prefixed("backbone.", chunked) | heads}


def croc_run(w: State) -> dict[str, Any]:
    """A checkpoint of ours without its run's folder."""
    modules = two("teacher.backbone.vit.", w, "student.backbone.vit.")
    return {"format": 2, "step": 3, "modules": modules, "optimizer": OPTIMIZER}


CP2 = ("module.encoder_q.decode_head.conv_seg.weight", "module.queue")
LEOPART = ("projection_head.0.weight", "prototypes.weight")
VITS: dict[str, tuple[Content, str]] = {
    "croc_authors": (croc_authors, "the authors' CrOC full checkpoint, from teacher.backbone"),
    "dino_full": (
        self_distilled("dino_loss", "module.backbone."),
        "DINO full checkpoint, from teacher.module.backbone",
    ),
    "dino_backbone": (OrderedDict, "ViT in timm's keys"),
    "ibot_full": (
        self_distilled("ibot_loss", "backbone."),
        "iBOT full checkpoint, from teacher.backbone",
    ),
    "ibot_teacher": (lambda w: {"state_dict": w | zeros("masked_embed")}, "iBOT, from state_dict"),
    "mae_encoder": (lambda w: {"model": w}, "ViT in timm's keys, from model"),
    "mae_full": (mae_full, "MAE full checkpoint, from model"),
    # wangf3014/CP2, main.py: mmseg segmentors inside MoCo
    "cp2": (
        lambda w: {
            "state_dict": two("module.encoder_q.backbone.", w, "module.encoder_k.backbone.", *CP2)
        },
        "CP² full checkpoint, from state_dict.module.encoder_q.backbone",
    ),
    # MkuuWaUjinga/leopart, leopart_vits16.ckpt: a Lightning module's names
    "leopart": (lambda w: two("model.", w, "teacher.", *LEOPART), "Leopart, from model"),
    "croc_run": (croc_run, "CrOC checkpoint, from modules.teacher.backbone.vit"),
}
"""What a project saves, and the layout that is recognized."""


def moco(w: State, *heads: str) -> dict[str, Any]:
    """facebookresearch/moco, main_moco.py; DetCo's raw files are of this kind too."""
    heads = ("module.queue", "module.encoder_q.fc.0.weight", *heads)
    state = two("module.encoder_q.", w, "module.encoder_k.", *heads)
    return {"epoch": 200, "arch": "resnet50", "state_dict": state, "optimizer": OPTIMIZER}


def detectron2(*heads: str) -> Content:
    """As the converters of MoCo, PixPro, ReSim, DetCo and SoCo rename, arrays for tensors."""

    def convert(w: State) -> dict[str, Any]:
        model: dict[str, Any] = {name: np.zeros((4, 4), np.float32) for name in heads}
        for name, value in w.items():
            name = name if "layer" in name else f"stem.{name}"
            for number in (1, 2, 3, 4):
                name = name.replace(f"layer{number}", f"res{number + 1}")
                name = name.replace(f"bn{number}", f"conv{number}.norm")
            name = name.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")
            model[name] = value.numpy()
        return {"model": model, "__author__": "x", "matching_heuristics": True}

    return convert


def soco(w: State) -> dict[str, Any]:
    """hologerry/SoCo, main_pretrain.py."""
    heads = ("module.neck.fpn_convs.0.conv.weight", "module.neck_k.a")
    return {
        "opt": Namespace(model="SoCo_FPN", arch="resnet50"),
        "model": two("module.encoder.", w, "module.encoder_k.", *heads),
        "scheduler": {"last_epoch": 3, "base_lrs": [1.0]},
        "amp": {"loss_scaler0": {"loss_scale": 1.0}},
    }


def openmmlab(first: str, second: str, *heads: str) -> Content:
    """OpenSelfSup: `backbone` is another name for the first network's first part."""
    return lambda w: {
        "meta": META,
        "state_dict": prefixed("backbone.", w) | two(first, w, second, *heads),
        "optimizer": OPTIMIZER,
    }


def byol_sequential(w: State) -> dict[str, Any]:
    """BYOL in PyTorch, and the DetCon and ODIN made after it: torchvision's children in a row."""
    places = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
    renamed = {f"{places[name.split('.')[0]]}.{name.partition('.')[2]}": x for name, x in w.items()}
    model = two("online_network.encoder.", renamed, "target_network.encoder.")
    return {"config": {"model": {"backbone": {"type": "resnet50"}}}, "model": model}


RESNETS: dict[str, Content] = {
    "moco": moco,
    "resim": lambda w: moco(w, "module.encoder_q.fpn_lateral5.weight"),
    "resim_detectron2": detectron2("stem.fc.0.weight"),
    "detco_detectron2": detectron2(),
    "soco_detectron2": detectron2("fpn_lateral2.weight", "box_head.conv1.weight"),
    "soco": soco,
    # zdaxie/PixPro, publish_model.py: only the model is left
    "pixpro": lambda w: {
        "model": two("module.encoder.", w, "module.encoder_k.", "module.value_transform.bias")
    },
    "vicregl": OrderedDict,
    # facebookresearch/VICRegL, utils.checkpoint
    "vicregl_full": lambda w: {
        "model": prefixed("module.backbone.", w) | zeros("module.maps_projector.0.weight")
    },
    "densecl": openmmlab("encoder_q.0.", "encoder_k.0.", "queue", "queue2"),
    "densecl_extracted": lambda w: {"state_dict": w, "author": "OpenSelfSup"},
    "orl": openmmlab("online_net.0.", "target_net.0.", "local_intra_head.predictor.mlp.0.weight"),
    "byol_openmmlab": openmmlab("online_net.0.", "target_net.0.", "head.predictor.mlp.0.weight"),
    # chigur/byol-convert, from DeepMind's own weights
    "byol_converted": lambda w: (
        zeros("fc.weight", "fc.bias")
        | {name: value for name, value in w.items() if "num_batches_tracked" not in name}
    ),
    "byol_sequential": byol_sequential,
}
SAVED: dict[str, Save] = {
    **dict.fromkeys(("dino_full", "dino_backbone", "moco", "resim", "pixpro"), save_old),
    **dict.fromkeys(("detco_detectron2", "soco_detectron2"), save_pickle),
}
"""By projects that do not use torch's present format."""
