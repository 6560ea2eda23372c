"""Which network a file of weights contains, recognized by keys and shapes alone.

A network is found by its first layer (a ViT's patch embedding, a ResNet's 7×7 convolution). What
precedes that layer's name is the network's prefix, regardless of the wrappers.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from croc.errors import UserError
from croc.method.backbone import Vit
from croc.weights.files import describe_misfit, first_line

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
VIT_PARTS = ("blocks.", "patch_embed.", "norm_pre.", "norm.", "dist_token", "rope.freqs")
"""Parts that change the features: unknown tensors in them cannot be dropped, as heads can."""
SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge"}
SIZES |= {1408: "giant", 1536: "giant", 1664: "gigantic"}
"""timm's names, by width."""
HEAD_WIDTH = 64
HEADS, EVA_HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16}, {4096: 32}
"""Of SigLIP's, huge and giant ViTs, whose heads are wider, by width; if DINOv2's is as wide, its
layers are gated."""

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
MAX_GRID = 256
"""Patches a side: a small file can ask for position embeddings that fill the memory."""
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

    @property
    def arguments(self) -> dict[str, Any]:
        """For timm.create_model, in addition to the name: of a ViT for images of any size, or of a
        ConvNet dilated to an output stride of 16."""
        if PATCHES not in self.weights:
            return {"features_only": True, "output_stride": 16}
        return {**self.options, "dynamic_img_size": True, "num_classes": 0}


def recognize(tensors: Mapping[str, Tensor], source: str = "the file") -> Recognized:
    """The network in a file's tensors, which are named by their dotted paths."""
    layers = (PATCHES, *TRANSFORMERS, *RESNET_KEYS)
    weights, prefix, layer = choose_network(tensors, layers, source)
    if not layer:
        keys = ", ".join(list(tensors)[:5]) or "none"
        raise UserError(
            f"{source} contains no ViT or ResNet in a known layout; its first keys: {keys}"
        )
    is_resnet = layer in RESNET_KEYS
    kind, parts = ("ResNet", ("layer",)) if is_resnet else ("ViT", VIT_PARTS)
    try:
        if is_resnet:
            weights = _rename(weights, *RESNET_KEYS[layer])
            architecture, options = _measure_resnet(weights), {}
        else:
            weights, is_eva = _to_timm(weights)
            architecture, options = measure_vit(weights, is_eva)
            if "base_encoder" in prefix and options["embed_dim"] == 384:
                options["num_heads"] = 12  # MoCo v3's small ViT is the one with narrower heads
        with torch.device("meta"):
            network = timm.create_model(architecture, num_classes=0, **options)
    except (LookupError, ValueError, ArithmeticError, RuntimeError) as error:
        raise UserError(
            f"cannot infer the architecture of {source} ({first_line(error)}): if it is a timm "
            f"model, pass timm:NAME@{source}"
        ) from None
    known = network.state_dict().keys()
    for name in weights:
        if name not in known and name.startswith(parts):
            raise UserError(f"{source} contains a non-standard {kind}: unexpected tensor {name}")
    weights = {k: x for k, x in weights.items() if k in known and not k.endswith(COUNTERS)}
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in weights.values()}
    if sum(x.nbytes for x in weights.values()) > sum(x.nbytes() for x in storages.values()):
        raise UserError(f"{source} has expanded tensors that are larger than the file")
    fill(network, weights, source)
    check_finite(weights, source)
    assumed = "" if is_resnet else f", {options['num_heads']} heads assumed"
    place = f", from {prefix.rstrip('.')}" if prefix else ""
    return Recognized(architecture, options, weights, kind + assumed + place)


def _takes_rgb(weight: Tensor) -> bool:
    """Whether a tensor is a convolution of RGB images with a square kernel."""
    return weight.ndim == 4 and weight.shape[1] == 3 and weight.shape[2] == weight.shape[3]


def check_finite(weights: Mapping[str, Tensor], source: str) -> None:
    broken = [name for name, value in weights.items() if not value.isfinite().all()]
    if broken:
        raise UserError(
            f"{source} contains non-finite weights in {len(broken)} of {len(weights)} "
            f"tensors ({', '.join(broken[:2])}): its training diverged"
        )


def choose_network(
    tensors: Mapping[str, Tensor], layers: Iterable[str], source: str
) -> tuple[dict[str, Tensor], str, str]:
    """The tensors of the network that its project evaluates, without the names around it; these
    names, and its first layer, one of `layers`. All tensors if no network has such a layer."""
    first_layers = {}  # of every network in the file, by its prefix
    for name, value in tensors.items():
        layer = next((layer for layer in layers if f".{name}".endswith(f".{layer}")), None)
        if layer and _takes_rgb(value) and (layer not in RESNET_KEYS or value.shape[2] == 7):
            first_layers[name.removesuffix(layer)] = layer
    if not first_layers:
        return dict(tensors), "", ""
    words = {prefix: set(prefix.split(".")) for prefix in first_layers}
    candidates = [prefix for prefix in words if words[prefix] & AVERAGED] or list(words)
    if {"student", "teacher"} <= set().union(*words.values()):
        preferred = [prefix for prefix in candidates if "teacher" in words[prefix]]
    else:
        preferred = [prefix for prefix in candidates if not words[prefix] & MOMENTUM]
    candidates = preferred or candidates
    # OpenMMLab's "backbone." is the shortest of the names of one network.
    best = min(candidates, key=lambda prefix: prefix.count("."))
    weights = {name.removeprefix(best): x for name, x in tensors.items() if name.startswith(best)}
    rivals = [
        prefix
        for prefix in candidates
        if prefix != best
        and not all(
            torch.equal(tensors[prefix + name].nan_to_num(), value.nan_to_num())
            for name, value in weights.items()
            if prefix + name in tensors
        )
    ]
    if rivals:
        names = ", ".join(prefix.rstrip(".") or "the outermost" for prefix in (best, *rivals))
        raise UserError(f"{source} contains several networks ({names}): save only the one you want")
    return weights, best, first_layers[best]


def _rename(weights: Mapping[str, Tensor], *patterns: Any) -> dict[str, Tensor]:
    renamed = {}
    for name, value in weights.items():
        for pattern, replacement in patterns:
            name = re.sub(pattern, replacement, name)
        renamed[name] = value
    return renamed


def _measure_resnet(weights: Mapping[str, Tensor]) -> str:
    names = [name.split(".") for name in weights]
    blocks = tuple(len({n[1] for n in names if n[0] == f"layer{i}"}) for i in (1, 2, 3, 4))
    has_bottlenecks = "layer1.0.conv3.weight" in weights
    if (blocks, has_bottlenecks) not in RESNETS:
        raise ValueError(f"a ResNet of {blocks} blocks")
    return RESNETS[blocks, has_bottlenecks]


def _to_timm(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """A ViT's tensors under timm's names, and whether it is of timm's family Eva."""
    weights = _rename(weights, *RENAMES)
    if "norm.weight" not in weights:
        weights = _rename(weights, (r"^fc_norm\.", "norm."))
    is_dinov3 = {"cls_token", "reg_token"} <= weights.keys() and "pos_embed" not in weights
    eva_names = {"blocks.0.attn.q_bias", "blocks.0.attn.q_proj.weight"}
    is_eva = is_dinov3 or not eva_names.isdisjoint(weights)
    if is_dinov3:
        weights = _split_biases(weights)
    if is_eva:
        # Tables of the rotary positions, which timm computes, and the mask of the keys' biases.
        unused = re.compile(r"rope(?!\.freqs$)|\.bias_mask$")
        weights = {name: x for name, x in weights.items() if not unused.search(name)}
        bias = r".\1_proj.bias" if "blocks.0.attn.q_proj.weight" in weights else r".\1_bias"
        weights = _rename(weights, (r"\.ls([12])\.gamma$", r".gamma_\1"), (r"\.([qv])_bias$", bias))
    else:
        weights = _rename(
            weights, (r"\.gamma_([12])$", r".ls\1.gamma"), (r"^register_tokens$", "reg_token")
        )
        _join(weights, ".mlp.fc1.", ".mlp.fc1_g.", ".mlp.fc1_x.")
        rows = weights["pos_embed"].shape[1]
        if "reg_token" in weights and _is_square(rows - 1):
            # DINOv2's class token has a position, timm's has none where there are registers.
            position, weights["pos_embed"] = weights["pos_embed"].split([1, rows - 1], dim=1)
            weights["cls_token"] = weights["cls_token"] + position
    if "blocks.0.mlp.fc1_g.weight" not in weights:
        # transformers calls this layer up_proj with and without a gate.
        weights = _rename(weights, (r"\.fc1_x\.", ".fc1."))
    _join(weights, ".attn.qkv.", ".attn.q.", ".attn.k.", ".attn.v.")
    return weights, is_eva


def _split_biases(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """DINOv3's biases of queries, keys and values, as timm has them: keys have none, and if all are
    zero, as in the distilled networks, there are none at all."""
    weights = _rename(weights, (r"\.attn\.([qv])\.bias$", r".attn.\1_bias"))
    for name in [name for name in weights if name.endswith(".attn.qkv.bias")]:
        query, _, value = weights.pop(name).chunk(3)  # that of the keys is masked
        layer = name.removesuffix("qkv.bias")
        weights |= {f"{layer}q_bias": query, f"{layer}v_bias": value}
    biases = [name for name in weights if name.endswith(("q_bias", "v_bias"))]
    if any(weights[name].any() for name in biases):
        return weights
    return {name: x for name, x in weights.items() if name not in biases}


def _join(weights: dict[str, Tensor], joined: str, *parts: str) -> None:
    """Replace layers that timm has as one, such as queries, keys and values, in place."""
    for name in [name for name in weights if parts[0] in name]:
        tensors = [weights.pop(name.replace(parts[0], part)) for part in parts]
        weights[name.replace(parts[0], joined)] = torch.cat(tensors)


def _is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number


def measure_vit(weights: Mapping[str, Tensor], is_eva: bool) -> tuple[str, dict[str, Any]]:
    """A model of timm, and the options that make it the ViT with these tensors, which have timm's
    names. All options but the number of heads follow from the names and shapes."""
    block = {
        name.removeprefix("blocks.0."): value
        for name, value in weights.items()
        if name.startswith("blocks.0.")
    }
    width, _, _, patch_px = weights[PATCHES].shape
    if width % HEAD_WIDTH:
        raise ValueError(f"its width of {width} is not a multiple of {HEAD_WIDTH}, a head's")
    has_class = "cls_token" in weights
    registers = weights["reg_token"].shape[1] if "reg_token" in weights else 0
    # A gated MLP has two first layers: apart, or packed into one of twice as many rows.
    hidden = block["mlp.fc2.weight"].shape[1]
    is_split = "mlp.fc1_g.weight" in block
    is_packed = not is_split and block["mlp.fc1.weight"].shape[0] == 2 * hidden
    rows = 2 * hidden if is_packed and not is_eva else hidden  # what timm calls the MLP's width
    wide = EVA_HEADS if is_eva else {} if is_packed else HEADS
    options: dict[str, Any] = {
        "patch_size": patch_px,
        "embed_dim": width,
        "depth": len({name.split(".")[1] for name in weights if name.startswith("blocks.")}),
        "num_heads": wide.get(width, width // HEAD_WIDTH),
        # Half a row more, since timm rounds width × ratio down.
        "mlp_ratio": rows / width if rows % width == 0 else (rows + 0.5) / width,
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
            "final_norm": "norm.weight" in weights,
            "fc_norm": False,
        }

    if "pos_embed" in weights or not is_eva:
        # Besides the patches, the class token and the registers may have positions.
        positions, prefix = weights["pos_embed"].shape[1], has_class + registers
        if _is_square(positions):
            patches = positions
        elif _is_square(positions - prefix):
            patches = positions - prefix
        else:
            raise ValueError(f"{positions} position embeddings are not a square grid of patches")
        options["img_size"] = math.isqrt(patches) * patch_px
        if not is_eva:
            options["no_embed_class"] = patches == positions and prefix > 0
    return _nearest_model(options, is_eva, is_packed), options


def _nearest_model(options: dict[str, Any], is_eva: bool, is_packed: bool) -> str:
    """The model of timm that has what leaves no trace in shapes: the activation, the epsilon of the
    norms, the kind of rotary positions."""
    width = options["embed_dim"]
    size = SIZES.get(width, "base")
    if is_eva and "img_size" not in options:
        size = "7b" if width == 4096 else size + "_plus" * options["swiglu_mlp"]
        name = f"vit_{size}_patch16_dinov3" + "_qkvb" * options["qkv_bias"]
        return name if timm.is_model(name) else "vit_base_patch16_dinov3"
    if is_eva:
        if not options["swiglu_mlp"]:
            raise ValueError("timm's Eva family, but neither DINOv3 nor EVA-02")
        return f"eva02_{size}_patch14_224"
    patch_px = 14 if width >= 1280 else 16
    if options["init_values"] and options["no_embed_class"] and not options["reg_tokens"]:
        name = f"deit3_{size}_patch{patch_px}_224"
    elif options["init_values"] or is_packed:
        size = "giant" if is_packed else size
        name = f"vit_{size}_patch14_{'reg4_' * (options['reg_tokens'] > 0)}dinov2"
    else:
        name = f"vit_{size}_patch{patch_px}_224"
    return name if timm.is_model(name) else "vit_base_patch16_224"


def fill(network: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load weights in timm's layout into a network of timm or a run's backbone; the position
    embedding of a ViT is resampled to its grid."""
    network = getattr(network, "vit", network)
    try:
        if isinstance(network, Vit) and network.pos_embed is not None and "pos_embed" in weights:
            prefix, grid = network.num_prefix_tokens, list(network.patch_embed.grid_size)
            if max(grid) > MAX_GRID:
                raise UserError(f"{source} has {grid} patches: at most {MAX_GRID} a side")
            positions = resample_abs_pos_embed(
                weights["pos_embed"].float(), grid, None, 0 if network.no_embed_class else prefix
            )
            weights = {**weights, "pos_embed": positions}
        is_meta = any(parameter.is_meta for parameter in network.parameters())
        network.load_state_dict(weights, assign=is_meta)
    except (RuntimeError, LookupError) as error:
        raise UserError(f"{source} does not fit: {describe_misfit(error)}") from None
