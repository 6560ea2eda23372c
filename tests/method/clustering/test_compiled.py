"""torch.compile takes the clustering as one graph, which is only possible without host copies."""

import pytest
import torch

from croc.config import ClusterConfig
from croc.method.clustering import cluster


@pytest.mark.compiled
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_one_graph_with_the_same_result(variant: str):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(2, 2, 18, 8, generator=generator)
    positions = torch.rand(2, 18, 2, generator=generator)
    saliency = torch.randn(2, 2, 18, generator=generator).softmax(dim=-1)
    config = ClusterConfig(variant=variant, k_start=4)  # pyright: ignore[reportArgumentType]
    arguments = (tokens, positions, saliency, config)
    keys = torch.tensor([5, 6])
    eager = cluster(*arguments, keys=keys)
    compiled = torch.compile(cluster, fullgraph=True)(*arguments, keys=keys)
    torch.testing.assert_close(compiled.assignments, eager.assignments, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.cost, eager.cost)
    assert torch.equal(compiled.valid, eager.valid)
    assert torch.equal(compiled.count, eager.count)
