"""Clusters painted over photographs."""

import torch

from croc.lab.show.figures import HATCHING, OPACITY, PALETTE, by_size, paint

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
