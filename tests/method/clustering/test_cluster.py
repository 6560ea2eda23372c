"""Both variants against their oracles."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from croc.config import ClusterConfig
from croc.method.clustering import cluster
from croc.method.clustering.paper import pool
from croc.method.types import Clusters
from tests.method.clustering import Case, make_case
from tests.oracles.clustering import OracleResult, centroids, cluster_paper, cluster_released

ORACLES = {"paper": cluster_paper, "released": cluster_released}
# A relative gap below which a decision may fall either way by rounding.
TIE = {torch.float64: 1e-9, torch.float32: 1e-5}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}  # times λ, which multiplies rounding


@dataclass
class Tally:
    """What occurred in a run of the comparison: one count a pair of image and head."""

    pairs: int = 0
    left_out: int = 0
    pruned: int = 0
    capped: int = 0
    uncapped: int = 0
    counts: set[int] = field(default_factory=set)
    error: float = 0.0

    def add(self, case: Case, oracle: OracleResult, compared: np.ndarray) -> None:
        free = case.config.k_start - oracle.step_costs.argmin(-1)
        k_max = case.config.k_max or case.config.k_start
        self.pairs += compared.size
        self.left_out += int((~compared).sum())
        self.pruned += int((oracle.valid.sum(-1) < oracle.count)[compared].sum())
        self.capped += int((free > k_max)[compared].sum())
        self.uncapped += int((free <= k_max)[compared].sum())
        self.counts |= set(oracle.count[compared].tolist())

    def require_variety(self, counts: int) -> None:
        assert self.left_out <= 0.08 * self.pairs, self
        assert min(self.pruned, self.capped, self.uncapped) >= 10, self
        assert len(self.counts) >= counts, self


@st.composite
def cases(draw, variant: str, dtype: torch.dtype = torch.float64) -> Case:
    weights = [0.0, 1.0, 4.0, float("inf")]
    views = draw(st.sampled_from([2, 2, 2, 3, 1])) if variant == "paper" else 2
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
        sharpness=draw(st.sampled_from([20.0, 20.0, 5.0, 200.0 if variant == "paper" else 50.0])),
        sinkhorn_iterations=draw(st.sampled_from([5, 5, 1, 12])),
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


def run(case: Case) -> Clusters:
    return cluster(*case.arguments, case.config, views=case.views, seeds=case.seeds)


def run_oracle(case: Case) -> OracleResult:
    oracle = ORACLES[case.config.variant]
    return oracle(*case.arguments, case.seeds, case.config, case.views)


def clear_calls(case: Case, oracle: OracleResult, tie: float) -> np.ndarray:
    """The pairs of image and head in which no decision hangs on rounding.

    In the released variant the whole batch shares the scale of the cost, so one merge that may
    fall either way touches all of it.
    """
    merges = oracle.merge_gap >= tie
    if case.config.variant == "released":
        merges = np.full_like(merges, merges.all())
    return merges & (oracle.count_gap >= tie) & (oracle.argmax_gap >= tie)


def assert_equal(result: Clusters, oracle: OracleResult, where: np.ndarray, atol: float) -> float:
    """All that a clustering says, for the pairs `where`; the largest difference is returned."""
    assert torch.isfinite(result.assignments).all()
    assert torch.isfinite(result.cost).all()
    assignments, expected = result.assignments.double().numpy(), oracle.assignments
    assert assignments.shape == expected.shape
    np.testing.assert_array_equal(result.count.numpy()[where], oracle.count[where])
    np.testing.assert_array_equal(result.valid.numpy()[where], oracle.valid[where])
    np.testing.assert_allclose(
        result.cost.double().numpy()[where], oracle.cost[where], rtol=0, atol=atol
    )
    np.testing.assert_allclose(assignments[:, where], expected[:, where], rtol=0, atol=atol)
    return float(np.abs(assignments[:, where] - expected[:, where]).max(initial=0.0))


def compare_many(variant: str, dtype: torch.dtype, examples: int) -> Tally:
    """Runs both on many cases and says what occurred; every run draws the same."""
    tally = Tally()

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(cases(variant, dtype))
    def compare(case: Case) -> None:
        result, oracle = run(case), run_oracle(case)
        assert result.assignments.dtype == dtype
        clear = clear_calls(case, oracle, TIE[dtype])
        atol = TOLERANCE[dtype] * max(20, case.config.sharpness)
        tally.error = max(tally.error, assert_equal(result, oracle, clear, atol))
        tally.add(case, oracle, clear)

    compare()
    print(variant, dtype, tally)
    return tally


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_agrees_with_the_oracle(variant: str) -> None:
    compare_many(variant, torch.float64, 150).require_variety(counts=8)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_float32_stays_near_the_oracle(variant: str) -> None:
    tally = compare_many(variant, torch.float32, 40)
    assert tally.left_out <= 0.4 * tally.pairs, tally


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_usual_size(variant: str) -> None:
    """The defaults on two views of a 5 × 6 grid."""
    case = make_case(0, ClusterConfig(variant=variant), B=3, H=2, grid=(5, 6), d=16)
    result, oracle = run(case), run_oracle(case)
    assert clear_calls(case, oracle, 1e-9).all()
    assert_equal(result, oracle, np.ones((3, 2), bool), 1e-8)


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("k_max", [2, 5, 9])
def test_k_max_and_fixed_k(variant: str, k_max: int) -> None:
    free = ClusterConfig(variant=variant, k_start=9)
    case = make_case(3, free, B=3, H=3, layout="prototypes")
    capped = run(case.changed(config=ClusterConfig(variant=variant, k_start=9, k_max=k_max)))
    fixed = run(
        case.changed(
            config=ClusterConfig(variant=variant, k_start=9, k_max=k_max, k_select="fixed")
        )
    )
    step_costs = torch.from_numpy(run_oracle(case).step_costs[..., 9 - k_max :])
    assert (capped.count <= k_max).all()
    assert (fixed.count == k_max).all()
    torch.testing.assert_close(capped.cost, step_costs.min(-1).values, rtol=0, atol=1e-10)
    torch.testing.assert_close(fixed.cost, step_costs[..., 0], rtol=0, atol=1e-10)
    if k_max == 9:
        torch.testing.assert_close(capped.assignments, run(case).assignments)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_padding_is_zero_and_not_valid(variant: str) -> None:
    result = run(make_case(1, ClusterConfig(variant=variant, k_max=4), B=3, H=3))
    padding = torch.arange(12) >= result.count[..., None]
    assert not result.valid[padding].any()
    assert (result.assignments.movedim(3, -1)[:, padding] == 0).all()


def test_released_assigns_a_token_to_one_cluster() -> None:
    """Its assignments are masked by the hard ones; a view's columns sum to at most 1."""
    result = run(make_case(2, ClusterConfig(variant="released"), B=3, H=3))
    assert ((result.assignments > 0).sum(-1) == 1).all()
    assert (result.assignments.sum(-2) <= 1 + 1e-12).all()


def image_tokens(case: Case, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Last-layer patches, and CLS tokens of quite different lengths."""
    M, B, N = case.views, len(case.tokens), case.tokens.shape[2] // case.views
    draw = torch.Generator().manual_seed(0)
    lengths = 1 + torch.arange(M * B).reshape(M, B, 1)
    patches = torch.randn(M, B, N, width, generator=draw)
    return patches, torch.randn(M, B, width, generator=draw) * lengths


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_centroids_agree_with_the_oracle(variant: str) -> None:
    case = make_case(4, ClusterConfig(variant=variant, k_start=7), B=3, H=2)
    patches, cls = image_tokens(case, 10)
    clusters = run(case)
    result = pool(patches, clusters.assignments, cls, case.config)
    expected = centroids(patches, clusters.assignments, cls, variant)
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_centroids_carry_gradient(variant: str) -> None:
    """To the patches and to the length of the CLS tokens; padding columns spoil nothing."""
    case = make_case(4, ClusterConfig(variant=variant, k_start=7, k_max=3), B=3, H=2)
    patches, cls = (tokens.requires_grad_() for tokens in image_tokens(case, 10))
    pool(patches, run(case).assignments, cls, case.config).square().sum().backward()
    for tokens in (patches, cls):
        assert tokens.grad is not None
        assert torch.isfinite(tokens.grad).all()
    assert (cls.grad.norm(dim=-1) > 0).all()
