"""Positions of the tokens of a view: a learned grid or rotary angles, and random windows of either.

With the positions of the whole grid, a token knows where in its view it is. If crops share most of
an image, the row of a cluster in one view then predicts its row in the other, without any content.
A random window for each view prevents this.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int64
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3, RotaryEmbeddingMixed
from torch import Tensor

from croc.method.randomness import uniform


def draw_windows(
    keys: Int64[Tensor, "B"], purpose: str, views: int, sides: tuple[float, float]
) -> Float[Tensor, "b 2 2"]:
    """Start and side of the windows of the M·B views, in rows and columns, relative to the grid."""
    draws = uniform(keys, purpose, views, 2, 2).transpose(0, 1).flatten(0, 1)
    least, most = sides
    side = least + (most - least) * draws[..., 0]
    return torch.stack([(1 - side) * draws[..., 1], side], dim=-1)


def draw_rotary_windows(
    rope: Any, keys: Int64[Tensor, "B"], views: int
) -> Float[Tensor, "b 2 2"] | None:
    """DINOv3's augmentation of coordinates in −1 … 1, keyed by the sample, as windows: a shift and
    a factor per axis (jitter), and a factor for both (rescale). None if the network has none."""
    names = ("shift_coords", "jitter_coords", "rescale_coords")
    shift, jitter, rescale = (getattr(rope, name, None) for name in names)
    if shift is None and jitter is None and rescale is None:
        return None
    draws = 2 * uniform(keys, "rotary coordinates", views, 5).transpose(0, 1).flatten(0, 1) - 1
    moved = (shift or 0.0) * draws[:, :2]
    factor = (jitter or 1.0) ** draws[:, 2:4] * (rescale or 1.0) ** draws[:, 4:]
    # (c + moved) · factor, with the coordinate c = 2 · place − 1
    return torch.stack([((moved - 1) * factor + 1) / 2, factor], dim=-1)


def patch_places(
    windows: Float[Tensor, "b 2 2"], rows: int, columns: int
) -> tuple[Float[Tensor, "b rows"], Float[Tensor, "b columns"]]:
    """The centers of `rows` × `columns` patches spread over each window, in units of the grid."""
    middles = [(torch.arange(n, device=windows.device) + 0.5) / n for n in (rows, columns)]
    down, across = (windows[:, i, :1] + windows[:, i, 1:] * x for i, x in enumerate(middles))
    return down, across


def learned_positions(
    windows: Float[Tensor, "b 2 2"], grid: Float[Tensor, "g h D"], rows: int, columns: int
) -> Float[Tensor, "b n D"]:
    """The positions of the patches in each window, interpolated from those of the grid."""
    down, across = patch_places(windows, rows, columns)
    by_row, by_column = _interpolation(down, grid.shape[0]), _interpolation(across, grid.shape[1])
    return torch.einsum("brg,ghd,bch->brcd", by_row, grid, by_column).flatten(1, 2)


def _interpolation(places: Float[Tensor, "b n"], length: int) -> Float[Tensor, "b n g"]:
    """The weight of each of the grid's positions in each of the window's."""
    indices = (places * length - 0.5).clamp(0, length - 1)[..., None]
    return (1 - (indices - torch.arange(length, device=places.device)).abs()).clamp_min(0)


def rotary_positions(
    rope: Any, windows: Float[Tensor, "b 2 2"], rows: int, columns: int
) -> Float[Tensor, "*depth b h n e"]:
    """Sines and cosines that rotate the patches of each window, in timm's layout: for each block
    and head (`mixed`), or one for all (b 1 n e)."""
    down, across = patch_places(windows, rows, columns)
    n = rows * columns
    y = down[:, :, None].expand(-1, -1, columns).reshape(-1, n)
    x = across[:, None].expand(-1, rows, -1).reshape(-1, n)
    if isinstance(rope, RotaryEmbeddingDinoV3):
        offset, least, most = rope.grid_offset, min(rows, columns), max(rows, columns)
        divisors = {"min": (least, least), "max": (most, most), "separate": (rows, columns)}
        height, width = divisors[rope.normalize_coords]
        scaled = [(y * rows + offset) / height, (x * columns + offset) / width]
        places = 2 * torch.stack(scaled, dim=-1) - 1
        periods: Any = rope.periods
        angles = (2 * math.pi * places[..., None] / periods).flatten(-2)
    else:
        first = rope.grid_indexing == "xy"  # timm's first axis is then that of the columns
        indices = [y * rows - 0.5, x * columns - 0.5]
        if isinstance(rope, RotaryEmbeddingMixed):
            axes = reversed(indices) if first else indices
            a, b = (index[:, None, :, None] for index in axes)
            by_a, by_b = rope.freqs.float()[:, :, None, :, None]
            angles = a * by_a + b * by_b
        else:
            indices = [index + rope.grid_offset for index in indices]
            if rope.ref_feat_shape is not None:
                shapes = zip(indices, (rows, columns), rope.ref_feat_shape)
                indices = [index / size * reference for index, size, reference in shapes]
            places = torch.stack(indices[::-1] if first else indices, dim=-1)
            angles = (places[..., None] * rope.bands).flatten(-2)
    half = getattr(rope, "rotate_half", False)
    angles = angles.repeat(*[1] * (angles.ndim - 1), 2) if half else angles.repeat_interleave(2, -1)
    rotations = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return rotations if isinstance(rope, RotaryEmbeddingMixed) else rotations[:, None]
