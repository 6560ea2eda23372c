"""Backbones of all families against timm; keyed stochastic depth; windows against SciPy."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from scipy.ndimage import map_coordinates
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3, apply_rot_embed_cat

from croc.config import ModelConfig
from croc.method.backbone import Backbone
from croc.method.position_windows import (
    draw_rotary_windows,
    draw_windows,
    learned_positions,
    rotary_positions,
)
from croc.method.randomness import sample_key
from croc.train.loop import pretrain
from tests.tiny import tiny_mae


def make(name: str = "vit_tiny_patch16_224", view_px: int = 32, **changes) -> Backbone:
    torch.manual_seed(0)
    return Backbone(ModelConfig(name=name, depth=2), view_px, **changes).eval()


@torch.no_grad()
def test_last_is_one_head_of_full_width_at_any_image_size():
    tokens = make().forward_tokens(torch.randn(2, 3, 3, 64, 96), "last")
    assert tokens.patches.shape == (2, 3, 24, 192)
    assert torch.equal(tokens.heads[:, :, 0], tokens.patches)
    assert torch.equal(tokens.cls_heads[:, :, 0], tokens.cls)
    torch.testing.assert_close(tokens.attention.sum(-1), torch.ones(2, 3, 1))


def test_drop_path_is_keyed_by_sample():
    backbone = make(drop_path=0.5).train()
    pixels = torch.randn(2, 4, 3, 32, 32)
    keys = torch.tensor([sample_key(0, 0, index) for index in range(4)])
    whole, _ = backbone(pixels, keys)
    part, _ = backbone(pixels[:, 2:], keys[2:])
    torch.testing.assert_close(whole[:, 2:], part)
    other, _ = backbone(pixels, keys + 1)
    assert not torch.allclose(whole, other)
    without_keys, _ = backbone(pixels)
    torch.testing.assert_close(without_keys, backbone.eval()(pixels)[0])


KEYS = torch.arange(64)
PLAIN = ModelConfig("vit_tiny_patch16_224", depth=2, drop_path=0.0)
WINDOWED = replace(PLAIN, position_window=(0.3, 0.9))


def test_learned_positions_are_interpolated_like_scipy():
    grid = torch.randn(6, 5, 2, dtype=torch.float64)
    windows = draw_windows(KEYS[:7], "any", 2, (0.2, 0.9)).double()
    ours = learned_positions(windows, grid, 4, 9).unflatten(1, (4, 9))
    for window, embeddings in zip(windows.numpy(), ours):
        (top, height), (left, width) = window
        y = (top + height * (np.arange(4) + 0.5) / 4) * 6 - 0.5
        x = (left + width * (np.arange(9) + 0.5) / 9) * 5 - 0.5
        points = np.meshgrid(y, x, indexing="ij")
        for channel in range(2):
            values = grid[..., channel].numpy()
            expected = map_coordinates(values, points, order=1, mode="nearest")
            np.testing.assert_allclose(embeddings[..., channel].numpy(), expected, atol=1e-6)


def test_windows_are_inside_the_grid_with_sides_in_range():
    start, side = draw_windows(torch.arange(4000), "any", 2, (0.3, 0.9)).unbind(dim=-1)
    assert torch.equal(start[10:14], draw_windows(KEYS[10:14], "any", 1, (0.3, 0.9))[..., 0])
    assert start.min() >= 0
    assert (start + side).max() <= 1
    assert [float(side.min()), float(side.max())] == pytest.approx([0.3, 0.9], abs=0.01)
    assert side.mean(dim=0).tolist() == pytest.approx([0.6, 0.6], abs=0.01)
    assert abs(np.corrcoef(side.T.numpy())[0, 1]) < 0.05  # rows and columns are independent


def test_windows_need_keys_and_differ_between_teacher_and_student():
    torch.manual_seed(0)
    windowed, plain = Backbone(WINDOWED, 64).eval(), Backbone(PLAIN, 64).eval()
    plain.load_state_dict(windowed.state_dict())
    pixels = torch.randn(2, 3, 3, 64, 64)
    with torch.no_grad():
        expected, without_keys, keyed = (
            network(pixels, *keys)[1]
            for network, keys in ((plain, ()), (windowed, ()), (windowed, (KEYS[:3],)))
        )
        assert torch.equal(plain(pixels, KEYS[:3])[1], expected)
        teacher = windowed.forward_tokens(pixels, "values", KEYS[:3]).patches
        student = windowed.train()(pixels, KEYS[:3])[1]
    assert torch.equal(without_keys, expected)
    assert not torch.allclose(keyed, expected, atol=1e-3)
    assert torch.equal(keyed, teacher)
    assert not torch.allclose(keyed, student, atol=1e-3)


FAMILIES = {
    "vit_tiny_patch16_224": 32,
    "vit_base_patch16_clip_224": 48,
    "vit_small_patch14_dinov2": 28,
    "vit_small_patch14_reg4_dinov2": 42,
    "vit_small_patch16_dinov3": 48,
    "vit_small_patch16_dinov3_qkvb": 32,  # biases of queries, keys and values
    "vit_small_plus_patch16_dinov3": 32,  # SwiGLU
    "eva02_tiny_patch14_224": 28,  # learned and rotary positions; separate projections
    "vit_small_patch16_rope_224": 32,
    "vit_small_patch16_rope_mixed_ape_224": 48,  # separate rotations for each block and head
}
ROTARY = [name for name in FAMILIES if "dinov3" in name or "rope" in name or "eva02" in name]


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize(("name", "view_px"), FAMILIES.items())
@torch.no_grad()
def test_tokens_heads_and_attention_equal_timm(name: str, view_px: int, larger: bool, monkeypatch):
    backbone = make(name, view_px)
    vit: Any = backbone.vit
    height, width = (2 * view_px, view_px) if larger else (view_px, view_px)
    pixels = torch.randn(2, 2, 3, height, width)
    tokens = {kind: backbone.forward_tokens(pixels, kind) for kind in ("queries", "keys", "values")}
    calls, attend = [], F.scaled_dot_product_attention

    def record(*tensors: Any, **options: Any) -> Any:
        calls.append(tensors)
        return attend(*tensors, **options)

    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", record)
        expected = vit.forward_features(pixels.flatten(0, 1)).unflatten(0, (2, 2))
    prefix = vit.num_prefix_tokens
    for cls, patches in (backbone(pixels), (tokens["keys"].cls, tokens["keys"].patches)):
        torch.testing.assert_close(cls, expected[:, :, 0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(patches, expected[:, :, prefix:], atol=1e-5, rtol=1e-5)
    queries, keys, values = (x[..., prefix:, :].unflatten(0, (2, 2)) for x in calls[-1][:3])
    rope = getattr(vit, "rope", None)
    if rope is not None:  # ours are from before the rotation
        rotations = rope.get_embed([height // backbone.patch_px, width // backbone.patch_px])
        rotations = rotations[-1] if vit.rope_mixed else rotations
        half = vit.blocks[-1].attn.rotate_half
        for kind, expected_heads in (("queries", queries), ("keys", keys)):
            ours = apply_rot_embed_cat(tokens[kind].heads, rotations, half=half)
            torch.testing.assert_close(ours, expected_heads, atol=1e-5, rtol=1e-5)
    else:
        torch.testing.assert_close(tokens["queries"].heads, queries, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(tokens["keys"].heads, keys, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(tokens["values"].heads, values, atol=1e-5, rtol=1e-5)
    of_cls = calls[-1][0].unflatten(0, (2, 2))[..., 0, :]
    torch.testing.assert_close(tokens["queries"].cls_heads, of_cls, atol=1e-5, rtol=1e-5)
    logits = torch.einsum("mbhd,mbhnd->mbhn", of_cls, keys) / keys.shape[-1] ** 0.5
    attention = tokens["values"].attention
    torch.testing.assert_close(attention, logits.softmax(dim=-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ROTARY)
def test_full_window_has_the_rotations_of_timm(name: str):
    rope: Any = make(name, FAMILIES[name]).vit.rope
    whole = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]).expand(3, 2, 2)
    rotations, expected = rotary_positions(rope, whole, 3, 5), rope.get_embed([3, 5])
    expected = expected[:, None] if expected.ndim == 4 else expected
    torch.testing.assert_close(rotations, expected.expand_as(rotations), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["vit_small_patch16_rope_224", "vit_small_patch16_rope_mixed_224"])
def test_half_window_interpolates_between_rotations_of_timm(name: str):
    """Six rows spread over the lower half of a grid of six, where positions are indices."""
    rope: Any = make(name, 32).vit.rope
    lower = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]])
    ours = rotary_positions(rope, lower, 6, 1)
    indices = 6 * (0.5 + 0.5 * (torch.arange(6) + 0.5) / 6) - 0.5
    for row, index in enumerate(indices.tolist()):
        below, above = math.floor(index), math.ceil(index)  # a quarter away from one of them
        angles = [angle_of(rope.get_embed([8, 1])[..., i, :]) for i in (below, above)]
        between = angles[0] + (index - below) * wrap(angles[1] - angles[0])
        assert wrap(angle_of(ours[..., row, :]).flatten() - between.flatten()).abs().max() < 1e-5


def angle_of(rotations: torch.Tensor) -> torch.Tensor:
    return torch.atan2(*rotations.chunk(2, dim=-1))


def wrap(angle: torch.Tensor) -> torch.Tensor:
    return torch.atan2(angle.sin(), angle.cos())


def test_dinov3_coordinate_augmentation_is_keyed_and_within_bounds():
    rope = RotaryEmbeddingDinoV3(16, shift_coords=0.5, jitter_coords=1.2, rescale_coords=2.0)
    keys = torch.arange(4000)
    windows = draw_rotary_windows(rope, keys, 2)
    part = draw_rotary_windows(rope, keys[7:9], 2)
    assert torch.equal(windows.unflatten(0, (2, -1))[:, 7:9].flatten(0, 1), part)
    start, factor = windows.unbind(dim=-1)
    shift = (2 * start - 1) / factor + 1  # −1 is moved to (−1 + shift) · factor
    assert [float(shift.min()), float(shift.max())] == pytest.approx([-0.5, 0.5], abs=0.01)
    assert [float(factor.min()), float(factor.max())] == pytest.approx([1 / 2.4, 2.4], rel=0.02)
    ratio = factor[:, 0] / factor[:, 1]  # the rescaling is shared by both axes
    assert float(ratio.max()) == pytest.approx(1.44, rel=0.02)
    assert draw_rotary_windows(RotaryEmbeddingDinoV3(16), keys, 2) is None


def test_mae_masks_patches_of_rotary_networks(tmp_path: Path):
    config = tiny_mae(tmp_path / "run", report=False, stop_after_steps=1)
    for name in ("vit_tiny_patch16_dinov3_qkvb", "vit_small_patch16_rope_mixed_224"):
        backbone = make(name, 64)
        pixels, everything = torch.randn(2, 3, 64, 64), torch.arange(16).repeat(2, 1)
        cls, patches = backbone.encode(pixels, everything.flip(1))
        whole_cls, whole = backbone(pixels[None])
        torch.testing.assert_close(cls, whole_cls[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(patches.flip(1), whole[0], atol=1e-5, rtol=1e-5)
    model = replace(config.model, name="vit_tiny_patch16_dinov3_qkvb")
    pretrain(replace(config, model=model), "tiny")


@torch.no_grad()
def test_network_built_at_224_px_equals_timm_at_448_px():
    backbone = make("vit_tiny_patch16_dinov3_qkvb", 224)
    vit: Any = timm.create_model("vit_tiny_patch16_dinov3_qkvb", depth=2, num_classes=0)
    vit.load_state_dict(backbone.vit.state_dict(), strict=False)
    pixels = torch.randn(1, 3, 448, 448)
    _, patches = backbone(pixels[None])
    torch.testing.assert_close(patches[0], vit.eval().forward_features(pixels)[:, 5:])


def test_rotations_of_a_window_equal_the_formula():
    rope = RotaryEmbeddingDinoV3(16)
    windows = draw_windows(torch.arange(3), "any", 1, (0.3, 1.7))
    ours = rotary_positions(rope, windows, 2, 3)[:, 0]
    for window, rotations in zip(windows.tolist(), ours):
        for row in range(2):
            for column in range(3):
                y = 2 * (window[0][0] + window[0][1] * (row + 0.5) / 2) - 1
                x = 2 * (window[1][0] + window[1][1] * (column + 0.5) / 3) - 1
                angles = [
                    2 * math.pi * c / float(period) for c in (y, x) for period in rope.periods
                ]
                expected = torch.tensor([f(a) for f in (math.sin, math.cos) for a in 2 * angles])
                torch.testing.assert_close(rotations[3 * row + column], expected)
