"""Both variants, pooling, softness and the trace of the merges against naive loops."""

import math
from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from croc.config import ClusterConfig
from croc.method.clustering.join_split import cluster, pool, softness
from croc.method.clustering.trace import Trace, trace_views
from croc.method.types import Clusters
from tests.method.clustering import Case, both, make_case, run
from tests.oracles.clustering import OracleResult, centroids, cluster_paper, cluster_released

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
reproducible = settings(deadline=None, derandomize=True, suppress_health_check=SLOW)
ORACLES = {"paper": cluster_paper, "released": cluster_released}
# Relative gap below which rounding may change a decision.
TIE = {torch.float64: 1e-9, torch.float32: 1e-5}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}  # times λ, which amplifies rounding


@st.composite
def cases(draw, variant: str, dtype: torch.dtype = torch.float64) -> Case:
    weights, paper = [0.0, 1.0, 4.0, float("inf")], variant == "paper"
    views = draw(st.sampled_from([2, 2, 2, 3, 1])) if paper else 2
    rows = draw(st.integers(1, 5))
    columns = draw(st.integers(-(-4 // rows), 30 // rows if rows > 2 else 12))
    T = views * rows * columns
    k_start = draw(st.integers(2, min(12, T)))
    k_max = draw(st.none() | st.integers(2, k_start))
    select = draw(st.sampled_from(["cost", "cost", "cost", "fixed"])) if k_max else "cost"
    config = ClusterConfig(
        variant=variant,
        k_start=k_start,
        position_weight=draw(st.sampled_from(weights)),
        sharpness=draw(st.sampled_from([20.0, 20.0, 5.0, 200.0 if paper else 50.0])),
        sinkhorn_iterations=draw(st.sampled_from([5, 5, 1, 12])),
        sizes=draw(st.sampled_from(["balanced", "balanced", "free"])) if paper else "balanced",
        k_max=k_max,
        k_select=select,
    )
    case = make_case(
        draw(st.integers(0, 2**32 - 1)),
        config,
        B=draw(st.integers(1, 3)),
        H=draw(st.integers(1, 3)),
        grid=(rows, columns),
        d=draw(st.integers(2, 16)),
        views=views,
        layout=draw(st.sampled_from(["random", "prototypes", "places"])),
        disjoint=draw(st.booleans()),
        empty=draw(st.booleans()),
    )
    return case.to(dtype)


def without_ties(case: Case, oracle: OracleResult, tie: float) -> np.ndarray:
    """The pairs of image and head in which no decision depends on rounding.

    In the released variant the batch shares the scale of the cost, so one ambiguous merge affects
    all pairs.
    """
    merges = oracle.merge_gap >= tie
    if case.config.variant == "released":
        merges = np.full_like(merges, merges.all())
    return merges & (oracle.count_gap >= tie) & (oracle.argmax_gap >= tie)


def assert_equal(result: Clusters, oracle: OracleResult, where: np.ndarray, atol: float) -> None:
    """Compare all outputs for the pairs `where`."""
    assert torch.isfinite(result.assignments).all()
    assert torch.isfinite(result.cost).all()
    assignments, cost = result.assignments.double().numpy(), result.cost.double().numpy()
    assert assignments.shape == oracle.assignments.shape
    np.testing.assert_array_equal(result.count.numpy()[where], oracle.count[where])
    np.testing.assert_array_equal(result.valid.numpy()[where], oracle.valid[where])
    np.testing.assert_allclose(cost[where], oracle.cost[where], rtol=0, atol=atol)
    expected = oracle.assignments[:, where]
    np.testing.assert_allclose(assignments[:, where], expected, rtol=0, atol=atol)


def compare_many(variant: str, dtype: torch.dtype, examples: int) -> Counter[str]:
    """Compare `cluster` with the oracle on many fixed cases; returns counts of what occurred."""
    tally = Counter()

    @settings(reproducible, max_examples=examples)
    @given(cases(variant, dtype))
    def compare(case: Case) -> None:
        result = run(case)
        oracle = ORACLES[variant](*case.arguments, case.seeds, case.config, case.views)
        assert result.assignments.dtype == dtype
        clear = without_ties(case, oracle, TIE[dtype])
        assert_equal(result, oracle, clear, TOLERANCE[dtype] * max(20, case.config.sharpness))
        free = case.config.k_start - oracle.step_costs.argmin(-1)
        capped = free > (case.config.k_max or case.config.k_start)
        pruned = oracle.valid.sum(-1) < oracle.count
        tally.update(pairs=clear.size, left_out=int((~clear).sum()))
        tally.update(pruned=int(pruned[clear].sum()), capped=int(capped[clear].sum()))
        tally.update(uncapped=int((~capped)[clear].sum()))
        tally.update(f"K = {k}" for k in oracle.count[clear].tolist())

    compare()
    return tally


@both
def test_agrees_with_the_oracle(variant: str) -> None:
    tally = compare_many(variant, torch.float64, 150)
    assert tally["left_out"] <= 0.08 * tally["pairs"], tally
    assert min(tally["pruned"], tally["capped"], tally["uncapped"]) >= 10, tally
    assert sum(name.startswith("K") for name in tally) >= 8, tally
    tally = compare_many(variant, torch.float32, 40)
    assert tally["left_out"] <= 0.4 * tally["pairs"], tally


@both
def test_centroids_agree_with_the_oracle_and_are_differentiable(variant: str) -> None:
    """With respect to patches and CLS tokens of different lengths, also with padding columns."""
    config = ClusterConfig(variant, k_start=7, k_max=3)
    case = make_case(4, config, B=3, H=2)
    draw = torch.Generator().manual_seed(0)
    patches = torch.randn(2, 3, 12, 10, generator=draw).requires_grad_()
    lengths = 1 + torch.arange(6).reshape(2, 3, 1)
    cls = (torch.randn(2, 3, 10, generator=draw) * lengths).requires_grad_()
    clusters = run(case)
    result = pool(patches, clusters.assignments, cls, case.config)
    expected = centroids(patches.detach(), clusters.assignments, cls.detach(), variant)
    np.testing.assert_allclose(result.detach().numpy(), expected, rtol=0, atol=2e-5)
    result.square().sum().backward()
    assert patches.grad.isfinite().all()
    assert (cls.grad.norm(dim=-1) > 0).all()


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


def test_softness_equals_the_loops() -> None:
    """Also for rows with a single entry that do not sum to 1, as in `released`."""
    generator = torch.Generator().manual_seed(0)
    soft = (3 * torch.randn(2, 3, 4, 5, 6, generator=generator, dtype=torch.float64)).softmax(-1)
    labels = torch.randint(6, (2, 3, 4, 5), generator=generator)
    for assignments in (soft, 1e-20 * F.one_hot(labels, 6).double()):
        torch.testing.assert_close(softness(assignments), naive_softness(assignments))


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
    config = ClusterConfig(variant, k_start=k, position_weight=1.0)
    seeds = torch.randperm(k, generator=torch.manual_seed(0))[None, None]
    columns = torch.arange(k)
    for step in trace(Case(tokens, positions, saliency, seeds, config)).steps[:3]:
        if step.into is not None:
            columns = step.into[0, 0][columns]
        hard = step.assignments[:, 0, 0].flatten(0, 1).argmax(dim=-1)
        assert torch.equal(hard, columns[torch.argsort(seeds[0, 0])][labels])
