"""The trace of the merges: its chosen step is the clustering, and columns can be followed."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from croc.config import ClusterConfig
from croc.method.clustering.join_split import cluster
from croc.method.clustering.trace import Trace, trace_views
from tests.method.clustering import Case, both
from tests.method.clustering.test_cluster import cases, reproducible


def trace(case: Case, **options) -> Trace:
    return trace_views(*case.split, case.config, **({"seeds": case.seeds} | options))


@both
def test_chosen_step_equals_the_clustering(variant: str) -> None:
    """Bit for bit: assignments, validity, cost and K."""

    @settings(reproducible, max_examples=25)
    @given(cases(variant), st.booleans())
    def compare(case: Case, drawn: bool) -> None:
        keys = torch.arange(len(case.tokens)) + 7
        options = {"seeds": None, "keys": keys} if drawn else {"seeds": case.seeds}
        expected = cluster(*case.split, case.config, **options)
        result = trace(case, **options)
        assert torch.equal(result.count, expected.count)
        for b, h in torch.cartesian_prod(*(torch.arange(n) for n in expected.cost.shape)).tolist():
            k = int(result.count[b, h])
            step = result.at(k)
            assert step.cost[b, h] == expected.cost[b, h]
            assert torch.equal(step.valid[b, h], expected.valid[b, h, :k])
            assert torch.equal(step.assignments[:, b, h], expected.assignments[:, b, h, :, :k])

    compare()


@both
def test_columns_follow_their_tokens(variant: str) -> None:
    """With distant clusters, `into` leads to the column with the same tokens."""
    T, k = 24, 6
    labels = torch.arange(T) % k
    tokens = (torch.eye(k)[labels] + 0.01).double()[None, None]
    angles = torch.tensor([0.0, 0.15, 1.2, 1.6, 3.0, 4.4])[labels]
    positions = torch.stack([angles.cos(), angles.sin()], dim=-1).double()[None]
    saliency = torch.full((1, 1, T), 1 / T, dtype=torch.float64)
    config = ClusterConfig(variant, k_start=k, position_weight=1.0)  # pyright: ignore[reportArgumentType]
    seeds = torch.randperm(k, generator=torch.manual_seed(0))[None, None]
    columns = torch.arange(k)
    for step in trace(Case(tokens, positions, saliency, seeds, config)).steps[:3]:
        if step.into is not None:
            columns = step.into[0, 0][columns]
        hard = step.assignments[:, 0, 0].flatten(0, 1).argmax(dim=-1)
        assert torch.equal(hard, columns[torch.argsort(seeds[0, 0])][labels])
