"""The backbone against timm, its attention against hooks, position windows against SciPy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from croc.config import ModelConfig
from croc.errors import UserError
from croc.method.backbone import Backbone, draw_windows, positions_of
from croc.method.build import build_method
from croc.method.randomness import sample_key
from croc.train.loop import pretrain
from tests.tiny import tiny_config, tiny_dino, tiny_mae

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


KEYS = torch.arange(64)
PLAIN = ModelConfig("vit_tiny_patch16_224", depth=2, drop_path=0.0)
WINDOWED = replace(PLAIN, position_window=(0.3, 0.9))


def test_the_window_of_all_is_the_grid_itself():
    grid = torch.randn(5, 4, 3)
    whole = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    torch.testing.assert_close(positions_of(whole, grid, 5, 4)[0], grid.flatten(0, 1))


def test_places_lie_between_those_of_the_grid_as_scipy_has_it():
    grid = torch.randn(6, 5, 2, dtype=torch.float64)
    windows = draw_windows(KEYS[:7], "any", 2, (0.2, 0.9)).double()
    ours = positions_of(windows, grid, 4, 9).unflatten(1, (4, 9))
    for window, made in zip(windows.numpy(), ours):
        (top, height), (left, width) = window
        y = (top + height * (np.arange(4) + 0.5) / 4) * 6 - 0.5
        x = (left + width * (np.arange(9) + 0.5) / 9) * 5 - 0.5
        places = np.meshgrid(y, x, indexing="ij")
        for channel in range(2):
            values = grid[..., channel].numpy()
            theirs = map_coordinates(values, places, order=1, mode="nearest")
            np.testing.assert_allclose(made[..., channel].numpy(), theirs, atol=1e-6)


def test_windows_lie_within_the_grid_and_have_the_sides_asked_for():
    begin, side = draw_windows(torch.arange(4000), "any", 2, (0.3, 0.9)).unbind(dim=-1)
    assert len(side) == 8000
    assert begin.min() >= 0
    assert (begin + side).max() <= 1
    ends = [float(side.min()), float(side.max())]
    assert ends == pytest.approx([0.3, 0.9], abs=0.01)
    assert side.mean(dim=0).tolist() == pytest.approx([0.6, 0.6], abs=0.01)
    assert abs(np.corrcoef(side.T.numpy())[0, 1]) < 0.05  # rows and columns have their own


def test_a_part_of_a_batch_has_the_windows_it_has_in_the_whole():
    whole = draw_windows(KEYS, "any", 2, (0.3, 0.9)).unflatten(0, (2, -1))
    part = draw_windows(KEYS[10:14], "any", 2, (0.3, 0.9)).unflatten(0, (2, -1))
    assert torch.equal(whole[:, 10:14], part)
    assert not torch.equal(whole[0], whole[1])


@pytest.mark.parametrize("view_px", [64, 32])
def test_a_view_that_is_all_alike_tells_only_positions(view_px: int):
    """Without content, and with a linear grid, tokens must be the window's own places."""
    backbone = Backbone(WINDOWED, 64).train()
    grid = torch.stack(torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij"), -1)
    backbone.vit.pos_embed.data.zero_()
    backbone.vit.pos_embed.data[0, 1:, :2] = grid.flatten(0, 1)
    pixels, count = torch.zeros(2, 8, 3, view_px, view_px), view_px // 16
    with torch.no_grad():
        plain, moved = (backbone._embed_views(pixels, keys) for keys in (None, KEYS[:8]))
    windows = draw_windows(KEYS[:8], "position window of the student", 2, (0.3, 0.9))
    seen = (moved - backbone.vit.patch_embed.proj.bias)[:, 1:, 0].unflatten(1, (count, count))
    middles = (torch.arange(count) + 0.5) / count
    rows = ((windows[:, 0, :1] + windows[:, 0, 1:] * middles) * 4 - 0.5).clamp(0, 3)
    torch.testing.assert_close(seen, rows[..., None].expand_as(seen), atol=1e-5, rtol=1e-5)
    assert torch.equal(plain[:, 0], moved[:, 0])  # CLS


def test_without_keys_or_windows_nothing_changes():
    torch.manual_seed(0)
    windowed, plain = Backbone(WINDOWED, 64).eval(), Backbone(PLAIN, 64).eval()
    plain.load_state_dict(windowed.state_dict())
    pixels = torch.randn(2, 3, 3, 64, 64)
    with torch.no_grad():
        (_, usual), (_, alone), (_, kept) = plain(pixels), windowed(pixels), plain(pixels, KEYS[:3])
        _, moved = windowed(pixels, KEYS[:3])
        taught = windowed.describe(pixels, "values", KEYS[:3]).patches
        other = windowed.train()(pixels, KEYS[:3])[1]
    assert torch.equal(usual, alone)
    assert torch.equal(usual, kept)
    assert not torch.allclose(usual, moved, atol=1e-3)
    assert torch.equal(moved, taught)
    assert not torch.allclose(moved, other, atol=1e-3)  # the student's windows are its own


@pytest.mark.parametrize("tiny", [tiny_config, tiny_dino])
def test_a_run_trains_with_windows(tmp_path: Path, tiny):
    config = tiny(tmp_path / "run", report=False, stop_after_steps=2)
    config = replace(config, model=replace(config.model, position_window=(0.3, 0.9)))
    folder = pretrain(config, "tiny")
    assert '"position_window"' in (folder / "config.json").read_text()


def test_what_cannot_be_is_refused(tmp_path: Path):
    for sides in ((0.0, 1.0), (0.9, 0.3), (0.5, 1.5)):
        with pytest.raises(UserError, match=r"--model\.position-window must rise within 0 … 1"):
            ModelConfig(position_window=sides)
    mae = tiny_mae(tmp_path / "run")
    mae = replace(mae, model=replace(mae.model, position_window=(0.3, 0.9)))
    with pytest.raises(UserError, match=r"--model\.position-window is not for MAE"):
        build_method(mae, torch.device("cpu"), False)
