"""`croc export --to transformers`: the class, the names of the weights and config.json.

The names are those of the published files, which every version of transformers reads.
"""

from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers.mlp import GluMlp, SwiGLU
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from croc.errors import UserError
from croc.io import write_json
from croc.method.photometric import IMAGENET_MEAN, IMAGENET_STD
from croc.weights.checksum import save_sealed
from croc.weights.layouts import measure_vit
from croc.weights.record import RunRecord

Names = dict[str, tuple[str, ...]]
"""From the name of a layer or parameter in timm, within its block, to that in transformers: three
names for the layer of queries, keys and values. `blocks` is the list of blocks."""
VIT: Names = {
    "cls_token": ("embeddings.cls_token",),
    "pos_embed": ("embeddings.position_embeddings",),
    "patch_embed.proj": ("embeddings.patch_embeddings.projection",),
    "norm": ("layernorm",),
    "blocks": ("encoder.layer",),
    "norm1": ("layernorm_before",),
    "attn.qkv": tuple(f"attention.attention.{x}" for x in ("query", "key", "value")),
    "attn.proj": ("attention.output.dense",),
    "norm2": ("layernorm_after",),
    "mlp.fc1": ("intermediate.dense",),
    "mlp.fc2": ("output.dense",),
}
DINOV2: Names = {
    **VIT,
    "reg_token": ("embeddings.register_tokens",),
    "norm1": ("norm1",),
    "norm2": ("norm2",),
    "ls1.gamma": ("layer_scale1.lambda1",),
    "ls2.gamma": ("layer_scale2.lambda1",),
    "mlp.fc1": ("mlp.fc1",),
    "mlp.fc2": ("mlp.fc2",),
}
DINOV2_GATED: Names = {**DINOV2, "mlp.fc1": ("mlp.weights_in",), "mlp.fc2": ("mlp.weights_out",)}
DINOV3: Names = {
    "cls_token": ("embeddings.cls_token",),
    "reg_token": ("embeddings.register_tokens",),
    "patch_embed.proj": ("embeddings.patch_embeddings",),
    "norm": ("norm",),
    "blocks": ("layer",),
    "norm1": ("norm1",),
    "attn.qkv": tuple(f"attention.{x}_proj" for x in "qkv"),
    "attn.q_bias": ("attention.q_proj.bias",),
    "attn.v_bias": ("attention.v_proj.bias",),
    "attn.proj": ("attention.o_proj",),
    "gamma_1": ("layer_scale1.lambda1",),
    "norm2": ("norm2",),
    "mlp.fc1": ("mlp.up_proj",),
    "mlp.fc1_g": ("mlp.gate_proj",),
    "mlp.fc1_x": ("mlp.up_proj",),
    "mlp.fc2": ("mlp.down_proj",),
    "gamma_2": ("layer_scale2.lambda1",),
}


def write_transformers(folder: Path, record: RunRecord, weights: dict[str, Tensor]) -> str:
    """As the library transformers saves its own models; returns the class."""
    vit: Any = record.timm_model.build()
    renamed, config = convert(vit, weights, record.model)
    save_sealed(renamed, folder / "model.safetensors", {"format": "pt"})
    write_json(folder / "config.json", config)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": record.image_px, "width": record.image_px},
        "resample": 3,  # Pillow's number of bicubic
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(IMAGENET_MEAN),
        "image_std": list(IMAGENET_STD),
    }
    write_json(folder / "preprocessor_config.json", processor)
    return config["architectures"][0]


def convert(
    vit: VisionTransformer | Eva, weights: dict[str, Tensor], model: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A ViT's weights under transformers' names, and config.json; refused if no class computes what
    the network does. Error messages call the network `model`."""
    try:
        names, config = _find_class(vit, weights["cls_token"].dtype)
        renamed = {}
        for name, value in weights.items():
            prefix, inner = "", name
            if name.startswith("blocks."):
                _, number, inner = name.split(".", 2)
                prefix = f"{names['blocks'][0]}.{number}."
            # The name of a parameter, or of a layer and its weight or bias.
            layer, dot, kind = (inner, "", "") if inner in names else inner.rpartition(".")
            parts = names[layer]
            for part, chunk in zip(parts, value.chunk(len(parts))):
                renamed[f"{prefix}{part}{dot}{kind}"] = chunk.contiguous()
    except (LookupError, ValueError, AttributeError):
        raise UserError(
            f"{model} has no equivalent in transformers (supported: ViTModel, Dinov2Model, "
            "Dinov2WithRegistersModel, DINOv3ViTModel): pass --to timm or onnx"
        ) from None
    cls = renamed["embeddings.cls_token"]
    if names is not VIT:  # for masked images: transformers' models have one
        renamed["embeddings.mask_token"] = torch.zeros_like(cls if names is DINOV3 else cls[0])
    if "pos_embed" in names and vit.num_prefix_tokens > 1:
        # With registers, CLS has no position in timm, but has one in transformers: zeros.
        positions = renamed["embeddings.position_embeddings"]
        positions = torch.cat([torch.zeros_like(cls), positions], dim=1)
        renamed["embeddings.position_embeddings"] = positions
    return renamed, config


def _find_class(vit: Any, dtype: torch.dtype) -> tuple[Names, dict[str, Any]]:
    """transformers' names and config.json. Raises unless the network has exactly the layers that
    timm makes for the shapes of its tensors; a part that the class lacks has no name."""
    block, is_eva, registers = vit.blocks[0], isinstance(vit, Eva), vit.num_prefix_tokens - 1
    architecture, options = measure_vit(vit.state_dict(), is_eva)
    norm = partial(nn.LayerNorm, eps=block.norm1.eps)
    options |= {"num_heads": block.attn.num_heads, "norm_layer": norm, "num_classes": 0}
    if not is_eva:
        options["no_embed_class"] = registers > 0
    with torch.device("meta"):
        plain: Any = timm.create_model(architecture, dynamic_img_size=True, **options)
    shapes, plain_shapes = (
        {name: x.shape for name, x in network.state_dict().items()} for network in (vit, plain)
    )
    if str(vit) != str(plain) or shapes != plain_shapes or isinstance(vit.norm, nn.Identity):
        raise ValueError("not plain")
    width, hidden, has_bias = vit.embed_dim, block.mlp.fc2.in_features, options["qkv_bias"]
    has_scales, is_gated = bool(options["init_values"]), isinstance(block.mlp, GluMlp | SwiGLU)
    config: dict[str, Any] = {
        "dtype": str(dtype).removeprefix("torch."),
        "hidden_size": width,
        "num_hidden_layers": len(vit.blocks),
        "num_attention_heads": block.attn.num_heads,
        "hidden_act": "gelu",
        "layer_norm_eps": block.norm1.eps,
        "image_size": vit.patch_embed.img_size[0],
        "patch_size": vit.patch_embed.patch_size[0],
        "num_channels": 3,
    }
    if is_eva:
        rope, get_embed = vit.rope, RotaryEmbeddingDinoV3.get_embed
        if type(rope) is not RotaryEmbeddingDinoV3 or not block.attn.rotate_half or not has_scales:
            raise ValueError("not DINOv3")
        plain_rope = RotaryEmbeddingDinoV3(rope.dim, rope.temperature)
        if not torch.equal(get_embed(rope, [2, 3]), get_embed(plain_rope, [2, 3])):
            raise ValueError("not DINOv3's positions")
        kind, names = ("DINOv3ViTModel", "dinov3_vit"), DINOV3
        config |= {
            "hidden_act": "silu" if is_gated else "gelu",
            "intermediate_size": hidden,
            "use_gated_mlp": is_gated,
            "query_bias": has_bias,
            "key_bias": False,
            "value_bias": has_bias,
            "num_register_tokens": registers,
            "rope_theta": rope.temperature,
            "pos_embed_shift": rope.shift_coords,
            "pos_embed_jitter": rope.jitter_coords,
            "pos_embed_rescale": rope.rescale_coords,
        }
    elif has_scales:
        kind, names = ("Dinov2Model", "dinov2"), DINOV2_GATED if is_gated else DINOV2
        # transformers has the ratio alone, and takes two thirds for a gated MLP.
        ratios = {
            (width * ratio * 2 // 3 + 7) // 8 * 8 if is_gated else width * ratio: ratio
            for ratio in range(1, 17)
        }
        config |= {"mlp_ratio": ratios[hidden], "use_swiglu_ffn": is_gated, "qkv_bias": has_bias}
        if registers:
            kind = "Dinov2WithRegistersModel", "dinov2_with_registers"
            config |= {"num_register_tokens": registers}
    else:
        if is_gated:
            raise ValueError("ViTModel has no gates")
        kind, names = ("ViTModel", "vit"), VIT
        config |= {"intermediate_size": hidden, "qkv_bias": has_bias}
    return names, {"architectures": [kind[0]], "model_type": kind[1], **config}
