"""Our layers in the place of timm's: the same numbers, and only where they are the same."""

from typing import Any

import pytest
import timm
import torch
from timm.layers.attention import Attention
from timm.layers.mlp import Mlp
from torch import nn

from croc import kernels
from croc.method.layers import (
    LinearGelu,
    PackedAttention,
    PatchConv2d,
    RecordingLinear,
    replace_in_blocks,
    replace_layers,
    take_over,
)
from croc.train.distributed import BFloat16AsGiven

PLAIN = "vit_tiny_patch16_224"


def create(name: str = PLAIN, **options: Any) -> Any:
    torch.manual_seed(0)
    return timm.create_model(name, depth=2, img_size=32, num_classes=0, **options).eval()


@pytest.mark.parametrize(
    ("options", "gelu", "packed"),
    [
        ({}, True, True),
        ({"init_values": 0.1, "reg_tokens": 4}, True, True),
        ({"act_layer": "gelu_tanh"}, False, True),
        ({"act_layer": "quick_gelu"}, False, True),
        ({"qk_norm": True}, True, False),
        ({"scale_attn_norm": True}, True, False),
        ({"attn_drop_rate": 0.1}, True, False),
        ({"proj_drop_rate": 0.1}, True, False),
        ({"qkv_bias": False}, True, True),
    ],
)
def test_the_same_to_the_last_bit(options: dict[str, Any], gelu: bool, packed: bool):
    plain, ours = create(**options), create(**options)
    replace_layers(ours)
    block = ours.blocks[0]
    assert isinstance(block.mlp.fc1, LinearGelu) == gelu
    assert isinstance(block.mlp.act, nn.Identity) == gelu
    assert isinstance(block.attn, PackedAttention) == packed
    assert isinstance(ours.blocks[-1].attn.qkv, RecordingLinear)
    assert type(ours.patch_embed.proj) is PatchConv2d
    assert list(ours.state_dict()) == list(plain.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours.forward_features(images), plain.forward_features(images))


def test_a_layer_of_another_kind_keeps_its_gelu():
    class Odd(nn.Linear):
        pass

    mlp = Mlp(8, 16)
    mlp.fc1 = Odd(8, 16)
    replace_in_blocks(nn.Sequential(mlp))
    assert type(mlp.fc1) is Odd
    assert isinstance(mlp.act, nn.GELU)
    convolving = Mlp(8, 16, use_conv=True)
    replace_in_blocks(nn.Sequential(convolving))
    assert isinstance(convolving.act, nn.GELU)


def test_the_product_of_patches_is_the_convolution():
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 10, kernel_size=(4, 2), stride=(4, 2))
    images = torch.randn(2, 3, 12, 6)
    expected = layer(images)
    assert take_over(layer, PatchConv2d)
    assert isinstance(layer, PatchConv2d)
    torch.testing.assert_close(layer.multiply(images), expected)


MASK = torch.ones(5, 5).tril().bool()


@pytest.mark.parametrize("asked", [{"attn_mask": MASK}, {"is_causal": True}])
def test_masks_are_left_to_timm(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernels, "serve", lambda x: True)
    attention = Attention(128, num_heads=2)
    x = torch.randn(2, 5, 128)
    expected = attention(x, **asked)
    assert take_over(attention, PackedAttention)
    assert torch.equal(attention(x, **asked), expected)


def test_bfloat16_is_not_widened():
    values = torch.ones(3, dtype=torch.bfloat16)
    assert BFloat16AsGiven("bf16-mixed", "cpu").convert_input(values) is values
