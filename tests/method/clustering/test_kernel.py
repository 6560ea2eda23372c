"""The clustering kernel against the reference: in Triton's interpreter, and full size on a GPU."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from croc.config import ClusterConfig
from croc.method.clustering import paper
from croc.method.clustering.join_split import cluster, select_k, split
from croc.method.clustering.paper import closest_pair, paper_steps
from croc.method.types import Clusters
from tests.kernels.interpreter import bfloat16_in_interpreter, forbid_synchronization, interpreted
from tests.method.clustering import Case, make_case
from tests.oracles.clustering import cluster_paper

TIE = 1e-5


@pytest.fixture(scope="module")
def kernel():
    """The kernel's module."""
    from croc.kernels import clustering as kernel

    with bfloat16_in_interpreter():
        yield kernel


def run_kernel(kernel, case: Case) -> Clusters:
    return kernel.cluster_views(*case.split, case.seeds, case.config)


def run_reference(case: Case) -> Clusters:
    """The path of `cluster` for inputs that do not fit the kernel."""
    tokens, positions, saliency = case.arguments
    unit = F.normalize(tokens if tokens.dtype == torch.float64 else tokens.float(), dim=-1)
    steps = paper_steps(unit, positions, saliency, case.seeds, case.config)
    return split(*select_k(steps, case.config), case.config, case.views)


def assert_agree(
    result: Clusters, expected: Clusters, where: torch.Tensor, sharpness: float
) -> None:
    """Compare all outputs for the pairs of image and head `where`. The kernel's cosines have 16
    bits, λ amplifies their error, and the centroids of later merges inherit it."""
    assert result.assignments.shape == expected.assignments.shape
    assert result.assignments.dtype == result.cost.dtype == torch.float32
    assert torch.isfinite(result.assignments).all()
    assert torch.equal(result.count[where], expected.count[where])
    assert torch.equal(result.valid[where], expected.valid[where])
    torch.testing.assert_close(
        result.cost[where], expected.cost[where].float(), rtol=1e-4, atol=1e-4
    )
    error = (result.assignments - expected.assignments)[:, where].abs()
    assert error.max() < max(1e-4, sharpness * 2**-13)
    assert (error > max(1e-4, sharpness * 2**-15)).double().mean() < 1e-4
    padding = torch.arange(result.valid.shape[-1], device=where.device) >= result.count[..., None]
    assert (result.assignments.movedim(3, -1)[:, padding] == 0).all()
    assert not result.valid[padding].any()


INF = float("inf")
SMALL = {  # seed: options of ClusterConfig and of make_case
    1: ({"k_start": 2}, {"grid": (1, 5)}),
    2: ({"k_start": 6, "position_weight": 0.0}, {"layout": "prototypes", "empty": True}),
    4: ({"k_start": 7, "position_weight": INF}, {"grid": (2, 5), "views": 3}),
    5: ({"k_start": 5}, {"views": 1, "grid": (2, 5), "layout": "random"}),
    6: ({"k_start": 12}, {"grid": (3, 6), "empty": True, "layout": "random"}),
    7: ({"k_start": 18}, {"grid": (2, 7), "d": 3, "layout": "prototypes"}),
    9: ({"k_start": 10, "k_max": 4}, {"disjoint": True}),
    12: ({"k_start": 7, "k_max": 7, "k_select": "fixed"}, {}),
    13: ({"k_start": 6, "k_max": 2, "k_select": "fixed"}, {"layout": "random"}),
    15: ({"k_start": 6, "sinkhorn_iterations": 12, "sharpness": 80.0}, {"empty": True}),
    16: ({"k_start": 6, "sharpness": 5.0}, {"layout": "random"}),
    17: ({"k_start": 10, "sharpness": 200.0}, {"disjoint": True, "empty": True}),
}


@interpreted
@pytest.mark.parametrize("number", SMALL)
def test_agrees_with_the_reference(kernel, number: int) -> None:
    options, layout = SMALL[number]
    config = ClusterConfig(**options)
    dtype = [torch.float32, torch.bfloat16, torch.float16][number % 3]
    case = make_case(number, config, **({"B": 1, "H": 2} | layout))
    case = case.changed(tokens=case.tokens.to(dtype))
    exact = case.changed(tokens=case.tokens.double())
    oracle = cluster_paper(*exact.arguments, case.seeds, config, case.views)
    gaps = np.minimum(np.minimum(oracle.merge_gap, oracle.count_gap), oracle.argmax_gap)
    clear = torch.from_numpy(gaps >= TIE)
    assert clear.any()
    assert_agree(run_kernel(kernel, case), run_reference(exact), clear, config.sharpness)


@interpreted
def test_accepts_any_strides(kernel) -> None:
    """In the layout of a backbone: the heads of a token are contiguous."""
    case = make_case(0, ClusterConfig(k_start=4), B=2, H=2).to(torch.float32)
    tokens, positions, saliency = case.split
    expected = kernel.cluster_views(tokens, positions, saliency, case.seeds, case.config)
    qkv = torch.randn(2, 2, 13, 3, 2, 8)  # M B n s H d, with a CLS token
    qkv[:, :, 1:, 2] = tokens.movedim(2, 3)
    strided = qkv[:, :, 1:, 2].movedim(3, 2)
    views_inside = positions.transpose(0, 1).contiguous().transpose(0, 1)
    seeds = case.seeds.mT.contiguous().mT
    result = kernel.cluster_views(strided, views_inside, saliency, seeds, case.config)
    for one, two in zip(vars(result).values(), vars(expected).values()):
        assert torch.equal(one, two)


@interpreted
@pytest.mark.parametrize("weight", [4.0, INF])
def test_identical_tokens_and_positions(kernel, weight: float) -> None:
    """All clusters are the same, and a token's assignment depends on their weights alone."""
    config = ClusterConfig(k_start=5, position_weight=weight)
    case = make_case(1, config, B=1, H=1).to(torch.float32)
    case = case.changed(
        tokens=torch.ones_like(case.tokens), positions=torch.ones_like(case.positions)
    )
    result = run_kernel(kernel, case)
    assert torch.isfinite(result.assignments).all()
    sums = result.assignments.sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))
    torch.testing.assert_close(result.cost, run_reference(case).cost, rtol=0, atol=1e-5)


# --- on a GPU -------------------------------------------------------------------------------

FULL = {  # B, grid, d, K_start, dtype of the tokens
    "default": (64, (14, 14), 64, 12, torch.bfloat16),
    "float32": (64, (11, 11), 64, 12, torch.float32),
    "float16": (16, (11, 11), 64, 12, torch.float16),
    "narrow heads": (16, (14, 14), 32, 12, torch.bfloat16),
    "wide heads": (16, (14, 14), 128, 12, torch.bfloat16),
    "small views": (16, (7, 7), 64, 12, torch.float32),
    "many centroids": (16, (14, 14), 64, 32, torch.bfloat16),
    "few centroids": (16, (14, 14), 64, 6, torch.bfloat16),
}


def full_case(B: int, grid: tuple[int, int], d: int, k: int, dtype: torch.dtype, **options) -> Case:
    config = ClusterConfig(k_start=k, **options)
    # With many centroids or without positions, random tokens avoid near-ties.
    layout = "places" if k <= 12 and config.position_weight > 0 else "random"
    case = make_case(0, config, B=B, H=6, grid=grid, d=d, layout=layout, empty=True)
    case = case.to("cuda").to(torch.float32)
    return case.changed(tokens=case.tokens.to(dtype))


def near_ties(case: Case) -> tuple[Clusters, torch.Tensor]:
    """The result in float64, and the pairs in which rounding to float32 may change a decision."""
    gaps: list[torch.Tensor] = []

    def record(similarity: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, j = torch.triu_indices(*similarity.shape[-2:], offset=1, device=similarity.device)
        gaps.append(gap(similarity[..., i, j]))
        return closest_pair(similarity)

    exact, config = case.to(torch.float64), case.config
    unit = F.normalize(exact.tokens, dim=-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "closest_pair", record)
        steps = list(paper_steps(unit, exact.positions, exact.saliency, exact.seeds, config))
    k_max = config.k_max or config.k_start
    costs = torch.stack([step.cost for step in steps if step.assignments.shape[-1] <= k_max])
    expected = split(*select_k(iter(steps), config), config, case.views)
    ties = (torch.stack(gaps) < 1e-6).any(dim=0) | (gap(-costs.movedim(0, -1)) < 1e-6)
    return expected, ties | (gap(expected.assignments) < 2e-5).any(dim=-1).any(dim=0)


def gap(values: torch.Tensor) -> torch.Tensor:
    """Difference between the two largest values."""
    first, second = values.topk(2, dim=-1).values.unbind(dim=-1)
    return first - second


def differ(a: Clusters, b: Clusters) -> torch.Tensor:
    far = (a.assignments - b.assignments).abs().amax(dim=(0, 3, 4)) > 0.01
    return far | (a.count != b.count) | (a.valid != b.valid).any(dim=-1)


@pytest.mark.cuda
@pytest.mark.parametrize("name", FULL)
def test_full_size_agrees_with_the_reference(name: str) -> None:
    from croc.kernels.clustering import fits

    case = full_case(*FULL[name])
    assert fits(case.split[0], case.config)
    result = cluster(*case.split, case.config, seeds=case.seeds)
    expected, left_out = near_ties(case)
    plain = differ(run_reference(case), expected)
    assert differ(result, expected).float().mean() <= plain.float().mean() + 0.02
    assert left_out.float().mean() < 0.5
    assert_agree(result, expected, ~left_out, case.config.sharpness)


@pytest.mark.cuda
@pytest.mark.parametrize("sharpness", [20.0, 200.0])
@pytest.mark.parametrize("weight", [0.0, 3.0, 8.0, INF])
def test_full_size_with_other_weights(weight: float, sharpness: float) -> None:
    options = {"position_weight": weight, "sharpness": sharpness, "k_max": 7}
    case = full_case(8, (14, 14), 64, 12, torch.bfloat16, **options)
    result = cluster(*case.split, case.config, seeds=case.seeds)
    expected, left_out = near_ties(case)
    assert left_out.float().mean() < 0.5
    assert_agree(result, expected, ~left_out, sharpness)


@pytest.mark.cuda
def test_too_large_inputs_use_the_reference() -> None:
    case = full_case(2, (28, 28), 64, 12, torch.bfloat16)
    result = cluster(*case.split, case.config, seeds=case.seeds)
    assert torch.equal(result.assignments, run_reference(case).assignments)


@pytest.mark.cuda
@pytest.mark.compiled
def test_compiled_is_one_graph_without_synchronization() -> None:
    case = full_case(8, (14, 14), 64, 12, torch.bfloat16)
    keys = torch.arange(8, device="cuda")
    compiled = torch.compile(cluster, fullgraph=True)
    compiled(*case.split, case.config, keys=keys)
    with forbid_synchronization():
        result = compiled(*case.split, case.config, keys=keys)
        plain = cluster(*case.split, case.config, keys=keys)
    assert not differ(result, plain).any()
