"""Which network a file of weights contains, recognized by keys and shapes alone.

A network is found by its first layer (a ViT's patch embedding, a ResNet's 7×7 convolution). What
precedes that layer's name is the network's prefix, whatever wrappers it consists of.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from croc.errors import UserError
from croc.method.backbone import Vit
from croc.tables import one_line
from croc.weights.files import first_line

PATCHES = "patch_embed.proj.weight"
MOMENTUM = {
    *("teacher", "encoder_k", "model_k", "key_encoder", "masknet"),
    *("target", "target_net", "target_network", "target_encoder", "target_model"),
    *("momentum_encoder", "momentum_backbone", "backbone_momentum"),
}
"""Moving averages of another network: if both are there, these projects evaluate the other one."""
AVERAGED = {"ema", "model_ema", "state_dict_ema", "ema_state_dict"}

# Key fragments that only this project's files have, all of them, and its name; the first fits.
SIGNATURES = (
    (("modules.", "backbone.vit."), "CrOC checkpoint"),
    (("croc_loss.",), "the authors' CrOC full checkpoint"),
    (("dino_loss.",), "DINO full checkpoint"),
    (("ibot_loss.",), "iBOT full checkpoint"),
    (("masked_embed",), "iBOT"),
    (("decoder_pred.", "decoder_embed."), "MAE full checkpoint"),
    (("ls1.gamma", "mask_token"), "DINOv2"),
    (("encoder_q.", "decode_head."), "CP² full checkpoint"),
    (("patch_embed.", "projection_head.", "prototypes."), "Leopart"),
    (("maps_projector.",), "VICRegL full checkpoint"),
    (("queue2",), "DenseCL full checkpoint"),
    (("local_intra_head.",), "ORL full checkpoint"),
    (("online_net.",), "BYOL full checkpoint, OpenMMLab's"),
    (("online_network.",), "BYOL full checkpoint"),
    (("neck_k.",), "SoCo full checkpoint"),
    (("encoder_k.", "value_transform."), "PixPro"),
    (("encoder_q.fpn_",), "ReSim full checkpoint"),
    (("encoder_q.",), "MoCo full checkpoint"),
)

VIT_RENAMES = (
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # DINOv2 trains its blocks in chunks
    (r"^register_tokens$", "reg_token"),
    (r"\.gamma_([12])$", r".ls\1.gamma"),
    (r"^fc_norm\.", "norm."),
)
VIT_TENSORS = re.compile(
    r"cls_token|pos_embed|reg_token|patch_embed\.proj\.(weight|bias)|norm\.(weight|bias)|"
    r"blocks\.\d+\.(norm[12]|attn\.(qkv|proj)|mlp\.fc[12])\.(weight|bias)|"
    r"blocks\.\d+\.ls[12]\.gamma"
)
VIT_NEEDED = ("blocks.", "patch_embed.", "norm_pre.", "dist_token")
"""Parts that change the features, so that unknown ones cannot be dropped as heads can."""
VIT_SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge"}
HEAD_WIDTH = 64
HEADS = {1280: 16, 1408: 16, 1664: 16}
"""Of the huge and giant ViTs, whose heads are wider."""

RESNET_KEYS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "stem.conv1.weight": (
        "detectron2's",
        (
            (r"^stem\.", ""),
            (r"^res(\d)\.", lambda match: f"layer{int(match[1]) - 1}."),
            (r"conv(\d)\.norm\.", r"bn\1."),
            (r"shortcut\.norm\.", "downsample.1."),
            (r"shortcut\.weight$", "downsample.0.weight"),
        ),
    ),
    "conv1.weight": ("torchvision's", ()),
    "0.weight": (
        "a torchvision Sequential's",
        (
            (r"^0\.", "conv1."),
            (r"^1\.", "bn1."),
            (r"^([4-7])\.(?=\d)", lambda match: f"layer{int(match[1]) - 3}."),
        ),
    ),
}
"""By the first layer, the longest name first: whose keys they are, and their names in timm."""
RESNET_TENSORS = re.compile(
    r"conv1\.weight|bn1\.(weight|bias|running_mean|running_var)|"
    r"layer[1-4]\.\d+\.(conv[123]\.weight|downsample\.0\.weight|"
    r"(bn[123]|downsample\.1)\.(weight|bias|running_mean|running_var))"
)
RESNETS: dict[tuple[tuple[int, ...], bool], str] = {
    ((2, 2, 2, 2), False): "resnet18",
    ((3, 4, 6, 3), False): "resnet34",
    ((3, 4, 6, 3), True): "resnet50",
    ((3, 4, 23, 3), True): "resnet101",
    ((3, 8, 36, 3), True): "resnet152",
}
"""By the blocks of the four stages, and whether they are bottlenecks."""
COUNTERS = "num_batches_tracked"


@dataclass(frozen=True)
class Recognized:
    """A file's network in timm's layout."""

    architecture: str
    """timm's name."""
    options: dict[str, Any]
    """For timm.create_model, beside the name."""
    weights: dict[str, Tensor]
    layout: str
    """For people: whose layout, and which of its networks."""
    dropped: int
    """Tensors that are not of the network: heads, queues, decoders, other networks."""

    @property
    def is_vit(self) -> bool:
        return PATCHES in self.weights


def recognize(tensors: Mapping[str, Tensor], source: str = "the file") -> Recognized:
    """The network in a file's tensors, which are named by their dotted paths."""
    networks = {}  # the first layer of every network, by prefix
    for name, value in tensors.items():
        fits = (first for first in (PATCHES, *RESNET_KEYS) if f".{name}".endswith(f".{first}"))
        first = next(fits, None)
        if first and value.ndim == 4:
            is_patches = first == PATCHES and value.shape[1] == 3
            if is_patches or tuple(value.shape[1:]) == (3, 7, 7):
                networks[name.removesuffix(first)] = first
    if not networks:
        keys = ", ".join(list(tensors)[:5]) or "none"
        raise UserError(
            f"{source} holds no ViT and no ResNet of a known layout; its first keys: {keys}"
        )
    prefix = _choose(networks, tensors, source)
    first = networks[prefix]
    own = {key.removeprefix(prefix): x for key, x in tensors.items() if key.startswith(prefix)}
    try:
        if first == PATCHES:
            weights = _rename(own, VIT_RENAMES, VIT_TENSORS, VIT_NEEDED, f"{source} holds a ViT")
            architecture, options = _measure_vit(weights, own, prefix, source)
        else:
            resnet = f"{source} holds a ResNet"
            weights = _rename(own, RESNET_KEYS[first][1], RESNET_TENSORS, ("layer",), resnet)
            names = [name.split(".") for name in weights]
            blocks = tuple(len({n[1] for n in names if n[0] == f"layer{i}"}) for i in (1, 2, 3, 4))
            options, is_deep = {}, "layer1.0.conv3.weight" in weights
            if (blocks, is_deep) not in RESNETS:
                raise UserError(f"{source} starts like a ResNet, but has {blocks} blocks")
            architecture = RESNETS[blocks, is_deep]
    except (IndexError, KeyError, ValueError, ArithmeticError) as error:
        raise UserError(f"{source} holds no plain network ({first_line(error)})") from None
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in weights.values()}
    if sum(x.nbytes for x in weights.values()) > sum(x.nbytes() for x in storages.values()):
        raise UserError(f"{source} holds tensors larger than the file: a few numbers, expanded")
    check_finite(weights, source)
    layout = "ViT in timm's keys" if first == PATCHES else f"ResNet in {RESNET_KEYS[first][0]} keys"
    for fragments, name in reversed(SIGNATURES):
        if all(any(fragment in key for key in tensors) for fragment in fragments):
            layout = name
    layout += f", from {prefix.rstrip('.')}" if prefix else ""
    return Recognized(architecture, options, weights, layout, len(tensors) - len(weights))


def check_finite(weights: Mapping[str, Tensor], source: str) -> None:
    broken = [name for name, value in weights.items() if not value.isfinite().all()]
    if broken:
        raise UserError(
            f"{source} holds weights that are not finite, in {len(broken)} of {len(weights)} "
            f"tensors ({', '.join(broken[:2])}): its training diverged"
        )


def _choose(networks: Mapping[str, str], tensors: Mapping[str, Tensor], source: str) -> str:
    """The network that its project evaluates."""
    words = {prefix: set(prefix.split(".")) for prefix in networks}
    left = [prefix for prefix in networks if words[prefix] & AVERAGED] or list(networks)
    if {"student", "teacher"} <= set().union(*words.values()):
        left = [prefix for prefix in left if "teacher" in words[prefix]] or left
    else:
        left = [prefix for prefix in left if not words[prefix] & MOMENTUM] or left
    # OpenMMLab's "backbone." is the shortest of the names of one network.
    best = min(left, key=lambda prefix: prefix.count("."))
    first = {prefix: tensors[prefix + networks[prefix]] for prefix in left}
    rivals = [
        prefix
        for prefix in left
        if prefix != best and not torch.equal(first[prefix].nan_to_num(), first[best].nan_to_num())
    ]
    if rivals:
        names = ", ".join(prefix.rstrip(".") or "the outermost" for prefix in (best, *rivals))
        raise UserError(f"{source} holds several networks ({names}): save the one that is meant")
    return best


def _rename(
    own: Mapping[str, Tensor],
    renames: tuple[Any, ...],
    known: re.Pattern[str],
    needed: tuple[str, ...],
    network: str,
) -> dict[str, Tensor]:
    """A network's tensors under timm's names; heads are dropped, unknown layers are an error."""
    weights = {}
    for name, value in own.items():
        new = name
        for pattern, replacement in renames:
            new = re.sub(pattern, replacement, new)
        if known.fullmatch(new) and (new == name or new not in own):
            weights[new] = value
        elif new.startswith(needed) and not new.endswith(COUNTERS):
            raise UserError(f"{network} that is not plain: it has {name}")
    return weights


def _measure_vit(
    weights: dict[str, Tensor], own: Mapping[str, Tensor], prefix: str, source: str
) -> tuple[str, dict[str, Any]]:
    """timm's name and options; only the number of heads leaves no trace in shapes."""
    if "pos_embed" not in weights:
        raise UserError(f"{source} has patches like a ViT's, but is no plain ViT: no pos_embed")
    has_class = "cls_token" in weights
    if "register_tokens" in own:
        # DINOv2 adds positions before it inserts registers; timm gives prefix tokens none.
        weights["cls_token"] = weights["cls_token"] + weights["pos_embed"][:, :1]
        weights["pos_embed"] = weights["pos_embed"][:, 1:]
    width, _, patch_px, _ = weights[PATCHES].shape
    if width % HEAD_WIDTH:
        raise UserError(
            f"{source}: a width of {width} is not a multiple of {HEAD_WIDTH}, the usual width of a "
            f"head: name its model, timm:NAME@{source}"
        )
    hidden = weights["blocks.0.mlp.fc1.weight"].shape[0]
    registers = weights["reg_token"].shape[1] if "reg_token" in weights else 0
    tokens = weights["pos_embed"].shape[1]
    # Does the position embedding have rows for the tokens before the patches?
    prefixes = (0,) if "register_tokens" in own else (has_class, 0, has_class + registers)
    rows = [count for count in prefixes if math.isqrt(tokens - count) ** 2 == tokens - count]
    if not rows:
        raise UserError(f"{source}: {tokens} position embeddings are no square grid of patches")
    # MoCo v3's small ViT is the one that has narrower heads.
    is_moco = width == 384 and "base_encoder" in prefix
    return f"vit_{VIT_SIZES.get(width, 'base')}_patch16_224", {
        "patch_size": patch_px,
        "embed_dim": width,
        "depth": len({name.split(".")[1] for name in weights if name.startswith("blocks.")}),
        "num_heads": 12 if is_moco else HEADS.get(width, width // HEAD_WIDTH),
        # Half a neuron more, since timm rounds width × ratio down.
        "mlp_ratio": hidden / width if hidden % width == 0 else (hidden + 0.5) / width,
        "qkv_bias": "blocks.0.attn.qkv.bias" in weights,
        "init_values": 1e-5 if "blocks.0.ls1.gamma" in weights else None,
        "class_token": has_class,
        "global_pool": "token" if has_class else "avg",
        "reg_tokens": registers,
        "no_embed_class": rows[0] == 0 and (has_class or registers > 0),
        "final_norm": "norm.weight" in weights,
        "fc_norm": False,
    }


def build_network(recognized: Recognized, image_px: int, source: str) -> nn.Module:
    """A ViT for images of that size, or a ConvNet dilated to an output stride of 16."""
    options: dict[str, Any] = {"features_only": True, "output_stride": 16}
    if recognized.is_vit:
        options = {"num_classes": 0, "img_size": image_px, "dynamic_img_size": True}
    with torch.random.fork_rng(devices=[]):  # timm's initial values are overwritten
        network = timm.create_model(recognized.architecture, **options, **recognized.options)
    fill(network, recognized.weights, source)
    return network


def fill(
    network: nn.Module, weights: dict[str, Tensor], source: str, resample: bool = True
) -> None:
    """Load weights in timm's layout, a ViT's position embedding resampled to its grid."""
    try:
        if resample and isinstance(network, Vit) and network.pos_embed is not None:
            prefix = 0 if network.no_embed_class else network.num_prefix_tokens
            positions = resample_abs_pos_embed(
                weights["pos_embed"].float(), list(network.patch_embed.grid_size), None, prefix
            )
            weights = {**weights, "pos_embed": positions}
        is_meta = any(parameter.is_meta for parameter in network.parameters())
        network.load_state_dict(weights, assign=is_meta)
    except RuntimeError as error:
        lines = str(error).splitlines()
        reason = "; ".join(one_line(line)[:200] for line in lines[1:4] or lines)
        raise UserError(f"{source} does not fit: {reason}") from None
