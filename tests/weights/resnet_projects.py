"""Files of ResNet-50 as the projects write them; `weights` are under torchvision's names."""

import pickle
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.weights.projects import State, Write, optimizer, other, prefixed, zeros


def untracked(weights: State) -> State:
    return {k: v for k, v in weights.items() if not k.endswith("num_batches_tracked")}


def detectron2_keys(weights: State) -> dict[str, Any]:
    """As the converters of MoCo, PixPro, ReSim and SoCo rename, arrays for tensors."""
    renamed = {}
    for name, value in weights.items():
        name = name if "layer" in name else f"stem.{name}"
        for stage in (1, 2, 3, 4):
            name = name.replace(f"layer{stage}", f"res{stage + 1}")
        for layer in (1, 2, 3):
            name = name.replace(f"bn{layer}", f"conv{layer}.norm")
        name = name.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")
        renamed[name] = value.numpy()
    return renamed


def moco(weights: State, path: Path, **more: State) -> None:
    """facebookresearch/moco, main_moco.py; DetCo's raw files are of this kind too."""
    head = zeros(fc__0__weight=(8, 8), fc__2__bias=(128,)) | more.get("head", {})
    content = {
        "epoch": 200,
        "arch": "resnet50",
        "state_dict": OrderedDict(
            prefixed("module.encoder_q.", weights | head)
            | prefixed("module.encoder_k.", other(weights) | head)
            | zeros(module__queue=(128, 64), module__queue_ptr=(1,))
        ),
        "optimizer": optimizer(),
    }
    torch.save(content, path, _use_new_zipfile_serialization=False)


def resim(weights: State, path: Path) -> None:
    """Tete-Xiao/ReSim, moco/models.py: an FPN beside the layers."""
    fpn = zeros(fpn_lateral5__weight=(256, 2048, 1, 1), fpn_output4__weight=(256, 256, 3, 3))
    moco(weights, path, head=fpn)


def resim_detectron2(weights: State, path: Path) -> None:
    """Tete-Xiao/ReSim, detection/convert-pretrain-to-detectron2.py: torch.save of arrays."""
    model = detectron2_keys(weights) | {"stem.fc.0.weight": np.zeros((4, 4), np.float32)}
    torch.save({"model": model, "__author__": "MOCO", "matching_heuristics": True}, path)


def detco_detectron2(weights: State, path: Path) -> None:
    """xieenze/DetCo, detco_200ep.pkl: a plain pickle of arrays."""
    content = {"model": detectron2_keys(weights), "__author__": "x", "matching_heuristics": True}
    path.write_bytes(pickle.dumps(content, protocol=3))


def soco_detectron2(weights: State, path: Path) -> None:
    """hologerry/SoCo, convert_detectron2_Head.py, with the FPN and the box head."""
    model = detectron2_keys(weights) | {"fpn_lateral2.weight": np.zeros((4, 4), np.float32)}
    model |= {"box_head.conv1.weight": np.zeros((4, 4, 3, 3), np.float32)}
    path.write_bytes(pickle.dumps({"model": model, "__author__": "Yue"}, protocol=5))


def soco(weights: State, path: Path) -> None:
    """hologerry/SoCo, main_pretrain.py."""
    parts = zeros(module__neck__fpn_convs__0__conv__weight=(4, 4, 3, 3), module__neck_k__a=(1,))
    model = prefixed("module.encoder.", weights) | prefixed("module.encoder_k.", other(weights))
    content = {
        "opt": Namespace(model="SoCo_FPN", arch="resnet50"),
        "model": OrderedDict(model | parts | zeros(module__projector_k__linear1__weight=(4, 4))),
        "optimizer": optimizer(),
        "scheduler": {"last_epoch": 3, "base_lrs": [1.0]},
        "epoch": 100,
        "amp": {"loss_scaler0": {"loss_scale": 1.0}},
    }
    torch.save(content, path)


def pixpro(weights: State, path: Path) -> None:
    """zdaxie/PixPro, publish_model.py: only the model is left."""
    model = prefixed("module.encoder.", weights) | prefixed("module.encoder_k.", other(weights))
    heads = zeros(module__projector__linear1__weight=(4, 4), module__value_transform__bias=(4,))
    torch.save({"model": OrderedDict(model | heads)}, path, _use_new_zipfile_serialization=False)


def vicregl(weights: State, path: Path) -> None:
    """facebookresearch/VICRegL, resnet50_alpha0.9.pth."""
    torch.save(OrderedDict(weights), path)


def vicregl_full(weights: State, path: Path) -> None:
    """facebookresearch/VICRegL, utils.checkpoint."""
    heads = zeros(maps_projector__0__weight=(4, 4), projector__0__weight=(4, 4))
    heads |= zeros(classifier__weight=(10, 4))
    model = prefixed("module.", prefixed("backbone.", weights) | heads)
    torch.save({"epoch": 300, "model": model, "optimizer": optimizer()}, path)


def openmmlab(weights: State, **heads: tuple[int, ...]) -> dict[str, Any]:
    """OpenSelfSup: `backbone` is another name for the first network's first part."""
    meta = {"epoch": 800, "config": "model = dict()", "mmcv_version": "0.6.2"}
    state = {**prefixed("backbone.", weights), **zeros(**heads)}
    return {"meta": meta, "state_dict": OrderedDict(state), "optimizer": optimizer()}


def densecl(weights: State, path: Path) -> None:
    """WXinlong/DenseCL, models/densecl.py."""
    content = openmmlab(weights, queue=(128, 8), queue2=(128, 8), encoder_q__1__mlp__bias=(4,))
    content["state_dict"] |= prefixed("encoder_q.0.", weights)
    content["state_dict"] |= prefixed("encoder_k.0.", other(weights))
    torch.save(content, path)


def densecl_extracted(weights: State, path: Path) -> None:
    """WXinlong/DenseCL, tools/extract_backbone_weights.py."""
    torch.save({"state_dict": OrderedDict(weights), "author": "OpenSelfSup"}, path)


def orl(weights: State, path: Path) -> None:
    """Jiahao000/ORL, models/orl.py."""
    content = openmmlab(weights, local_intra_head__predictor__mlp__0__weight=(4, 4))
    content["state_dict"] |= prefixed("online_net.0.", weights)
    content["state_dict"] |= prefixed("target_net.0.", other(weights))
    torch.save(content, path)


def byol_openmmlab(weights: State, path: Path) -> None:
    """open-mmlab, algorithms/byol.py."""
    content = openmmlab(weights, head__predictor__mlp__0__weight=(4, 4))
    content["state_dict"] |= prefixed("online_net.0.", weights)
    content["state_dict"] |= prefixed("target_net.0.", other(weights))
    torch.save(content, path)


def byol_converted(weights: State, path: Path) -> None:
    """chigur/byol-convert, from DeepMind's own weights."""
    torch.save(untracked(weights) | zeros(fc__weight=(1000, 2048), fc__bias=(1000,)), path)


def byol_sequential(weights: State, path: Path) -> None:
    """BYOL in PyTorch, and the DetCon and ODIN made after it: torchvision's children in a row."""
    places = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
    renamed = {}
    for name, value in weights.items():
        first, _, rest = name.partition(".")
        renamed[f"{places[first]}.{rest}"] = value
    model = prefixed("online_network.encoder.", renamed)
    model |= prefixed("target_network.encoder.", other(renamed))
    config = {"model": {"backbone": {"type": "resnet50"}}}
    torch.save({"config": config, "epoch": 300, "model": model, "optimizer": optimizer()}, path)


RESNETS: list[Write] = [
    *(moco, resim, resim_detectron2, detco_detectron2, soco_detectron2, soco, pixpro, vicregl),
    *(vicregl_full, densecl, densecl_extracted, orl, byol_openmmlab, byol_converted),
    byol_sequential,
]
