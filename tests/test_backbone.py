"""The backbone against timm itself, and against attention computed in full."""

import pytest
import torch

from croc.config import ModelConfig
from croc.errors import UserError
from croc.method.backbone import Backbone
from croc.method.randomness import sample_key

MODELS = [
    ("vit_tiny_patch16_224", 32, 16),
    ("vit_small_patch8_224", 24, 8),
    ("vit_small_patch14_dinov2", 28, 14),
    ("vit_small_patch14_reg4_dinov2", 42, 14),
    ("vit_base_patch16_clip_224", 48, 16),
    ("vit_large_patch16_224", 32, 16),
]


def make(name: str = "vit_tiny_patch16_224", view_px: int = 32, **changes) -> Backbone:
    torch.manual_seed(0)
    return Backbone(ModelConfig(name=name, depth=2), view_px, **changes).eval()


@pytest.mark.parametrize(("name", "view_px", "patch_px"), MODELS)
@torch.no_grad()
def test_tokens_are_timms(name: str, view_px: int, patch_px: int):
    backbone = make(name, view_px)
    pixels = torch.randn(2, 3, 3, view_px, view_px)
    cls, patches = backbone(pixels)
    expected = backbone.vit.forward_features(pixels.flatten(0, 1))
    torch.testing.assert_close(cls.flatten(0, 1), expected[:, 0])
    prefix = backbone.vit.num_prefix_tokens
    torch.testing.assert_close(patches.flatten(0, 1), expected[:, prefix:])
    assert backbone.patch_px == patch_px
    assert patches.shape[2] == (view_px // patch_px) ** 2
    tokens = backbone.describe(pixels, "keys")
    torch.testing.assert_close(tokens.cls, cls)
    torch.testing.assert_close(tokens.patches, patches)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2"])
@torch.no_grad()
def test_heads_and_attention_are_those_of_the_last_block(name: str):
    backbone = make(name, 112)
    pixels = torch.randn(2, 2, 3, 112, 112)
    seen = {}
    last = backbone.vit.blocks[-1]
    last.attn.qkv.register_forward_hook(lambda *call: seen.update(qkv=call[2]))
    backbone(pixels)
    heads, prefix = last.attn.num_heads, backbone.vit.num_prefix_tokens
    width = backbone.width // heads
    for place, kind in enumerate(("queries", "keys", "values")):
        part = seen["qkv"][..., place * backbone.width : (place + 1) * backbone.width]
        part = part.reshape(2, 2, -1, heads, width).transpose(2, 3)
        tokens = backbone.describe(pixels, kind)
        torch.testing.assert_close(tokens.heads, part[..., prefix:, :])
        torch.testing.assert_close(tokens.cls_heads, part[..., 0, :])
    queries, keys = (backbone.describe(pixels, kind) for kind in ("queries", "keys"))
    logits = torch.einsum("mbhd,mbhnd->mbhn", queries.cls_heads, keys.heads) / width**0.5
    torch.testing.assert_close(queries.attention, logits.softmax(dim=-1))


@torch.no_grad()
def test_last_is_one_head_of_full_width():
    backbone = make()
    tokens = backbone.describe(torch.randn(2, 3, 3, 32, 32), "last")
    assert torch.equal(tokens.heads[:, :, 0], tokens.patches)
    assert torch.equal(tokens.cls_heads[:, :, 0], tokens.cls)
    assert tokens.attention.shape == (2, 3, 1, 4)
    torch.testing.assert_close(tokens.attention.sum(-1), torch.ones(2, 3, 1))


@torch.no_grad()
def test_other_image_sizes_than_the_views_work():
    backbone = make()
    cls, patches = backbone(torch.randn(1, 2, 3, 64, 96))
    assert patches.shape == (1, 2, 24, 192)
    assert cls.isfinite().all()


def test_drop_path_follows_the_sample():
    backbone = make(drop_path=0.5).train()
    pixels = torch.randn(2, 4, 3, 32, 32)
    keys = torch.tensor([sample_key(0, 0, index) for index in range(4)])
    whole, _ = backbone(pixels, keys)
    part, _ = backbone(pixels[:, 2:], keys[2:])
    torch.testing.assert_close(whole[:, 2:], part)
    other, _ = backbone(pixels, keys + 1)
    assert not torch.allclose(whole, other)
    still, _ = backbone(pixels)
    torch.testing.assert_close(still, backbone.eval()(pixels)[0])


def test_drop_path_keeps_the_mean():
    backbone = make(drop_path=0.5).train()
    keys = torch.tensor([sample_key(0, 0, index) for index in range(4000)])
    backbone._set_drop_paths(2, keys)
    scales = torch.stack([d.scale for d in backbone._drop_paths if d.scale is not None])
    rates = torch.tensor([d.rate for d in backbone._drop_paths])
    assert rates.tolist() == [0.5, 0.5]  # timm gives the first of the two blocks none
    torch.testing.assert_close(scales.mean(dim=1), torch.ones(2), atol=0.06, rtol=0)
    assert torch.equal(scales.unique(), torch.tensor([0.0, 2.0]))
    assert not torch.equal(scales[0, :4000], scales[0, 4000:])  # views draw apart


@pytest.mark.parametrize(
    ("name", "view_px", "said"),
    [
        ("vit_smal_patch16_224", 32, "did you mean vit_small_patch16_224"),
        ("resnet50", 32, "no plain ViT"),
        ("vit_base_patch16_siglip_224", 32, "CLS token"),
        ("vit_tiny_r_s16_p8_224", 32, "no plain ViT"),
        ("eva02_tiny_patch14_224", 28, "no plain ViT"),
        ("vit_tiny_patch16_224", 40, "--views.size-px 32"),
    ],
)
def test_what_cannot_serve_is_said(name: str, view_px: int, said: str):
    with pytest.raises(UserError, match=said):
        make(name, view_px)
