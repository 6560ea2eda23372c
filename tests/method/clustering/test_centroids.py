"""How soft the assignments are, against loops over tokens and clusters."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from croc.method.clustering.paper import softness

SHAPE = (2, 3, 4, 5)  # views, images, heads, tokens


def naive_softness(assignments: Tensor) -> tuple[Tensor, Tensor]:
    views, images, heads, tokens, _ = assignments.shape
    effective, largest = torch.zeros(2, images, heads, dtype=assignments.dtype)
    for b in range(images):
        for h in range(heads):
            for m in range(views):
                for n in range(tokens):
                    row = assignments[m, b, h, n].tolist()
                    shares = [value / sum(row) for value in row if value > 0]
                    entropy = -sum(p * math.log(p) for p in shares)
                    effective[b, h] += math.exp(entropy) / (views * tokens)
                    largest[b, h] += max(shares) / (views * tokens)
    return effective, largest


def random_assignments(k: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (3 * torch.randn(*SHAPE, k, generator=generator, dtype=torch.float64)).softmax(-1)


def test_softness_equals_the_loops():
    assignments = random_assignments()
    torch.testing.assert_close(softness(assignments), naive_softness(assignments))


@pytest.mark.parametrize("weight", [1.0, 1e-3, 1e-20])
def test_one_entry_per_row_is_one_cluster_with_share_one(weight: float):
    """Rows of `released` have a single entry and do not sum to 1."""
    labels = torch.randint(6, SHAPE, generator=torch.Generator().manual_seed(0))
    for values in softness(weight * F.one_hot(labels, 6).float()):
        torch.testing.assert_close(values, torch.ones(SHAPE[1:3]))


@pytest.mark.parametrize("k", [2, 7])
def test_uniform_rows_are_k_clusters_with_share_one_over_k(k: int):
    assignments = F.pad(torch.full((*SHAPE, k), 1 / k), (0, 12 - k))
    effective, largest = softness(assignments)
    torch.testing.assert_close(effective, torch.full(SHAPE[1:3], float(k)))
    torch.testing.assert_close(largest, torch.full(SHAPE[1:3], 1 / k))
