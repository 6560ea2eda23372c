"""Which network a file of weights contains, recognized by keys and shapes alone.

A network is found by its first layer (a ViT's patch embedding, a ResNet's 7×7 convolution). What
precedes that layer's name is the network's prefix, regardless of the wrappers.
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
TRANSFORMERS = (
    "embeddings.patch_embeddings.projection.weight",
    "embeddings.patch_embeddings.weight",
)
"""The patch embedding in files of the library transformers: DINOv2's and ViT's, DINOv3's."""
MOMENTUM = {
    *("teacher", "encoder_k", "model_k", "key_encoder", "masknet"),
    *("target", "target_net", "target_network", "target_encoder", "target_model"),
    *("momentum_encoder", "momentum_backbone", "backbone_momentum"),
}
"""Moving averages of another network: if both are there, these projects evaluate the other one."""
AVERAGED = {"ema", "model_ema", "state_dict_ema", "ema_state_dict"}

RENAMES = (
    # The authors of DINOv2 and DINOv3, who train the blocks in chunks, and of EVA-02.
    (r"^blocks\.\d+\.(?=\d)", "blocks."),
    (r"^(storage|embeddings\.register)_tokens$", "reg_token"),
    (r"\.mlp\.(w12|weights_in)\.", ".mlp.fc1."),
    (r"\.mlp\.(w1|gate_proj)\.", ".mlp.fc1_g."),
    (r"\.mlp\.(w2|up_proj)\.", ".mlp.fc1_x."),
    (r"\.mlp\.(w3|weights_out|down_proj)\.", ".mlp.fc2."),
    (r"\.(ffn_ln|inner_attn_ln)\.", ".norm."),
    # ViTModel, Dinov2Model, Dinov2WithRegistersModel and DINOv3ViTModel, as published and as in
    # transformers 5.
    (r"^embeddings\.patch_embeddings\.(projection\.)?", "patch_embed.proj."),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.", ""),
    (r"^(encoder\.|model\.)?layers?\.", "blocks."),
    (r"\.attention\.(attention\.)?([qkv])(uery|ey|alue|_proj)\.", r".attn.\2."),
    (r"\.attention\.(output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"^layernorm\.", "norm."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
)
"""From the names of a ViT's authors, or of transformers, to timm's."""
VIT_NEEDED = ("blocks.", "patch_embed.", "norm_pre.", "norm.", "dist_token", "rope.freqs")
"""Parts that change the features, so that unknown ones cannot be dropped as heads can."""
VIT_SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge"}
VIT_SIZES |= {1408: "giant", 1536: "giant", 1664: "gigantic"}
HEAD_WIDTH = 64
HEADS, EVA_HEADS = {1280: 16, 1408: 16, 1664: 16}, {4096: 32}
"""Of the huge and giant ViTs, whose heads are wider."""

RESNET_KEYS: dict[str, tuple[Any, ...]] = {
    "stem.conv1.weight": (  # detectron2's
        (r"^stem\.", ""),
        (r"^res(\d)\.", lambda match: f"layer{int(match[1]) - 1}."),
        (r"conv(\d)\.norm\.", r"bn\1."),
        (r"shortcut\.norm\.", "downsample.1."),
        (r"shortcut\.weight$", "downsample.0.weight"),
    ),
    "conv1.weight": (),  # torchvision's, and timm's
    "0.weight": (  # of torchvision's children in a row
        (r"^0\.", "conv1."),
        (r"^1\.", "bn1."),
        (r"^([4-7])\.(?=\d)", lambda match: f"layer{int(match[1]) - 3}."),
    ),
}
"""By the first layer, the longest name first: from the keys to timm's."""
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
    """For timm.create_model, in addition to the name."""
    weights: dict[str, Tensor]
    layout: str
    """For people: the kind of network, and where in the file it is."""

    def arguments(self, image_px: int) -> dict[str, Any]:
        """For timm.create_model, in addition to the name: of a ViT for images of that size, or of a
        ConvNet dilated to an output stride of 16."""
        if PATCHES not in self.weights:
            return {"features_only": True, "output_stride": 16}
        return {**self.options, "img_size": image_px, "dynamic_img_size": True, "num_classes": 0}


def recognize(tensors: Mapping[str, Tensor], source: str = "the file") -> Recognized:
    """The network in a file's tensors, which are named by their dotted paths."""
    networks = {}  # the first layer of every network, by prefix
    for name, value in tensors.items():
        firsts = (PATCHES, *TRANSFORMERS, *RESNET_KEYS)
        first = next((each for each in firsts if f".{name}".endswith(f".{each}")), None)
        if first and value.ndim == 4:
            channels, rows, columns = value.shape[1:]
            if channels == 3 and rows == columns and (first not in RESNET_KEYS or rows == 7):
                networks[name.removesuffix(first)] = first
    if not networks:
        keys = ", ".join(list(tensors)[:5]) or "none"
        raise UserError(
            f"{source} contains no ViT or ResNet in a known layout; its first keys: {keys}"
        )
    prefix = _choose(networks, tensors, source)
    own = {key.removeprefix(prefix): x for key, x in tensors.items() if key.startswith(prefix)}
    is_resnet = networks[prefix] in RESNET_KEYS
    kind, needed = ("ResNet", ("layer",)) if is_resnet else ("ViT", VIT_NEEDED)
    try:
        if is_resnet:
            own = _rename(own, *RESNET_KEYS[networks[prefix]])
            architecture, options = _measure_resnet(own), {}
        else:
            own, is_eva = _to_timm(own)
            architecture, options = measure_vit(own, is_eva)
            if "base_encoder" in prefix and options["embed_dim"] == 384:
                options["num_heads"] = 12  # MoCo v3's small ViT is the one with narrower heads
        with torch.device("meta"):
            network = timm.create_model(architecture, num_classes=0, **options)
    except (LookupError, ValueError, ArithmeticError, RuntimeError) as error:
        raise UserError(
            f"{source} contains no plain network ({first_line(error)}): if timm has it, name it, "
            f"timm:NAME@{source}"
        ) from None
    known = network.state_dict().keys()
    weights = {k: x for k, x in own.items() if k in known and not k.endswith(COUNTERS)}
    for name in own:
        if name not in known and name.startswith(needed):
            raise UserError(f"{source} contains a {kind} that is not plain: it has {name}")
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in weights.values()}
    if sum(x.nbytes for x in weights.values()) > sum(x.nbytes() for x in storages.values()):
        raise UserError(f"{source} has expanded tensors that are larger than the file")
    fill(network, weights, source)
    check_finite(weights, source)
    place = f", from {prefix.rstrip('.')}" if prefix else ""
    return Recognized(architecture, options, weights, kind + place)


def check_finite(weights: Mapping[str, Tensor], source: str) -> None:
    broken = [name for name, value in weights.items() if not value.isfinite().all()]
    if broken:
        raise UserError(
            f"{source} contains non-finite weights in {len(broken)} of {len(weights)} "
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
        raise UserError(f"{source} contains several networks ({names}): save only the one you want")
    return best


def _rename(own: Mapping[str, Tensor], *renames: Any) -> dict[str, Tensor]:
    renamed = {}
    for name, value in own.items():
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        renamed[name] = value
    return renamed


def _measure_resnet(own: Mapping[str, Tensor]) -> str:
    names = [name.split(".") for name in own]
    blocks = tuple(len({n[1] for n in names if n[0] == f"layer{i}"}) for i in (1, 2, 3, 4))
    is_deep = "layer1.0.conv3.weight" in own
    if (blocks, is_deep) not in RESNETS:
        raise ValueError(f"a ResNet of {blocks} blocks")
    return RESNETS[blocks, is_deep]


def _to_timm(own: dict[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """A ViT's tensors under timm's names, and whether it is of timm's family Eva."""
    own = _rename(own, *RENAMES)
    if "norm.weight" not in own:
        own = _rename(own, (r"^fc_norm\.", "norm."))
    is_dinov3 = {"cls_token", "reg_token"} <= own.keys() and "pos_embed" not in own
    is_eva = is_dinov3 or any(f"blocks.0.attn.{x}" in own for x in ("q_bias", "q_proj.weight"))
    if is_dinov3:
        own = _rename(own, (r"\.attn\.([qv])\.bias$", r".attn.\1_bias"))
        for name in [name for name in own if name.endswith(".attn.qkv.bias")]:
            queries, _, values = own.pop(name).chunk(3)  # that of the keys is masked
            place = name.removesuffix("qkv.bias")
            own |= {f"{place}q_bias": queries, f"{place}v_bias": values}
        if not any(x.any() for name, x in own.items() if name.endswith(("q_bias", "v_bias"))):
            # The distilled networks have biases that are zero, timm's have none.
            own = {k: x for k, x in own.items() if not k.endswith(("q_bias", "v_bias"))}
    if is_eva:
        # Tables of the rotary positions, which timm computes, and the mask of the keys' biases.
        unused = re.compile(r"rope(?!\.freqs$)|\.bias_mask$")
        own = {name: x for name, x in own.items() if not unused.search(name)}
        bias = r".\1_proj.bias" if "blocks.0.attn.q_proj.weight" in own else r".\1_bias"
        own = _rename(own, (r"\.ls([12])\.gamma$", r".gamma_\1"), (r"\.([qv])_bias$", bias))
    else:
        own = _rename(own, (r"\.gamma_([12])$", r".ls\1.gamma"), ("^register_tokens$", "reg_token"))
        _join(own, ".mlp.fc1.", ".mlp.fc1_g.", ".mlp.fc1_x.")
        rows = own["pos_embed"].shape[1]
        if "reg_token" in own and math.isqrt(rows - 1) ** 2 == rows - 1:
            # DINOv2's class token has a position, timm's has none where there are registers.
            position, own["pos_embed"] = own["pos_embed"].split([1, rows - 1], dim=1)
            own["cls_token"] = own["cls_token"] + position
    if "blocks.0.mlp.fc1_g.weight" not in own:  # transformers names a layer without a gate alike
        own = _rename(own, (r"\.fc1_x\.", ".fc1."))
    _join(own, ".attn.qkv.", ".attn.q.", ".attn.k.", ".attn.v.")
    return own, is_eva


def _join(own: dict[str, Tensor], whole: str, *parts: str) -> None:
    for name in [name for name in own if parts[0] in name]:
        pieces = [own.pop(name.replace(parts[0], part)) for part in parts]
        own[name.replace(parts[0], whole)] = torch.cat(pieces)


def measure_vit(own: dict[str, Tensor], is_eva: bool) -> tuple[str, dict[str, Any]]:
    """timm's name and options, from the names and shapes of timm."""
    block = {n.removeprefix("blocks.0."): x for n, x in own.items() if n.startswith("blocks.0.")}
    width, _, _, patch_px = own[PATCHES].shape
    if width % HEAD_WIDTH:
        raise ValueError(f"its width of {width} is not a multiple of {HEAD_WIDTH}, a head's")
    hidden = block["mlp.fc2.weight"].shape[1]
    is_split = "mlp.fc1_g.weight" in block
    is_packed = not is_split and block["mlp.fc1.weight"].shape[0] == 2 * hidden
    neurons = 2 * hidden if is_packed and not is_eva else hidden
    has_class = "cls_token" in own
    registers = own["reg_token"].shape[1] if "reg_token" in own else 0
    options: dict[str, Any] = {
        "patch_size": patch_px,
        "embed_dim": width,
        "depth": len({name.split(".")[1] for name in own if name.startswith("blocks.")}),
        # It leaves no trace in the shapes.
        "num_heads": (EVA_HEADS if is_eva else HEADS).get(width, width // HEAD_WIDTH),
        # Half a neuron more, since timm rounds width × ratio down.
        "mlp_ratio": neurons / width if neurons % width == 0 else (neurons + 0.5) / width,
        "init_values": 1e-5 if {"ls1.gamma", "gamma_1"} & block.keys() else None,
        "class_token": has_class,
        "global_pool": "token" if has_class else "avg",
    }
    if is_eva:
        options |= {
            "num_reg_tokens": registers,
            "qkv_fused": "attn.qkv.weight" in block,
            "qkv_bias": bool({"attn.q_bias", "attn.q_proj.bias"} & block.keys()),
            "swiglu_mlp": is_packed or is_split,
            "swiglu_align_to": int(is_split),
            "scale_mlp": "mlp.norm.weight" in block,
            "scale_attn_inner": "attn.norm.weight" in block,
        }
    else:
        options |= {
            "qkv_bias": "attn.qkv.bias" in block,
            "reg_tokens": registers,
            "final_norm": "norm.weight" in own,
            "fc_norm": False,
        }
    size = VIT_SIZES.get(width, "base")
    if is_eva and "pos_embed" not in own:
        size = "7b" if width == 4096 else size + "_plus" * options["swiglu_mlp"]
        name = f"vit_{size}_patch16_dinov3" + "_qkvb" * options["qkv_bias"]
        return name if timm.is_model(name) else "vit_base_patch16_dinov3", options
    if is_eva and not options["swiglu_mlp"]:
        raise ValueError("timm's Eva family, but neither DINOv3 nor EVA-02")
    rows = own["pos_embed"].shape[1]
    # Does the position embedding have rows for the tokens before the patches?
    fits = [
        count
        for count in (0, has_class + registers)
        if math.isqrt(rows - count) ** 2 == rows - count
    ]
    if not fits:
        raise ValueError(f"{rows} position embeddings are not a square grid of patches")
    options["img_size"] = math.isqrt(rows - fits[0]) * patch_px
    if is_eva:
        return f"eva02_{size}_patch14_224", options
    options["no_embed_class"] = fits[0] == 0 and has_class + registers > 0
    usual_px = 14 if width >= 1280 else 16
    name = f"vit_{size}_patch{usual_px}_224"
    if options["init_values"] and options["no_embed_class"] and not registers:
        name = f"deit3_{size}_patch{usual_px}_224"
    elif options["init_values"] or is_packed:
        size = "giant" if is_packed else size
        name = f"vit_{size}_patch14_{'reg4_' * (registers > 0)}dinov2"
    return name if timm.is_model(name) else "vit_base_patch16_224", options


def fill(network: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load weights in timm's layout, also into a run's backbone; a ViT's position embedding is
    resampled to its grid."""
    network = getattr(network, "vit", network)
    try:
        if isinstance(network, Vit) and network.pos_embed is not None and "pos_embed" in weights:
            prefix = 0 if network.no_embed_class else network.num_prefix_tokens
            positions = resample_abs_pos_embed(
                weights["pos_embed"].float(), list(network.patch_embed.grid_size), None, prefix
            )
            weights = {**weights, "pos_embed": positions}
        is_meta = any(parameter.is_meta for parameter in network.parameters())
        network.load_state_dict(weights, assign=is_meta)
    except (RuntimeError, LookupError) as error:
        lines = str(error).splitlines()
        reason = "; ".join(one_line(line)[:200] for line in lines[1:4] or lines)
        raise UserError(f"{source} does not fit: {reason}") from None
