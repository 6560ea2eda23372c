"""A plain ViT as the library transformers keeps its `ViTModel`, whose names every version reads."""

import re
from typing import Any

from timm.layers.mlp import Mlp
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from croc.errors import UserError
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.weights.page import WeightsPage

BICUBIC = 3  # Pillow's number
OUTSIDE = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj.weight": "embeddings.patch_embeddings.projection.weight",
    "patch_embed.proj.bias": "embeddings.patch_embeddings.projection.bias",
    "norm.weight": "layernorm.weight",
    "norm.bias": "layernorm.bias",
}
IN_BLOCK = {
    "norm1": "layernorm_before",
    "attn.proj": "attention.output.dense",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def check_is_vit_model(vit: VisionTransformer, model: str) -> None:
    """Whether `ViTModel` has all that this network does."""
    found = next((feature for feature, has in _unlike(vit).items() if has), None)
    if found is not None:
        raise UserError(
            f"{model} has {found}, which transformers' ViTModel has not: take --to timm, torchhub, "
            "onnx or safetensors"
        )


def _unlike(vit: Any) -> dict[str, bool]:
    block = vit.blocks[0]
    kinds = (type(block), type(getattr(block, "mlp", None)))
    if kinds != (Block, Mlp):
        return {f"blocks of another kind ({', '.join(kind.__name__ for kind in kinds)})": True}
    attention, mlp = block.attn, block.mlp
    gelu = isinstance(mlp.act, nn.GELU) and mlp.act.approximate == "none"
    norms = (block.norm1, block.norm2, vit.norm)
    return {
        "register tokens": vit.num_reg_tokens > 0,
        "a distillation token": type(vit) is not VisionTransformer,
        "no position for its CLS token": vit.no_embed_class or vit.pos_embed is None,
        "a norm before the blocks": _is_there(vit.norm_pre),
        "a norm of its patches": _is_there(vit.patch_embed.norm),
        "layer scale": _is_there(block.ls1) or _is_there(block.ls2),
        "a norm of queries and keys": _is_there(attention.q_norm) or _is_there(attention.k_norm),
        "a norm within attention": _is_there(attention.norm),
        "a norm within the MLP": _is_there(mlp.norm),
        "no bias after attention": attention.proj.bias is None,
        "another activation than the exact GELU": not gelu,
        "another norm than LayerNorm": not all(isinstance(norm, nn.LayerNorm) for norm in norms),
        "norms of unlike epsilon": len({getattr(norm, "eps", None) for norm in norms}) > 1,
    }


def _is_there(layer: nn.Module) -> bool:
    return not isinstance(layer, nn.Identity)


def vit_model_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Under the names of `ViTModel`, the packed qkv layers in three."""
    renamed: dict[str, Tensor] = {}
    for name, value in weights.items():
        inside = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)
        if inside is None:
            renamed[OUTSIDE[name]] = value
            continue
        number, layer, kind = inside.groups()
        before = f"encoder.layer.{number}"
        if layer != "attn.qkv":
            renamed[f"{before}.{IN_BLOCK[layer]}.{kind}"] = value
            continue
        for part, third in zip(("query", "key", "value"), value.chunk(3)):
            renamed[f"{before}.attention.attention.{part}.{kind}"] = third.contiguous()
    return renamed


def vit_model_config(vit: VisionTransformer, page: WeightsPage, dtype: str) -> dict[str, Any]:
    block: Any = vit.blocks[0]
    return {
        "architectures": ["ViTModel"],
        "model_type": "vit",
        "dtype": dtype,
        "hidden_size": vit.embed_dim,
        "num_hidden_layers": page.depth,
        "num_attention_heads": block.attn.num_heads,
        "intermediate_size": block.mlp.fc1.out_features,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": block.norm1.eps,
        "image_size": page.image_px,
        "patch_size": page.patch_px,
        "num_channels": 3,
        "qkv_bias": block.attn.qkv.bias is not None,
    }


def image_processor_config(page: WeightsPage) -> dict[str, Any]:
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": page.image_px, "width": page.image_px},
        "resample": BICUBIC,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(IMAGENET_MEAN),
        "image_std": list(IMAGENET_STD),
    }
