"""Properties of the clustering for any input, and the drawing of seeds."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from croc.config import ClusterConfig
from croc.method.clustering.join_split import cluster
from croc.method.clustering.paper import draw_seeds
from croc.method.types import Clusters
from tests.kernels.interpreter import forbid_synchronization
from tests.method.clustering import Case, both, make_case, run
from tests.oracles.clustering import cluster_paper, cluster_released


def config(variant: Any = "paper", **options: Any) -> ClusterConfig:
    return ClusterConfig(**({"variant": variant, "k_start": 8} | options))


def assert_same(a: Clusters, b: Clusters, atol: float = 1e-10) -> None:
    assert torch.equal(a.count, b.count)
    assert torch.equal(a.valid, b.valid)
    torch.testing.assert_close(a.cost, b.cost, rtol=0, atol=atol)
    torch.testing.assert_close(a.assignments, b.assignments, rtol=0, atol=atol)


def assert_sound(result: Clusters, config: ClusterConfig, atol: float) -> None:
    """Finite, non-negative, cost in range, and in `paper` a distribution for every token."""
    low, high = 0.0, 1.0
    if config.variant == "paper" and math.isfinite(config.position_weight):
        low, high = -1.0, 1 + config.position_weight
    assert torch.isfinite(result.assignments).all()
    assert torch.isfinite(result.cost).all()
    assert ((result.cost >= low - atol) & (result.cost <= high + atol)).all()
    assert (result.assignments >= 0).all()
    assert ((result.count >= 2) & (result.count <= result.valid.shape[-1])).all()
    if config.variant == "paper":
        sums = result.assignments.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=atol)


@both
@pytest.mark.parametrize("drawn", [False, True])
def test_only_released_depends_on_the_rest_of_the_batch(variant: str, drawn: bool) -> None:
    """With fixed seeds, or seeds drawn by sample keys."""
    case, keys = make_case(0, config(variant), B=3, H=2), keys_of(3)
    together = run(case, **({"seeds": None, "keys": keys} if drawn else {}))
    for b in range(3):
        alone = run(case.image(b), **({"seeds": None, "keys": keys[b, None]} if drawn else {}))
        if variant == "released":
            assert not torch.allclose(alone.cost[0], together.cost[b], rtol=0, atol=1e-6)
        else:
            expected = (together.valid[b], together.cost[b], together.count[b])
            parts = together.assignments[:, b, None], *(each[None] for each in expected)
            assert_same(alone, Clusters(*parts), atol=1e-12)


# --- degenerate inputs ----------------------------------------------------------------------


def one_token(case: Case) -> Case:
    return case.changed(tokens=case.tokens[:, :, :1].expand_as(case.tokens).contiguous())


def one_position(case: Case) -> Case:
    return case.changed(positions=case.positions[:, :1].expand_as(case.positions).contiguous())


def opposite_tokens(case: Case) -> Case:
    """Every token has its opposite, so that a centroid may be zero."""
    half = case.tokens[:, :, : case.tokens.shape[2] // 2]
    return case.changed(tokens=torch.cat([half, -half], 2))


def one_salient_token(case: Case) -> Case:
    saliency = torch.zeros_like(case.saliency)
    saliency[..., 3] = 1
    return case.changed(saliency=saliency)


def equal_saliency(case: Case) -> Case:
    return case.changed(saliency=torch.full_like(case.saliency, 1 / case.saliency.shape[-1]))


def one_blank_image(case: Case) -> Case:
    tokens, positions = case.tokens.clone(), case.positions.clone()
    tokens[0], positions[0] = 1.0, 0.5
    return case.changed(tokens=tokens, positions=positions)


DEGENERATE = {
    "one token": one_token,
    "one position": one_position,
    "no tokens": lambda case: case.changed(tokens=torch.zeros_like(case.tokens)),
    "opposite tokens": opposite_tokens,
    "one salient token": one_salient_token,
    "no saliency": lambda case: case.changed(saliency=torch.zeros_like(case.saliency)),
    "all equal": lambda case: equal_saliency(one_position(one_token(case))),
    "one blank image": one_blank_image,
    "disjoint views": lambda case: make_case(
        1, case.config, layout="prototypes", disjoint=True, empty=True
    ),
    "as many seeds as tokens": lambda case: make_case(0, case.config, grid=(1, 3)),
}


@both
@pytest.mark.parametrize("weight", [0.0, 4.0, math.inf])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_inputs_give_finite_results(variant: str, weight: float, name: str) -> None:
    for sharpness in (1.0, 20.0, 200.0) if variant == "paper" else (1.0, 20.0, 80.0):
        options = config(variant, k_start=6, position_weight=weight, sharpness=sharpness)
        case = DEGENERATE[name](make_case(0, options))
        for dtype, atol in ((torch.float32, 1e-6), (torch.float64, 1e-13)):
            assert_sound(run(case.to(dtype)), options, atol * max(20, sharpness))


@both
def test_computes_in_float32(variant: str) -> None:
    """Under autocast, and on bfloat16 tokens."""
    case = make_case(0, config(variant)).to(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast = run(case)
    assert torch.equal(autocast.assignments, run(case).assignments)
    rounded = case.changed(tokens=case.tokens.bfloat16())
    assert run(rounded).assignments.dtype == torch.float32
    assert_same(run(rounded), run(case.changed(tokens=rounded.tokens.float())), atol=0)


# --- seeds ----------------------------------------------------------------------------------


def keys_of(number: int) -> Tensor:
    return torch.arange(number) * 7919 + 13


def assert_shares(first: Tensor, second: Tensor, expected: Tensor) -> None:
    """Shares of pairs of draws, within five standard deviations of a binomial."""
    share = torch.bincount(first * 4 + second, minlength=16).reshape(4, 4) / len(first)
    assert ((share - expected).abs() <= 5 * (expected * (1 - expected) / len(first)).sqrt()).all()


def test_seeds_follow_the_probability_without_replacement_and_heads_are_independent() -> None:
    p = torch.tensor([0.5, 0.2, 0.2, 0.1])
    seeds = draw_seeds(p.expand(20_000, 2, 4), 2, keys_of(20_000))
    rest = p[:, None] * p / (1 - p)[:, None] * (1 - torch.eye(4))
    assert_shares(seeds[:, 0, 0], seeds[:, 0, 1], rest)
    assert_shares(seeds[:, 0, 0], seeds[:, 1, 0], p[:, None] * p)


def test_tokens_without_probability_are_drawn_last() -> None:
    probability = torch.tensor([0.0, 1e-30, 0.5, 0.0, 0.5 - 1e-3, 1e-3, 0.0, 0.0])
    seeds = draw_seeds(probability.expand(2000, 1, 8), 6, keys_of(2000))
    assert torch.equal(probability[seeds] > 0, torch.arange(6).expand(2000, 1, 6) < 4)
    assert (seeds.sort(-1).values.diff(dim=-1) > 0).all()


@both
def test_seeds_are_drawn_by_saliency_and_key(variant: str) -> None:
    case, keys = make_case(0, config(variant, k_start=6), B=4), keys_of(4)
    probability = case.saliency if variant == "paper" else (case.saliency / 2).softmax(-1)
    seeds = draw_seeds(probability, 6, keys)
    order = torch.tensor([2, 0, 3])
    assert torch.equal(seeds[order], draw_seeds(probability[order], 6, keys[order]))
    assert_same(run(case, seeds=None, keys=keys), run(case, seeds=seeds), atol=1e-12)
    other = run(case, seeds=None, keys=keys + 1)
    assert not torch.equal(run(case, seeds=seeds).assignments, other.assignments)


# --- compiled, and on a GPU -----------------------------------------------------------------


@pytest.mark.compiled
@both
def test_compiled_is_one_graph_with_the_same_result(variant: str):
    case = make_case(0, config(variant, k_start=3), grid=(3, 3)).to(torch.float32)
    keys = torch.tensor([5, 6])
    eager = cluster(*case.split, case.config, keys=keys)
    compiled = torch.compile(cluster, fullgraph=True)(*case.split, case.config, keys=keys)
    torch.testing.assert_close(compiled.assignments, eager.assignments, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.cost, eager.cost)
    assert torch.equal(compiled.valid, eager.valid)
    assert torch.equal(compiled.count, eager.count)


@pytest.mark.cuda
@both
@pytest.mark.parametrize("seed", range(2))
def test_gpu_never_synchronizes_and_agrees_with_the_cpu(variant: str, seed: int) -> None:
    case = make_case(seed, config(variant, k_start=12), B=3, H=3, grid=(4, 5), empty=True)
    oracle = cluster_paper if variant == "paper" else cluster_released
    gaps = oracle(*case.arguments, case.seeds, case.config)
    assert min(gaps.merge_gap.min(), gaps.count_gap.min(), gaps.argmax_gap.min()) > 1e-9
    on_gpu, keys = case.to("cuda"), keys_of(3).cuda()
    run(on_gpu)  # the first call may load libraries
    with forbid_synchronization():
        result = run(on_gpu)
        drawn = run(on_gpu, seeds=None, keys=keys)
    expected = run(case), run(case, seeds=None, keys=keys.cpu())
    for on_device, reference in zip((result, drawn), expected):
        moved = Clusters(*(value.cpu() for value in vars(on_device).values()))
        assert_same(moved, reference, atol=1e-9)
