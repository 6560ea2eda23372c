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
from timm.models import eva, vision_transformer
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

# Key fragments that only this project's files have, all of them, and its name; the first fits.
SIGNATURES = (
    (("modules.", "backbone.vit."), "CrOC checkpoint"),
    (("croc_loss.",), "the authors' CrOC full checkpoint"),
    (("centroids_queue_cpu",), "CrIBo full checkpoint"),
    (("dino_loss.",), "DINO full checkpoint"),
    (("ibot_loss.",), "iBOT full checkpoint"),
    (("masked_embed",), "iBOT"),
    (("decoder_pred.", "decoder_embed."), "MAE full checkpoint"),
    (("storage_tokens",), "DINOv3"),
    (("layer_scale1.", "position_embeddings"), "DINOv2 in transformers' keys"),
    (("layer_scale1.", "register_tokens"), "DINOv3 in transformers' keys"),
    (("ls1.gamma", "mask_token"), "DINOv2"),
    (("rope.freqs_cos",), "EVA-02"),
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

TRANSFORMERS_RENAMES = (
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
    (r"\.weights_in\.", ".w12."),
    (r"\.gate_proj\.", ".w1."),
    (r"\.up_proj\.", ".w2."),
    (r"\.(weights_out|down_proj)\.", ".w3."),
)
"""From ViTModel, Dinov2Model, Dinov2WithRegistersModel and DINOv3ViTModel, as published and as in
transformers 5, to the names of DINOv2's authors."""
CHUNKS = (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.")
"""DINOv2 trains its blocks in chunks."""
VIT_NEEDED = ("blocks.", "patch_embed.", "norm_pre.", "norm.", "dist_token", "rope.freqs")
"""Parts that change the features, so that unknown ones cannot be dropped as heads can."""
MLPS = (("fc1", "fc2"), ("fc1_g", "fc2"), ("w12", "w3"), ("w1", "w3"))
"""Names of the first and the last layer; a gated one's two halves are in one tensor or in two."""
VIT_SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge"}
HEAD_WIDTH = 64
HEADS, EVA_HEADS = {1280: 16, 1408: 16, 1664: 16}, {4096: 32}
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
    """For people: whose layout, and which of its networks."""

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
            keys, renames = RESNET_KEYS[networks[prefix]]
            own = _rename(own, *renames)
            architecture, options = _measure_resnet(own, source), {}
        else:
            if networks[prefix] == PATCHES:
                keys, own = "timm's", _rename(own, CHUNKS)
            else:
                is_dinov3 = networks[prefix] == TRANSFORMERS[1]
                keys, own = "transformers'", _from_transformers(own, is_dinov3)
            architecture, options = _measure_vit(own, prefix, source)
        with torch.device("meta"):
            network = timm.create_model(architecture, num_classes=0, **options)
        own = own if is_resnet else _to_timm(own, network)
    except (LookupError, ValueError, ArithmeticError, RuntimeError) as error:
        raise UserError(f"{source} contains no plain network ({first_line(error)})") from None
    known = network.state_dict().keys()
    weights = {k: x for k, x in own.items() if k in known and not k.endswith(COUNTERS)}
    for name in own:
        if name not in known and name.startswith(needed):
            raise UserError(f"{source} contains a {kind} that is not plain: it has {name}")
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in weights.values()}
    if sum(x.nbytes for x in weights.values()) > sum(x.nbytes() for x in storages.values()):
        raise UserError(f"{source} has expanded tensors that are larger than the file")
    fill(network, weights, source, resample=False)
    check_finite(weights, source)
    layout = f"{kind} in {keys} keys"
    for fragments, name in reversed(SIGNATURES):
        if all(any(fragment in key for key in tensors) for fragment in fragments):
            layout = name
    layout += f", from {prefix.rstrip('.')}" if prefix else ""
    return Recognized(architecture, options, weights, layout)


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


def _measure_resnet(own: Mapping[str, Tensor], source: str) -> str:
    names = [name.split(".") for name in own]
    blocks = tuple(len({n[1] for n in names if n[0] == f"layer{i}"}) for i in (1, 2, 3, 4))
    is_deep = "layer1.0.conv3.weight" in own
    if (blocks, is_deep) not in RESNETS:
        raise UserError(f"{source} starts like a ResNet, but has {blocks} blocks")
    return RESNETS[blocks, is_deep]


def _from_transformers(own: Mapping[str, Tensor], is_dinov3: bool) -> dict[str, Tensor]:
    """As the authors of DINOv2 and DINOv3 name and join the tensors."""
    own = _rename(own, *TRANSFORMERS_RENAMES)
    joined: dict[str, tuple[str, ...]] = {".attn.qkv.": (".attn.q.", ".attn.k.", ".attn.v.")}
    if not is_dinov3:
        joined[".w12."] = (".w1.", ".w2.")
    else:  # its keys have no bias, and the layers of most sizes no gate
        own = _rename(own, (r"^register_tokens$", "storage_tokens"))
        queries = [name for name in own if name.endswith(".attn.q.bias")]
        own |= {name.replace(".q.", ".k."): torch.zeros_like(own[name]) for name in queries}
        if "blocks.0.mlp.w1.weight" not in own:
            own = _rename(own, (r"\.w2\.", ".fc1."), (r"\.w3\.", ".fc2."))
    for whole, parts in joined.items():
        for name in [name for name in own if parts[0] in name]:
            pieces = [own.pop(name.replace(parts[0], part)) for part in parts]
            own[name.replace(parts[0], whole)] = torch.cat(pieces)
    return own


def _measure_vit(own: Mapping[str, Tensor], prefix: str, source: str) -> tuple[str, dict[str, Any]]:
    """timm's name and options, from the names and shapes of timm or of the network's authors; the
    number of heads, which leaves no trace in them, is what each family has."""
    parts = {name.removeprefix("blocks.0.") for name in own}

    def has(*names: str) -> bool:
        return not parts.isdisjoint(names)

    width, _, _, patch_px = own[PATCHES].shape
    if width % HEAD_WIDTH:
        raise UserError(
            f"{source}: a width of {width} is not a multiple of {HEAD_WIDTH}, the usual width of a "
            f"head: name its model, timm:NAME@{source}"
        )
    has_class = has("cls_token")
    tokens = ("reg_token", "register_tokens", "storage_tokens")
    registers = sum(own[name].shape[1] for name in tokens if has(name))
    first, last = next((each for each in MLPS if has(f"mlp.{each[0]}.weight")), MLPS[0])
    hidden = own[f"blocks.0.mlp.{last}.weight"].shape[1]
    is_split = first in ("fc1_g", "w1")
    is_packed = own[f"blocks.0.mlp.{first}.weight"].shape[0] == 2 * hidden
    is_dinov3 = has_class and has("reg_token", "storage_tokens") and not has("pos_embed")
    is_eva = is_dinov3 or has("attn.q_bias", "attn.q_proj.weight")
    neurons = 2 * hidden if is_packed and not is_eva else hidden
    # MoCo v3's small ViT is the one that has narrower heads.
    is_moco = width == 384 and "base_encoder" in prefix
    heads = (EVA_HEADS if is_eva else HEADS).get(width, width // HEAD_WIDTH)
    options: dict[str, Any] = {
        "patch_size": patch_px,
        "embed_dim": width,
        "depth": len({name.split(".")[1] for name in own if name.startswith("blocks.")}),
        "num_heads": 12 if is_moco else heads,
        # Half a neuron more, since timm rounds width × ratio down.
        "mlp_ratio": neurons / width if neurons % width == 0 else (neurons + 0.5) / width,
        "init_values": 1e-5 if has("ls1.gamma", "gamma_1") else None,
        "class_token": has_class,
        "global_pool": "token" if has_class else "avg",
    }
    if is_eva:
        biases = [x.chunk(3) for name, x in own.items() if name.endswith(".attn.qkv.bias")]
        options |= {
            "num_reg_tokens": registers,
            "qkv_fused": has("attn.qkv.weight"),
            # DINOv3's distilled networks have biases that are zero, timm's have none.
            "qkv_bias": has("attn.q_bias", "attn.q_proj.bias")
            or any(bool(q.any() or v.any()) for q, _, v in biases),
            "swiglu_mlp": is_packed or is_split,
            "swiglu_align_to": int(is_split),
            "scale_mlp": has("mlp.ffn_ln.weight", "mlp.norm.weight"),
            "scale_attn_inner": has("attn.inner_attn_ln.weight", "attn.norm.weight"),
        }
    size = VIT_SIZES.get(width, "base")
    if is_dinov3:
        size = "7b" if width == 4096 else size + "_plus" * (is_packed or is_split)
        name = f"vit_{size}_patch16_dinov3" + "_qkvb" * options["qkv_bias"]
        return name if timm.is_model(name) else "vit_base_patch16_dinov3", options
    if not has("pos_embed"):
        raise UserError(f"{source} has a patch embedding but is not a plain ViT: no pos_embed")
    # Does the position embedding have rows for the tokens before the patches?
    rows = own["pos_embed"].shape[1]
    prefixes = (1,) if has("register_tokens") else (has_class, 0, has_class + registers)
    fits = [count for count in prefixes if math.isqrt(rows - count) ** 2 == rows - count]
    if not fits:
        raise UserError(f"{source}: {rows} position embeddings are not a square grid of patches")
    options["img_size"] = math.isqrt(rows - fits[0]) * patch_px
    if is_eva:
        if not options["swiglu_mlp"]:
            raise UserError(
                f"{source} contains a ViT of timm's Eva family that is neither DINOv3 nor EVA-02: "
                f"name its model, timm:NAME@{source}"
            )
        return f"eva02_{size}_patch14_224", options
    options |= {
        "qkv_bias": has("attn.qkv.bias"),
        "reg_tokens": registers,
        "no_embed_class": has("register_tokens") or (fits[0] == 0 and has_class + registers > 0),
        "final_norm": has("norm.weight", "fc_norm.weight"),
        "fc_norm": False,
    }
    name = "vit_giant_patch14_dinov2" if is_packed else f"vit_{size}_patch16_224"
    return name if timm.is_model(name) else "vit_base_patch16_224", options


def _to_timm(own: dict[str, Tensor], network: Any) -> dict[str, Tensor]:
    """By timm's own converters of DINOv2, DINOv3 and EVA-02."""
    block: Any = network.blocks[0]
    if isinstance(network, eva.Eva):
        if block.attn.q_bias is None:
            own = {name: x for name, x in own.items() if not name.endswith(".attn.qkv.bias")}
        own = eva.checkpoint_filter_fn(own, network)
    else:
        own = {"mask_token": torch.empty(0), **own}  # by which timm knows DINOv2
        own = vision_transformer.checkpoint_filter_fn(own, network, adapt_layer_scale=True)
    return own if "norm.weight" in own else _rename(own, (r"^fc_norm\.", "norm."))


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
