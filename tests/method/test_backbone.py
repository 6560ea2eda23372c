"""Stochastic depth keyed by sample; position windows against SciPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from croc.config import ModelConfig
from croc.method.backbone import Backbone
from croc.method.position_windows import draw_windows, learned_positions
from croc.method.randomness import sample_key


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
