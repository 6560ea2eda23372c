"""Colors that color-blind readers can tell apart, and clusters painted over photographs."""

import numpy as np
import pytest
import torch

from croc.lab.show.figures import HATCHING, OPACITY, PALETTE, by_size, paint

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
PROTANOPIA = """0.152286 1.052583 -0.204868
0.114503 0.786281 0.099216 -0.003882 -0.048116 1.051998"""
DEUTERANOPIA = """0.367322 0.860646 -0.227968
0.280085 0.672501 0.047413 -0.011820 0.042940 0.968881"""
SRGB_TO_XYZ = """0.4124564 0.3575761 0.1804375
0.2126729 0.7151522 0.0721750 0.0193339 0.1191920 0.9503041"""


def matrix(text: str) -> np.ndarray:
    return np.array(text.split(), float).reshape(3, 3)


VISION = {"normal": np.eye(3)}
VISION |= {"protanopia": matrix(PROTANOPIA), "deuteranopia": matrix(DEUTERANOPIA)}
TO_XYZ = matrix(SRGB_TO_XYZ)


def smallest_difference(srgb: np.ndarray, vision: str) -> float:
    """ΔE (CIE 1976, D65) of the two most similar colors, as the reader sees them."""
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = np.clip(linear @ VISION[vision].T, 0, 1) @ TO_XYZ.T / TO_XYZ.sum(axis=1)
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    x, y, z = f.T
    lab = np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)
    differences = np.linalg.norm(lab[:, None] - lab, axis=-1)
    return float(differences[np.triu_indices(len(lab), 1)].min())


@pytest.mark.parametrize(
    ("vision", "least"), [("normal", 38), ("protanopia", 25), ("deuteranopia", 25)]
)
def test_palette_is_distinguishable(vision: str, least: float):
    ends = np.array([(0.0, 0, 0), (1, 1, 1)])
    assert smallest_difference(ends, vision) == pytest.approx(100, abs=0.1)
    colors = PALETTE.double().numpy()
    assert len(colors) == 12
    assert smallest_difference(colors, vision) > least
    over_gray = OPACITY * colors + (1 - OPACITY) * 0.5
    assert smallest_difference(over_gray, vision) > 18
    assert smallest_difference(over_gray[:8], vision) > 21


GRAY = torch.full((1, 3, 32, 64), 0.5)
BOTH = torch.tensor([True, True])
# The left half of a 4 × 8 grid belongs to cluster 0, the right half to cluster 1.
HALVES = torch.nn.functional.one_hot((torch.arange(32) % 8 >= 4).long(), 2).float()[None]


def painted(
    pixels: torch.Tensor, shares: torch.Tensor, valid: torch.Tensor, numbers: tuple[int, ...]
) -> torch.Tensor:
    (picture,) = paint(pixels, shares, valid, (4, 8), torch.tensor(numbers))
    return torch.from_numpy(picture)


def test_clusters_have_their_colors_and_soft_edges():
    picture = painted(GRAY, HALVES, BOTH, (3, 5))
    assert picture.shape == (160, 320, 3)
    over = OPACITY * PALETTE + (1 - OPACITY) * 0.5
    torch.testing.assert_close(picture[80, 20], over[3])
    torch.testing.assert_close(picture[80, 300], over[5])
    assert picture[80, 120:200].unique(dim=0).shape[0] > 10


def test_colors_mix_in_proportion_to_the_shares():
    shares = torch.tensor([[0.65, 0.35]]).expand(1, 32, -1)
    tint = 0.65 * PALETTE[0] + 0.35 * PALETTE[1]
    for scale in (torch.ones(32, 1), torch.linspace(0.001, 0.1, 32)[:, None]):
        # `released` gives a token's share of its cluster: a row need not sum to 1
        picture = painted(GRAY, scale * shares, BOTH, (0, 1))
        torch.testing.assert_close(picture[80, 100], OPACITY * tint + (1 - OPACITY) * 0.5)


def test_only_pruned_clusters_are_hatched():
    picture = painted(torch.ones(1, 3, 32, 64), HALVES, torch.tensor([True, False]), (0, 1))
    dark = (picture == HATCHING).all(dim=-1)
    assert not dark[:, :155].any()
    assert 0.1 < dark[:, 165:].float().mean() < 0.4


def test_largest_cluster_has_the_first_color():
    labels = torch.tensor([[2, 2, 0, 1], [2, 0, 2, 2]])
    assert by_size(torch.nn.functional.one_hot(labels, 4).float()).tolist() == [1, 2, 0, 3]
