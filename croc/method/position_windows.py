"""Positions of a random window of the grid, one for each view.

With those of the whole grid a token knows where in its view it lies. Where crops share most of an
image, a cluster's row in one view foretells its row in the other, and no content is needed.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from croc.method.randomness import uniform

WHOLE = (1.0, 1.0)
"""The sides of windows that are the grid itself."""


def draw_windows(
    keys: Int64[Tensor, "B"], purpose: str, views: int, sides: tuple[float, float]
) -> Float[Tensor, "b 2 2"]:
    """For the M·B views, rows and then columns: where the window begins, and its side; in grids."""
    draws = uniform(keys, purpose, views, 2, 2).transpose(0, 1).flatten(0, 1)
    least, most = sides
    side = least + (most - least) * draws[..., 0]
    return torch.stack([(1 - side) * draws[..., 1], side], dim=-1)


def positions_of(
    windows: Float[Tensor, "b 2 2"], grid: Float[Tensor, "g h D"], rows: int, columns: int
) -> Float[Tensor, "b n D"]:
    """`rows` × `columns` places spread over each window, linear between those of the grid."""
    down = _shares(windows[:, 0], rows, grid.shape[0])
    across = _shares(windows[:, 1], columns, grid.shape[1])
    return torch.einsum("brg,ghd,bch->brcd", down, grid, across).flatten(1, 2)


def _shares(axis: Float[Tensor, "b 2"], count: int, length: int) -> Float[Tensor, "b n g"]:
    """What each of the grid's places has in each of the window's, whose middles lie between two."""
    middles = (torch.arange(count, device=axis.device) + 0.5) / count
    places = (axis[:, :1] + axis[:, 1:] * middles) * length - 0.5
    distances = places.clamp(0, length - 1)[..., None] - torch.arange(length, device=axis.device)
    return (1 - distances.abs()).clamp_min(0)
