"""A ViT's tensors in timm's layout, its measures told by their shapes."""

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from croc.errors import UserError
from croc.weights.files import check_room

PATCHES = "patch_embed.proj.weight"
SIZES = {192: "tiny", 384: "small", 768: "base", 1024: "large", 1280: "huge"}
HEAD_WIDTH = 64
HEADS = {1280: 16, 1408: 16, 1664: 16}
"""Of the huge and giant ViTs, whose heads are wider."""
RENAMED = (
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # DINOv2 trains its blocks in chunks
    (r"^register_tokens$", "reg_token"),
    (r"\.gamma_([12])$", r".ls\1.gamma"),
    (r"^fc_norm\.", "norm."),
)
OURS = re.compile(
    r"cls_token|pos_embed|reg_token|patch_embed\.proj\.(weight|bias)|norm\.(weight|bias)|"
    r"blocks\.\d+\.(norm[12]|attn\.(qkv|proj)|mlp\.fc[12])\.(weight|bias)|"
    r"blocks\.\d+\.ls[12]\.gamma"
)
NEEDED = ("blocks.", "patch_embed.", "norm_pre.", "dist_token")
"""What cannot be left out, as heads can, without changing the features."""
Found = tuple[str, dict[str, Any], dict[str, Tensor], list[str]]
"""timm's name, options for it, weights, and which of the file's names they were."""


def read_vit(own: Mapping[str, Tensor], prefix: str, source: str) -> Found:
    """`own` are the names after the network's prefix."""
    weights: dict[str, Tensor] = {}
    used = []
    for name, value in own.items():
        ours = name
        for pattern, replacement in RENAMED:
            ours = re.sub(pattern, replacement, ours)
        if OURS.fullmatch(ours) and (ours == name or ours not in own):
            weights[ours] = value
            used.append(name)
    foreign = [name for name in own if name.startswith(NEEDED) and name not in used]
    if foreign:
        raise UserError(f"{source} holds a ViT that is not plain: it has {', '.join(foreign[:2])}")
    options = _measure(weights, prefix, source)
    check_room(weights)
    if "register_tokens" in own:
        _give_position_to_class_token(weights)
        options["no_embed_class"] = True
    size = SIZES.get(options["embed_dim"], "base")
    return f"vit_{size}_patch16_224", options, weights, used


def _measure(weights: Mapping[str, Tensor], prefix: str, source: str) -> dict[str, Any]:
    """All that a VisionTransformer is made by; the number of heads leaves no trace in shapes."""
    width, _, height_px, width_px = weights[PATCHES].shape
    depth = 1 + max((int(n.split(".")[1]) for n in weights if n.startswith("blocks.")), default=-1)
    if depth > len(weights):  # a number in a key, which costs nothing to make large
        raise UserError(f"{source} has no {depth:,} blocks, though a key of it says so")
    missing = [
        name
        for block in range(max(depth, 1))
        for name in (
            f"blocks.{block}.{layer}.weight"
            for layer in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        )
        if name not in weights
    ]
    if missing or "pos_embed" not in weights or weights["pos_embed"].ndim != 3:
        lacking = ", ".join(missing[:2]) or "pos_embed"
        raise UserError(f"{source} has patches like a ViT's, but is no plain ViT: no {lacking}")
    if not (width and height_px and width_px):
        raise UserError(f"{source}: patches of {height_px}×{width_px} px into {width} numbers")
    if height_px != width_px:
        raise UserError(f"{source}: patches of {height_px}×{width_px} px are not square")
    if width % HEAD_WIDTH:
        raise UserError(f"{source}: a width of {width} is not heads of {HEAD_WIDTH}")
    registers = weights["reg_token"].shape[1] if "reg_token" in weights else 0
    hidden = weights["blocks.0.mlp.fc1.weight"].shape[0]
    tokens, has_class = weights["pos_embed"].shape[1], "cls_token" in weights
    # Whether the position embedding has a row for the tokens before the patches.
    embedded = [count for count in (has_class, 0, has_class + registers) if _square(tokens - count)]
    if not embedded:
        raise UserError(f"{source}: {tokens} position embeddings are no square grid of patches")
    return {
        "patch_size": height_px,
        "embed_dim": width,
        "depth": depth,
        # MoCo v3's small ViT is the one that has narrower heads.
        "num_heads": 12
        if width == 384 and "base_encoder" in prefix
        else HEADS.get(width, width // HEAD_WIDTH),
        # Half a neuron more, since timm rounds width × ratio down.
        "mlp_ratio": hidden / width if hidden % width == 0 else (hidden + 0.5) / width,
        "qkv_bias": "blocks.0.attn.qkv.bias" in weights,
        "init_values": 1e-5 if "blocks.0.ls1.gamma" in weights else None,
        "class_token": has_class,
        "global_pool": "token" if has_class else "avg",
        "reg_tokens": registers,
        "no_embed_class": embedded[0] == 0 and (has_class or registers > 0),
        "final_norm": "norm.weight" in weights,
        "fc_norm": False,
    }


def _give_position_to_class_token(weights: dict[str, Tensor]) -> None:
    """DINOv2 adds positions before it puts registers in; timm gives prefix tokens none."""
    positions = weights["pos_embed"]
    weights["cls_token"] = weights["cls_token"] + positions[:, :1]
    weights["pos_embed"] = positions[:, 1:]


def _square(count: int) -> bool:
    return count > 0 and math.isqrt(count) ** 2 == count
