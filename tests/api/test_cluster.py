"""`croc.cluster`: the method's own clustering, its input checked."""

from typing import Any

import numpy as np
import pytest
import torch

import croc
from croc.method import clustering
from tests.api.refusals import refused

SEEDS = torch.arange(12).expand(2, 3, 12)
LAST = torch.tensor([31])


class TestCluster:
    tokens, positions = torch.randn(2, 3, 32, 4), torch.rand(2, 32, 2)
    saliency = torch.full((2, 3, 32), 1 / 32)

    def test_is_the_clustering(self):
        config = croc.ClusterConfig(k_start=5)
        given = (self.tokens, self.positions, self.saliency, config)
        found = croc.cluster(*given)
        expected = clustering.cluster(*given, keys=torch.arange(2))
        assert isinstance(found, croc.Clusters)
        assert torch.equal(found.assignments, expected.assignments)
        assert torch.equal(found.valid, expected.valid)
        other = croc.cluster(*given, keys=torch.tensor([7, 8]))
        assert not torch.equal(found.assignments, other.assignments)

    def test_of_one_view(self):
        found = croc.cluster(self.tokens, self.positions, self.saliency, views=1)
        assert found.assignments.shape == (1, 2, 3, 32, 12)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
    def test_takes_shares_that_are_rounded(self, dtype: torch.dtype):
        tokens, positions, saliency = (
            values.to(dtype) for values in (self.tokens, self.positions, torch.rand(2, 3, 32))
        )
        saliency = (saliency / saliency.sum(dim=-1, keepdim=True)).to(dtype)
        assert croc.cluster(tokens, positions, saliency).count.shape == (2, 3)

    def test_takes_seeds(self):
        seeds = torch.stack([torch.randperm(32)[:12] for _ in range(6)]).view(2, 3, 12)
        given = (self.tokens, self.positions, self.saliency)
        found = croc.cluster(*given, seeds=seeds)
        expected = clustering.cluster(*given, croc.ClusterConfig(), seeds=seeds)
        assert torch.equal(found.assignments, expected.assignments)
        assert torch.equal(croc.cluster(*given, seeds=seeds.int()).cost, found.cost)

    def test_of_the_released_variant_takes_cosines(self):
        config = croc.ClusterConfig(variant="released")
        cosines = torch.rand(2, 3, 32) * 2 - 1
        assert croc.cluster(self.tokens, self.positions, cosines, config).count.min() >= 2
        given = (self.tokens, self.positions, cosines * torch.inf, config)
        refused("saliency must be finite", croc.cluster, *given)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"views": 3}, "32 tokens cannot come from 3 views"),
            ({"views": 0}, "from 0 views"),
            ({"tokens": torch.rand(2, 32, 4)}, "images × heads × tokens × width, not 2 × 32 × 4"),
            ({"positions": torch.rand(2, 31, 2)}, "positions must be 2 × 32 × 2, not 2 × 31 × 2"),
            ({"saliency": torch.rand(2, 3, 8)}, "saliency must be 2 × 3 × 32, not 2 × 3 × 8"),
            ({"tokens": np.zeros((2, 3, 32, 4))}, "tokens must be a tensor of floats, not a nda"),
            ({"tokens": torch.ones(2, 3, 32, 4).long()}, "tensor of floats, not torch.int64"),
            ({"positions": torch.rand(2, 32, 2).double()}, "float32, positions of torch.float64"),
            ({"saliency": saliency.half()}, "float32, saliency of torch.float16: convert one"),
            ({"saliency": saliency.to("meta")}, "tokens are on cpu, saliency on meta: move one"),
            ({"tokens": tokens / 0}, "tokens must be finite"),
            ({"positions": positions * torch.nan}, "positions must be finite"),
            ({"saliency": 2 * saliency}, "sum to 1 over the tokens of an image and head, not to 2"),
            ({"saliency": saliency * 1.002}, "not to 1.002: divide it by its sum"),
            ({"saliency": saliency.index_fill(2, LAST, -1 / 32)}, "not be negative: -0.03125"),
            ({"seeds": SEEDS[:, :, :11]}, "seeds must be 2 × 3 × 12, not 2 × 3 × 11"),
            ({"seeds": SEEDS + 21}, "from 0 to 31"),
            ({"seeds": SEEDS - 1}, "from 0 to 31"),
            ({"seeds": SEEDS // 2}, "seeds must differ from each other"),
            ({"seeds": SEEDS.float()}, "tensor of integers, not torch.float32"),
            ({"seeds": SEEDS.tolist()}, "tensor of integers, not a list"),
            ({"seeds": SEEDS.to("meta")}, "tokens are on cpu, seeds on meta"),
            ({"keys": torch.arange(3)}, "keys must be 2, not 3"),
            ({"keys": torch.arange(2).int()}, "tensor of torch.int64, not torch.int32"),
            ({"keys": [0, 1]}, "tensor of torch.int64, not a list"),
            ({"keys": torch.arange(2).to("meta")}, "tokens are on cpu, keys on meta"),
        ],
    )
    def test_refuses(self, changes: dict[str, Any], said: str):
        given: dict[str, Any] = {"tokens": self.tokens, "positions": self.positions, "views": 2}
        refused(said, croc.cluster, **(given | {"saliency": self.saliency} | changes))

    def test_refuses_too_many_clusters(self):
        config = croc.ClusterConfig(k_start=33)
        given = (self.tokens, self.positions, self.saliency, config)
        refused("more than the 32 tokens", croc.cluster, *given)
        refused("from 3 views", croc.cluster, *given, views=3)
