"""Sinkhorn's scaling against its marginals, POT, and the log domain."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from croc.method.clustering import sinkhorn
from tests.oracles.clustering import sinkhorn as sinkhorn_loops
from tests.oracles.clustering import sinkhorn_log

many = settings(max_examples=60, deadline=None, derandomize=True)


def marginal(rng: np.random.Generator, size: int, peak: float = 1.0) -> np.ndarray:
    weights = np.exp(peak * rng.normal(size=size))
    return weights / weights.sum()


@st.composite
def problems(draw, reach: float = 1.0, least: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """A cost from 0 to `reach` and two marginals."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    T, K = draw(st.integers(least, 60)), draw(st.integers(least, 12))
    cost = rng.uniform(0, reach, (T, K))
    if draw(st.booleans()):  # groups of tokens, each near to one centroid
        cost[np.arange(T), rng.integers(0, K, T)] *= 0.05
    peak = draw(st.sampled_from([0.0, 1.0, 3.0]))
    return tuple(
        torch.from_numpy(array) for array in (cost, marginal(rng, T, peak), marginal(rng, K))
    )


@many
@given(problems(), st.integers(1, 12), st.sampled_from([1.0, 20.0, 60.0]))
def test_agrees_with_the_loops_and_columns_hold(problem, iterations, sharpness) -> None:
    cost, rows, columns = problem
    plan = sinkhorn(cost, rows, columns, sharpness, iterations)
    expected, _ = sinkhorn_loops(
        cost.tolist(), rows.tolist(), columns.tolist(), sharpness, iterations
    )
    assert plan.dtype == torch.float64
    np.testing.assert_allclose(plan.numpy(), expected, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(plan.sum(-2).numpy(), columns.numpy(), rtol=1e-12, atol=0)


@many
@given(problems(least=2))
def test_after_many_iterations_rows_hold_and_pot_agrees(problem) -> None:
    cost, rows, columns = problem
    plan = sinkhorn(cost, rows, columns, 10.0, 200).numpy()
    np.testing.assert_allclose(plan.sum(-1), rows.numpy(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(plan.sum(-2), columns.numpy(), rtol=0, atol=1e-12)
    expected = ot.sinkhorn(
        rows.numpy(),
        columns.numpy(),
        cost.numpy(),
        reg=1 / 10.0,
        numItermax=5000,
        stopThr=1e-12,
        warn=False,
    )
    np.testing.assert_allclose(plan, expected, rtol=0, atol=1e-6)


def test_rows_hold_and_pot_agrees_at_the_paper_sharpness() -> None:
    """Costs as they arise: tokens and centroids of unit length, cosine brought to 0 … 1."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        tokens, centroids = rng.normal(size=(50, 8)), rng.normal(size=(6, 8))
        tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
        centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
        cost, rows, columns = (1 - tokens @ centroids.T) / 2, marginal(rng, 50), marginal(rng, 6, 0)
        plan = sinkhorn(
            torch.from_numpy(cost), torch.from_numpy(rows), torch.from_numpy(columns), 20.0, 200
        ).numpy()
        np.testing.assert_allclose(plan.sum(1), rows, rtol=0, atol=1e-6)
        expected = ot.sinkhorn(
            rows, columns, cost, reg=1 / 20, numItermax=10_000, stopThr=1e-13, warn=False
        )
        np.testing.assert_allclose(plan, expected, rtol=0, atol=1e-6)


@many
@given(problems(reach=6.0), st.sampled_from([20.0, 40.0, 80.0]), st.integers(1, 8))
def test_a_wide_range_of_costs_in_float32(problem, sharpness, iterations) -> None:
    """exp(-80 · 6) is far below float32, and so is every entry of a dear row or column."""
    cost, rows, columns = (tensor.float() for tensor in problem)
    plan = sinkhorn(cost, rows, columns, sharpness, iterations)
    assert plan.dtype == torch.float32
    assert torch.isfinite(plan).all()
    arrays = (tensor.double().numpy() for tensor in (cost, rows, columns))
    expected = sinkhorn_log(*arrays, sharpness, iterations)
    np.testing.assert_allclose(plan.numpy(), expected, rtol=5e-3, atol=1e-5)
    np.testing.assert_allclose(plan.sum(-2).numpy(), columns.numpy(), rtol=1e-4, atol=0)


def test_dear_rows_and_columns_in_float32() -> None:
    """A constant added to a row or a column changes nothing but the rounding."""
    rng = np.random.default_rng(1)
    cost = torch.from_numpy(rng.uniform(0, 1, (20, 5))).float()
    rows, columns = (torch.from_numpy(marginal(rng, size)).float() for size in (20, 5))
    expected = sinkhorn_log(cost.numpy(), rows.numpy(), columns.numpy(), 20.0, 300)
    for shift in (torch.linspace(0, 5, 20)[:, None], torch.linspace(0, 5, 5), 6.0):
        plan = sinkhorn(cost + shift, rows, columns, 20.0, 300)
        np.testing.assert_allclose(plan.numpy(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("iterations", [1, 5, 50])
def test_zero_row_mass(dtype: torch.dtype, iterations: int) -> None:
    """Rows without mass are empty, and the others are as if those were not there."""
    rng = np.random.default_rng(2)
    cost = torch.from_numpy(rng.uniform(0, 1, (12, 4))).to(dtype)
    rows = torch.from_numpy(marginal(rng, 12))
    rows[[0, 5, 6]] = 0
    rows, columns = (rows / rows.sum()).to(dtype), torch.from_numpy(marginal(rng, 4)).to(dtype)
    plan = sinkhorn(cost, rows, columns, 20.0, iterations)
    assert torch.isfinite(plan).all()
    assert (plan[rows == 0] == 0).all()
    there = rows > 0
    torch.testing.assert_close(
        plan[there], sinkhorn(cost[there], rows[there], columns, 20.0, iterations)
    )


@pytest.mark.parametrize("K", [1, 2, 7])
def test_identical_rows_and_columns(K: int) -> None:
    """Where nothing distinguishes tokens or centroids, the plan is the product of its marginals."""
    rng = np.random.default_rng(3)
    rows, columns = torch.from_numpy(marginal(rng, 9)), torch.from_numpy(marginal(rng, K))
    one_row = torch.from_numpy(rng.uniform(0, 1, (1, K))).expand(9, K)
    one_column = torch.from_numpy(rng.uniform(0, 1, (9, 1))).expand(9, K)
    for cost in (one_row, one_column, torch.zeros(9, K, dtype=torch.float64)):
        plan = sinkhorn(cost, rows, columns, 20.0, 5)
        torch.testing.assert_close(plan, rows[:, None] * columns)


def test_one_centroid_takes_all() -> None:
    rng = np.random.default_rng(4)
    rows = torch.from_numpy(marginal(rng, 9))
    cost = torch.from_numpy(rng.uniform(0, 1, (9, 1)))
    plan = sinkhorn(cost, rows, torch.ones(1, dtype=torch.float64), 20.0, 1)
    torch.testing.assert_close(plan, rows[:, None])


def test_two_by_two_by_hand() -> None:
    """Equal marginals and a symmetric cost: the plan is the kernel over its sum."""
    cost = torch.tensor([[0.0, 0.1], [0.1, 0.0]], dtype=torch.float64)
    half = torch.full((2,), 0.5, dtype=torch.float64)
    kernel = torch.exp(-20 * cost)
    torch.testing.assert_close(sinkhorn(cost, half, half, 20.0, 1), kernel / kernel.sum())


def test_batch_dimensions() -> None:
    """Each problem of a batch is solved as if alone."""
    rng = np.random.default_rng(5)
    cost = torch.from_numpy(rng.uniform(0, 1, (3, 2, 10, 4)))
    rows = torch.from_numpy(np.stack([marginal(rng, 10) for _ in range(6)]).reshape(3, 2, 10))
    columns = torch.from_numpy(np.stack([marginal(rng, 4) for _ in range(6)]).reshape(3, 2, 4))
    plan = sinkhorn(cost, rows, columns, 20.0, 5)
    assert plan.shape == cost.shape
    for b in range(3):
        for h in range(2):
            alone = sinkhorn(cost[b, h], rows[b, h], columns[b, h], 20.0, 5)
            torch.testing.assert_close(plan[b, h], alone, rtol=1e-12, atol=0)


def test_inputs_are_left_as_they_were() -> None:
    rng = np.random.default_rng(6)
    inputs = (
        torch.from_numpy(rng.uniform(0, 1, (8, 3))),
        torch.from_numpy(marginal(rng, 8)),
        torch.from_numpy(marginal(rng, 3)),
    )
    before = [tensor.clone() for tensor in inputs]
    sinkhorn(*inputs, 20.0, 5)
    for tensor, copy in zip(inputs, before):
        assert torch.equal(tensor, copy)
