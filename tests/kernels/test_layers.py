"""Our layers in place of timm's: identical outputs, and only for supported configurations."""

from typing import Any

import pytest
import timm
import torch
from torch import nn

from croc.kernels.layers import LinearGelu, PackedAttention, PatchConv2d, convert, replace_layers

PLAIN = "vit_tiny_patch16_224"


def create(name: str = PLAIN, **options: Any) -> Any:
    torch.manual_seed(0)
    return timm.create_model(name, depth=2, img_size=32, num_classes=0, **options).eval()


@pytest.mark.parametrize(
    ("options", "gelu", "packed"),
    [
        ({}, True, True),
        ({"init_values": 0.1, "reg_tokens": 4}, True, True),
        ({"act_layer": "quick_gelu"}, False, True),
        ({"qk_norm": True}, True, False),
        ({"proj_drop_rate": 0.1}, True, False),
        ({"qkv_bias": False}, True, True),
    ],
)
def test_replaced_layers_give_identical_features(options: dict[str, Any], gelu: bool, packed: bool):
    plain, ours = create(**options), create(**options)
    replace_layers(ours)
    block = ours.blocks[0]
    assert isinstance(block.mlp.fc1, LinearGelu) == gelu
    assert isinstance(block.mlp.act, nn.Identity) == gelu
    assert isinstance(block.attn, PackedAttention) == packed
    assert type(ours.patch_embed.proj) is PatchConv2d
    assert list(ours.state_dict()) == list(plain.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours.forward_features(images), plain.forward_features(images))


def test_patch_embedding_as_matrix_product_equals_convolution():
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 10, kernel_size=(4, 2), stride=(4, 2))
    images = torch.randn(2, 3, 12, 6)
    expected = layer(images)
    assert convert(layer, PatchConv2d)
    assert isinstance(layer, PatchConv2d)
    torch.testing.assert_close(layer.multiply(images), expected)
