"""Files as the projects write them: the same keys, wrappers, heads, queues and pickled arguments.

`w` is always a network's state dict, a ViT's under timm's names, a ResNet's under torchvision's.
What a project's file holds beside it (the other network, heads) is there as zeros without memory.
"""

import pickle
import re
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


def mae_full(w: State) -> dict[str, Any]:
    """facebookresearch/mae, checkpoint-*.pth with its decoder."""
    decoder = ("mask_token", "decoder_pos_embed", "decoder_embed.weight", "decoder_pred.weight")
    more = zeros(*decoder, "decoder_blocks.0.norm1.weight", "decoder_norm.weight")
    return {"model": w | more, "optimizer": OPTIMIZER, "args": Namespace(model="mae_vit_small")}


def cribo(w: State) -> dict[str, Any]:
    """tileb1/CrIBo, main_cribo.py: like DINO's, with queues."""
    names = ("centroids_queue_cpu", "cls_queue_cpu", "cpv_queue_cpu")
    return self_distilled("dino_loss", "backbone.")(w) | {name: torch.zeros(8, 4) for name in names}


def renamed(w: State, *renames: tuple[str, str]) -> State:
    for old, new in renames:
        w = {re.sub(old, new, name): value for name, value in w.items()}
    return w


def dinov2(w: State) -> State:
    """facebookresearch/dinov2, dinov2_vit*_pretrain.pth, and vpariza/NeCo. With registers, the
    class token still has a position. The layers of ViT-g, and all of Franca's, are gated."""
    w = w | {"mask_token": torch.zeros(1, w["cls_token"].shape[-1])}
    if "reg_token" in w:
        position = torch.randn(w["cls_token"].shape, generator=torch.Generator().manual_seed(2))
        w |= {"cls_token": w["cls_token"] - position}
        w |= {"pos_embed": torch.cat([position, w["pos_embed"]], dim=1)}
    is_gated = w["blocks.0.mlp.fc1.weight"].shape[0] == 2 * w["blocks.0.mlp.fc2.weight"].shape[1]
    gates = (("mlp.fc1", "mlp.w12"), ("mlp.fc2", "mlp.w3")) if is_gated else ()
    return renamed(w, ("reg_token", "register_tokens"), *gates)


def dinov2_teacher(w: State) -> dict[str, Any]:
    """DINOv2's teacher_checkpoint.pth, and valeoai/Franca: blocks in chunks, numbered through."""
    chunked = renamed(dinov2(w), (r"^blocks\.(\d+)", r"blocks.\1.\1"))
    heads = zeros("dino_head.last_layer.weight_v", "ibot_head.mlp.0.weight")
    return {"teacher": prefixed("backbone.", chunked) | heads}


def dinov3(w: State) -> State:
    """facebookresearch/dinov3, dinov3_vit*_pretrain_*.pth: the biases of keys are masked, and those
    of queries and values may be zero. The 7B has a norm for small crops."""
    width, is_gated = w["cls_token"].shape[-1], "blocks.0.mlp.fc1_g.weight" in w
    gates = (("fc1_g", "w1"), ("fc1_x", "w2"), ("fc2", "w3")) if is_gated else ()
    w = renamed(w, ("reg_token", "storage_tokens"), (r"gamma_(\d)", r"ls\1.gamma"), *gates)
    for name in [name for name in w if name.endswith("qkv.weight")]:
        start, zero, one = name.removesuffix("qkv.weight"), torch.zeros(width), torch.ones(width)
        queries, values = (w.pop(f"{start}{part}_bias", zero) for part in "qv")
        w[f"{start}qkv.bias"] = torch.cat([queries, one, values])
        w[f"{start}qkv.bias_mask"] = torch.cat([one, zero, one])
    return w | {
        "mask_token": torch.zeros(1, width),
        "rope_embed.periods": 100 ** (torch.arange(16) / 16),
        "local_cls_norm.weight": torch.ones(width),
    }


def eva02(w: State) -> State:
    """baaivision/EVA, EVA-02/asuka: the tiny and small ViT have xFormers' SwiGLU, the others their
    own, with a norm."""
    freqs = ("rope.freqs_cos", "rope.freqs_sin", "blocks.0.attn.rope.freqs_cos")
    w = w | {name: torch.zeros(256, 64) for name in freqs}
    if "blocks.0.mlp.fc1.weight" in w:
        return renamed(w, ("mlp.fc1", "mlp.w12"), ("mlp.fc2", "mlp.w3"))
    w = renamed(w, ("mlp.norm", "mlp.ffn_ln"), (r"([qv])_proj.bias", r"\1_bias"))
    return renamed(w, ("mlp.fc1_g", "mlp.w1"), ("mlp.fc1_x", "mlp.w2"), ("mlp.fc2", "mlp.w3"))


def eva02_pretrained(w: State) -> dict[str, Any]:
    """eva02_*_pt_*.pt, as DeepSpeed saves."""
    return {"module": eva02(w) | zeros("mask_token", "lm_head.weight", "lm_head.bias")}


def eva02_finetuned(w: State) -> dict[str, Any]:
    """eva02_*_ft_*.pt: the final norm is of pooled tokens."""
    model = renamed(eva02(w), (r"^norm\.", "fc_norm."))
    return {"model": model | zeros("head.weight"), "optimizer": OPTIMIZER, "epoch": 3}


def croc_run(w: State) -> dict[str, Any]:
    """A checkpoint of ours without its run's folder."""
    modules = two("teacher.backbone.vit.", w, "student.backbone.vit.")
    return {"format": 2, "step": 3, "modules": modules, "optimizer": OPTIMIZER}


CP2 = ("module.encoder_q.decode_head.conv_seg.weight", "module.queue")
LEOPART = ("projection_head.0.weight", "prototypes.weight")
VITS: dict[str, Content] = {
    "cribo": cribo,
    "croc_authors": self_distilled("croc_loss", "backbone."),
    "dino_full": self_distilled("dino_loss", "module.backbone."),
    "dino_backbone": OrderedDict,
    "ibot_full": self_distilled("ibot_loss", "backbone."),
    "ibot_teacher": lambda w: {"state_dict": w | zeros("masked_embed")},
    "mae_encoder": lambda w: {"model": w},
    "mae_full": mae_full,
    # wangf3014/CP2, main.py: mmseg segmentors inside MoCo
    "cp2": lambda w: {
        "state_dict": two("module.encoder_q.backbone.", w, "module.encoder_k.backbone.", *CP2)
    },
    # MkuuWaUjinga/leopart, leopart_vits16.ckpt: a Lightning module's names
    "leopart": lambda w: two("model.", w, "teacher.", *LEOPART),
    "croc_run": croc_run,
}
FOUNDATIONS: dict[str, tuple[str, Content]] = {
    "dinov2": ("vit_small_patch14_dinov2", dinov2),
    "dinov2_registers": ("vit_small_patch14_reg4_dinov2", dinov2),
    "dinov2_teacher": ("vit_small_patch14_reg4_dinov2", dinov2_teacher),
    "franca": ("vit_giant_patch14_dinov2", dinov2_teacher),
    # vpariza/NeCo, Lightning's checkpoints while it trains
    "neco": (
        "vit_small_patch14_dinov2",
        lambda w: {"state_dict": two("model.", dinov2(w), "teacher.", "projection_head.0.weight")},
    ),
    "dinov3": ("vit_small_patch16_dinov3", dinov3),
    "dinov3_biases": ("vit_small_patch16_dinov3_qkvb", dinov3),
    "dinov3_gated": ("vit_small_plus_patch16_dinov3", dinov3),
    "dinov3_timm": ("vit_small_plus_patch16_dinov3_qkvb", OrderedDict),
    "eva02_small": ("eva02_small_patch14_224", eva02_pretrained),
    "eva02_base": ("eva02_base_patch14_224", eva02_pretrained),
    "eva02_finetuned": ("eva02_base_patch14_224", eva02_finetuned),
    "eva02_timm": (
        "eva02_tiny_patch14_224",
        lambda w: renamed(w, (r"^norm\.", "fc_norm.")) | zeros("head.weight", "head.bias"),
    ),
}
"""timm's network, and what its authors save."""


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
    "resim_detectron2": detectron2("stem.fc.0.weight"),
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
    "byol_openmmlab": openmmlab("online_net.0.", "target_net.0.", "head.predictor.mlp.0.weight"),
    # chigur/byol-convert, from DeepMind's own weights
    "byol_converted": lambda w: (
        zeros("fc.weight", "fc.bias")
        | {name: value for name, value in w.items() if "num_batches_tracked" not in name}
    ),
    "byol_sequential": byol_sequential,
}
SAVED: dict[str, Save] = {
    **dict.fromkeys(("dino_full", "dino_backbone", "moco", "pixpro"), save_old),
    "soco_detectron2": save_pickle,
}
"""By projects that do not use torch's present format."""
