"""Sinkhorn's scaling against its marginals, loops in the log domain, and POT."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from croc.method.clustering.paper import sinkhorn
from tests.oracles.clustering import sinkhorn as sinkhorn_loops

many = settings(max_examples=60, deadline=None, derandomize=True)


def marginal(rng: np.random.Generator, size: int, peak: float = 1.0) -> np.ndarray:
    weights = np.exp(peak * rng.normal(size=size))
    return weights / weights.sum()


@st.composite
def problems(draw, reach: float = 1.0, min_size: int = 1) -> tuple[Tensor, ...]:
    """A cost from 0 to `reach` and two marginals."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    T, K = draw(st.integers(min_size, 60)), draw(st.integers(min_size, 12))
    cost = rng.uniform(0, reach, (T, K))
    if draw(st.booleans()):  # groups of tokens, each close to one centroid
        cost[np.arange(T), rng.integers(0, K, T)] *= 0.05
    peak = draw(st.sampled_from([0.0, 1.0, 3.0]))
    return tuple(map(torch.from_numpy, (cost, marginal(rng, T, peak), marginal(rng, K))))


@many
@given(problems(), st.integers(1, 12), st.sampled_from([1.0, 20.0, 60.0]))
def test_agrees_with_the_loops_and_has_the_column_marginals(problem, iterations, sharpness) -> None:
    cost, rows, columns = problem
    plan = sinkhorn(cost, rows, columns, sharpness, iterations)
    lists = cost.tolist(), rows.tolist(), columns.tolist()
    expected, _ = sinkhorn_loops(*lists, sharpness, iterations)
    assert plan.dtype == torch.float64
    np.testing.assert_allclose(plan.numpy(), expected, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(plan.sum(-2).numpy(), columns.numpy(), rtol=1e-12, atol=0)


def check_with_pot(cost: Tensor, rows: Tensor, columns: Tensor, sharpness: float) -> None:
    """After many iterations the plan has the row marginals, too."""
    plan = sinkhorn(cost, rows, columns, sharpness, 200).numpy()
    np.testing.assert_allclose(plan.sum(-1), rows.numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(plan.sum(-2), columns.numpy(), rtol=0, atol=1e-12)
    options = {"numItermax": 10_000, "stopThr": 1e-13, "warn": False}
    arrays = rows.numpy(), columns.numpy(), cost.numpy()
    expected = ot.sinkhorn(*arrays, reg=1 / sharpness, **options)
    np.testing.assert_allclose(plan, np.asarray(expected), rtol=0, atol=1e-6)


@many
@given(problems(min_size=2))
def test_agrees_with_pot(problem) -> None:
    check_with_pot(*problem, sharpness=10.0)


def test_agrees_with_pot_at_the_papers_sharpness() -> None:
    """Realistic costs: cosines of unit tokens and centroids, rescaled to 0 … 1."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        tokens, centroids = rng.normal(size=(50, 8)), rng.normal(size=(6, 8))
        tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
        centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
        problem = (1 - tokens @ centroids.T) / 2, marginal(rng, 50), marginal(rng, 6, 0)
        check_with_pot(*map(torch.from_numpy, problem), sharpness=20.0)


@many
@given(problems(reach=6.0), st.sampled_from([20.0, 40.0, 80.0]), st.integers(1, 8))
def test_wide_range_of_costs_in_float32(problem, sharpness, iterations) -> None:
    """exp(-80 · 6) is far below float32, and so is every entry of an expensive row or column."""
    cost, rows, columns = (tensor.float() for tensor in problem)
    plan = sinkhorn(cost, rows, columns, sharpness, iterations)
    assert plan.dtype == torch.float32
    assert torch.isfinite(plan).all()
    lists = cost.tolist(), rows.tolist(), columns.tolist()
    expected, _ = sinkhorn_loops(*lists, sharpness, iterations)
    np.testing.assert_allclose(plan.numpy(), expected, rtol=5e-3, atol=1e-5)
    np.testing.assert_allclose(plan.sum(-2).numpy(), columns.numpy(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("iterations", [1, 50])
def test_rows_without_mass_are_zero_and_do_not_affect_others(dtype: torch.dtype, iterations: int):
    rng = np.random.default_rng(2)
    cost = torch.from_numpy(rng.uniform(0, 1, (12, 4))).to(dtype)
    rows = torch.from_numpy(marginal(rng, 12))
    rows[[0, 5, 6]] = 0
    rows, columns = (rows / rows.sum()).to(dtype), torch.from_numpy(marginal(rng, 4)).to(dtype)
    plan = sinkhorn(cost, rows, columns, 20.0, iterations)
    assert (plan[rows == 0] == 0).all()
    rest = rows > 0
    expected = sinkhorn(cost[rest], rows[rest], columns, 20.0, iterations)
    torch.testing.assert_close(plan[rest], expected)
