"""What must hold of the clustering whatever its inputs, and how its seeds are drawn."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from croc.config import ClusterConfig
from croc.method.clustering import cluster, draw_seeds
from croc.method.types import Clusters
from tests.method.clustering import Case, make_case
from tests.oracles.clustering import cluster_paper, cluster_released

both = pytest.mark.parametrize("variant", ["paper", "released"])
several = pytest.mark.parametrize("seed", range(4))


def run(case: Case, **options) -> Clusters:
    options = {"seeds": case.seeds} | options
    return cluster(*case.arguments, case.config, views=case.views, **options)


def assert_same(a: Clusters, b: Clusters, atol: float = 1e-10) -> None:
    assert torch.equal(a.count, b.count)
    assert torch.equal(a.valid, b.valid)
    torch.testing.assert_close(a.cost, b.cost, rtol=0, atol=atol)
    torch.testing.assert_close(a.assignments, b.assignments, rtol=0, atol=atol)


def assert_sound(result: Clusters, config: ClusterConfig, atol: float) -> None:
    """Finite, not negative, a cost within its range, in `paper` a distribution for every token."""
    least, most = 0.0, 1.0
    if config.variant == "paper" and math.isfinite(config.position_weight):
        least, most = -1.0, 1 + config.position_weight
    assert torch.isfinite(result.assignments).all()
    assert torch.isfinite(result.cost).all()
    assert ((result.cost >= least - atol) & (result.cost <= most + atol)).all()
    assert (result.assignments >= 0).all()
    assert ((result.count >= 2) & (result.count <= result.valid.shape[-1])).all()
    if config.variant == "paper":
        sums = result.assignments.sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=atol)


def reorder(case: Case, order: Tensor) -> Case:
    """The joined tokens in another order, the seeds with them."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return case.changed(
        tokens=case.tokens[:, :, order],
        positions=case.positions[:, order],
        saliency=case.saliency[:, :, order],
        seeds=place[case.seeds],
    )


# --- symmetries -----------------------------------------------------------------------------


@both
@several
def test_swapped_views_swap_the_result(variant: str, seed: int) -> None:
    case = make_case(seed, ClusterConfig(variant=variant, k_start=8))
    T = case.tokens.shape[2]
    swapped = run(reorder(case, torch.arange(T).roll(T // 2)))
    straight = run(case)
    assert torch.equal(swapped.count, straight.count)
    assert torch.equal(swapped.valid, straight.valid)
    torch.testing.assert_close(swapped.cost, straight.cost)
    torch.testing.assert_close(swapped.assignments, straight.assignments.flip(0))


@both
@several
def test_tokens_of_a_view_may_come_in_any_order(variant: str, seed: int) -> None:
    case = make_case(seed, ClusterConfig(variant=variant, k_start=8))
    N = case.tokens.shape[2] // 2
    first, second = (torch.randperm(N, generator=torch.manual_seed(seed)) for _ in range(2))
    shuffled, straight = run(reorder(case, torch.cat([first, second + N]))), run(case)
    assert torch.equal(shuffled.valid, straight.valid)
    expected = torch.stack(
        [straight.assignments[0][..., first, :], straight.assignments[1][..., second, :]]
    )
    torch.testing.assert_close(shuffled.assignments, expected)


@both
@several
def test_length_of_a_token_does_not_matter(variant: str, seed: int) -> None:
    case = make_case(seed, ClusterConfig(variant=variant, k_start=8))
    lengths = 10 ** torch.linspace(-3, 3, case.tokens.shape[2], dtype=torch.float64)
    assert_same(run(case.changed(tokens=case.tokens * lengths[:, None])), run(case))


@both
@several
def test_frame_of_the_positions_does_not_matter(variant: str, seed: int) -> None:
    case = make_case(seed, ClusterConfig(variant=variant, k_start=8))
    offset = torch.tensor([3.0, -0.7], dtype=torch.float64)
    assert_same(run(case.changed(positions=case.positions * 224 + offset)), run(case))
    mirrored = case.positions * torch.tensor([-1.0, 1.0], dtype=torch.float64)
    assert_same(run(case.changed(positions=mirrored)), run(case))


@both
@several
def test_order_of_the_batch_and_of_the_heads_does_not_matter(variant: str, seed: int) -> None:
    case = make_case(seed, ClusterConfig(variant=variant, k_start=8), B=3, H=3)
    flipped = run(
        case.changed(
            tokens=case.tokens.flip(0, 1),
            positions=case.positions.flip(0),
            saliency=case.saliency.flip(0, 1),
            seeds=case.seeds.flip(0, 1),
        )
    )
    straight = run(case)
    assert torch.equal(flipped.count, straight.count.flip(0, 1))
    assert torch.equal(flipped.valid, straight.valid.flip(0, 1))
    torch.testing.assert_close(flipped.assignments, straight.assignments.flip(1, 2))


@several
def test_paper_does_not_see_the_rest_of_the_batch(seed: int) -> None:
    case = make_case(seed, ClusterConfig(k_start=8), B=3, H=2)
    together = run(case)
    for b in range(3):
        alone = run(case.picture(b))
        assert torch.equal(alone.valid[0], together.valid[b])
        assert torch.equal(alone.count[0], together.count[b])
        torch.testing.assert_close(alone.cost[0], together.cost[b], rtol=0, atol=1e-12)
        torch.testing.assert_close(
            alone.assignments[:, 0], together.assignments[:, b], rtol=0, atol=1e-12
        )


def test_released_sees_the_rest_of_the_batch() -> None:
    config = ClusterConfig(variant="released", k_start=8)
    changed = 0
    for seed in range(4):
        case = make_case(seed, config, B=3, H=2)
        together, alone = run(case), run(case.picture(0))
        changed += not torch.allclose(alone.cost[0], together.cost[0], rtol=0, atol=1e-6)
    assert changed == 4


# --- the weight of the positions ---------------------------------------------------------------


@both
@several
def test_no_position_weight_ignores_positions(variant: str, seed: int) -> None:
    case = make_case(seed, ClusterConfig(variant=variant, k_start=8, position_weight=0.0))
    elsewhere = torch.rand(case.positions.shape, generator=torch.manual_seed(seed))
    assert_same(run(case.changed(positions=elsewhere.double())), run(case))


@both
@several
def test_infinite_position_weight_ignores_tokens_in_the_cost(variant: str, seed: int) -> None:
    """Without a merge nothing of the tokens is left; merges still go by their cosine."""
    other = torch.randn(2, 2, 24, 8, generator=torch.manual_seed(seed), dtype=torch.float64)
    first_step = ClusterConfig(variant, 8, k_max=8, k_select="fixed", position_weight=math.inf)
    case = make_case(seed, first_step)
    assert_same(run(case.changed(tokens=other)), run(case), atol=1e-12)
    last_step = case.changed(config=replace(first_step, k_max=2))
    merged_otherwise = run(last_step.changed(tokens=other))
    assert not torch.allclose(merged_otherwise.assignments, run(last_step).assignments)


@several
def test_infinite_position_weight_is_the_limit_at_equal_weight_times_sharpness(seed: int) -> None:
    case = make_case(seed, ClusterConfig(k_start=6, position_weight=math.inf))
    large = ClusterConfig(k_start=6, position_weight=1e9, sharpness=20e-9)
    limit, expected = run(case.changed(config=large)), run(case)
    torch.testing.assert_close(limit.assignments, expected.assignments, rtol=0, atol=1e-6)
    torch.testing.assert_close(limit.cost / 1e9, expected.cost, rtol=0, atol=1e-6)


# --- degenerate inputs ------------------------------------------------------------------------


def one_token(case: Case) -> Case:
    return case.changed(tokens=case.tokens[:, :, :1].expand_as(case.tokens).contiguous())


def one_position(case: Case) -> Case:
    return case.changed(positions=case.positions[:, :1].expand_as(case.positions).contiguous())


def no_tokens(case: Case) -> Case:
    return case.changed(tokens=torch.zeros_like(case.tokens))


def opposite_tokens(case: Case) -> Case:
    """Each token has its opposite, so that a centroid may cancel to nothing."""
    half = case.tokens[:, :, : case.tokens.shape[2] // 2]
    return case.changed(tokens=torch.cat([half, -half], 2))


def one_salient_token(case: Case) -> Case:
    if case.config.variant == "released":
        return case.changed(saliency=torch.ones_like(case.saliency))
    saliency = torch.zeros_like(case.saliency)
    saliency[..., 3] = 1
    return case.changed(saliency=saliency)


def no_saliency(case: Case) -> Case:
    return case.changed(saliency=torch.zeros_like(case.saliency))


def equal_saliency(case: Case) -> Case:
    return case.changed(saliency=torch.full_like(case.saliency, 1 / case.saliency.shape[-1]))


def one_picture_of_nothing(case: Case) -> Case:
    """The first image is blank; the others are as they were."""
    tokens, positions = case.tokens.clone(), case.positions.clone()
    tokens[0], positions[0] = 1.0, 0.5
    return case.changed(tokens=tokens, positions=positions)


DEGENERATE = {
    "one token": [one_token],
    "one position": [one_position],
    "one of both": [one_token, one_position],
    "no tokens": [no_tokens],
    "opposite tokens": [opposite_tokens],
    "one salient token": [one_salient_token],
    "no saliency": [no_saliency],
    "equal saliency": [equal_saliency],
    "nothing to tell apart": [one_token, one_position, equal_saliency],
    "one picture of nothing": [one_picture_of_nothing],
}


@both
@pytest.mark.parametrize("weight", [0.0, 4.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DEGENERATE)
def test_never_nan(variant: str, weight: float, dtype: torch.dtype, name: str) -> None:
    for sharpness in (20.0, 200.0) if variant == "paper" else (20.0,):
        config = ClusterConfig(variant, 6, position_weight=weight, sharpness=sharpness)
        case = make_case(0, config)
        for spoil in DEGENERATE[name]:
            case = spoil(case)
        atol = {torch.float32: 1e-6, torch.float64: 1e-13}[dtype] * sharpness
        assert_sound(run(case.to(dtype)), config, atol)


@pytest.mark.parametrize(
    ("variant", "sharpness"),
    [("paper", 1.0), ("paper", 80.0), ("paper", 200.0), ("released", 1.0), ("released", 80.0)],
)
def test_never_nan_at_any_sharpness_in_float32(variant: str, sharpness: float) -> None:
    for weight in (0.0, 4.0, math.inf):
        config = ClusterConfig(variant, 12, position_weight=weight, sharpness=sharpness)
        for layout in ("random", "prototypes", "places"):
            case = make_case(1, config, layout=layout, disjoint=True, empty=True)
            assert_sound(run(case.to(torch.float32)), config, 2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@several
def test_one_position_tells_nothing(dtype: torch.dtype, seed: int) -> None:
    """Where all tokens of an image lie in one place, in `paper` only their contents count."""
    config = ClusterConfig(k_start=4)
    case = one_position(make_case(seed, config, layout="random")).to(dtype)
    at_origin = case.changed(positions=torch.zeros_like(case.positions))
    assert_same(run(case), run(at_origin), atol=1e-4 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("k_max", [None, 4])
def test_equal_costs_leave_the_largest_k(k_max: int | None) -> None:
    """Where all tokens are one, every step of the released code costs nothing."""
    config = ClusterConfig(variant="released", k_start=6, k_max=k_max, position_weight=0.0)
    case = make_case(0, config)
    tokens = torch.zeros_like(case.tokens)
    tokens[..., 2] = 1
    result = run(case.changed(tokens=tokens))
    assert (result.cost == 0).all()
    assert (result.count == (k_max or 6)).all()


@both
def test_half_precision_around_it_changes_nothing(variant: str) -> None:
    """It computes in float32 at least: under autocast, and on bfloat16 tokens."""
    case = make_case(0, ClusterConfig(variant=variant)).to(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = run(case)
    assert torch.equal(inside.assignments, run(case).assignments)
    rough = case.changed(tokens=case.tokens.bfloat16())
    as_float = case.changed(tokens=rough.tokens.float())
    assert run(rough).assignments.dtype == torch.float32
    assert_same(run(rough), run(as_float), atol=0)


@both
def test_as_many_seeds_as_tokens(variant: str) -> None:
    case = make_case(0, ClusterConfig(variant=variant, k_start=12), grid=(2, 3))
    assert_sound(run(case), case.config, 1e-12)


@pytest.mark.parametrize("views", [1, 2, 3])
def test_rows_of_the_paper_sum_to_one(views: int) -> None:
    case = make_case(0, ClusterConfig(), B=3, H=3, views=views, empty=True)
    assert_sound(run(case), case.config, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@several
def test_a_token_without_saliency_is_assigned_as_the_limit(dtype: torch.dtype, seed: int) -> None:
    """In `paper` its assignment is that of a token with next to no saliency."""
    case = make_case(seed, ClusterConfig(k_start=6), empty=True).to(dtype)
    assert (case.saliency == 0).any()
    least = 1e-30 if dtype == torch.float32 else 1e-200
    nearly = case.changed(saliency=case.saliency.clamp_min(least))
    atol = 1e-4 if dtype == torch.float32 else 1e-10
    assert_same(run(case), run(nearly), atol)
    result = run(case)
    for m, part in enumerate(case.saliency.chunk(2, dim=-1)):
        assert (result.assignments[m][part == 0].sum(-1) > 0.99).all()


# --- seeds -------------------------------------------------------------------------------------


def keys_of(number: int) -> Tensor:
    return torch.arange(number) * 7919 + 13


def test_first_seed_follows_the_probability() -> None:
    """Within five standard deviations of a binomial, over 20,000 samples and two heads."""
    samples, T = 20_000, 9
    weights = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8, 0.5], [9, 1, 1, 1, 1, 1, 1, 1, 0.1]])
    probability = weights / weights.sum(-1, keepdim=True)
    seeds = draw_seeds(probability.expand(samples, 2, T), 4, keys_of(samples))
    assert seeds.shape == (samples, 2, 4)
    for h in range(2):
        share = torch.bincount(seeds[:, h, 0], minlength=T) / samples
        spread = (probability[h] * (1 - probability[h]) / samples).sqrt()
        assert ((share - probability[h]).abs() < 5 * spread).all()


def test_second_seed_follows_the_probability_of_those_left() -> None:
    samples = 20_000
    p = torch.tensor([0.5, 0.2, 0.2, 0.1])
    seeds = draw_seeds(p.expand(samples, 1, 4), 2, keys_of(samples))[:, 0]
    share = torch.bincount(seeds[:, 0] * 4 + seeds[:, 1], minlength=16).reshape(4, 4) / samples
    expected = p[:, None] * p / (1 - p)[:, None] * (1 - torch.eye(4))
    spread = (expected * (1 - expected) / samples).sqrt()
    assert ((share - expected).abs() <= 5 * spread).all()


def test_heads_draw_independently() -> None:
    samples = 20_000
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    first = draw_seeds(p.expand(samples, 2, 4), 1, keys_of(samples))[..., 0]
    share = torch.bincount(first[:, 0] * 4 + first[:, 1], minlength=16).reshape(4, 4) / samples
    expected = p[:, None] * p
    assert ((share - expected).abs() < 5 * (expected * (1 - expected) / samples).sqrt()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 5, 12])
def test_seeds_are_distinct(dtype: torch.dtype, k: int) -> None:
    probability = torch.rand(300, 3, 12, generator=torch.manual_seed(0)).to(dtype) ** 8
    seeds = draw_seeds(probability / probability.sum(-1, keepdim=True), k, keys_of(300))
    assert seeds.dtype == torch.int64
    assert ((seeds >= 0) & (seeds < 12)).all()
    assert (seeds.sort(-1).values.diff(dim=-1) > 0).all()


def test_tokens_without_probability_are_drawn_last() -> None:
    probability = torch.tensor([0.0, 1e-30, 0.5, 0.0, 0.5 - 1e-3, 1e-3, 0.0, 0.0])
    possible = probability > 0
    enough = draw_seeds(probability.expand(2000, 1, 8), 4, keys_of(2000))
    assert possible[enough].all()
    short = draw_seeds(probability.expand(2000, 1, 8), 6, keys_of(2000))
    assert (possible[short].sum(-1) == 4).all()
    assert (short.sort(-1).values.diff(dim=-1) > 0).all()


def test_same_key_same_seeds_whatever_the_batch() -> None:
    probability = torch.rand(6, 2, 30, generator=torch.manual_seed(1)).softmax(-1)
    keys = keys_of(6)
    together = draw_seeds(probability, 8, keys)
    assert torch.equal(together, draw_seeds(probability, 8, keys))
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    assert torch.equal(together[order], draw_seeds(probability[order], 8, keys[order]))
    for b in range(6):
        assert torch.equal(
            together[b : b + 1], draw_seeds(probability[b : b + 1], 8, keys[b : b + 1])
        )
    assert not torch.equal(together, draw_seeds(probability, 8, keys + 1))


@both
def test_without_seeds_they_are_drawn_by_the_saliency(variant: str) -> None:
    case = make_case(0, ClusterConfig(variant=variant, k_start=6), B=4)
    keys = keys_of(4)
    probability = case.saliency if variant == "paper" else (case.saliency / 2).softmax(-1)
    seeds = draw_seeds(probability, 6, keys)
    assert_same(run(case, seeds=None, keys=keys), run(case, seeds=seeds), atol=1e-12)
    again = run(case, seeds=None, keys=keys)
    assert torch.equal(again.assignments, run(case, seeds=None, keys=keys).assignments)
    other = run(case, seeds=None, keys=keys + 1)
    assert not torch.equal(again.assignments, other.assignments)


def test_paper_drawn_by_keys_does_not_see_the_rest_of_the_batch() -> None:
    case = make_case(0, ClusterConfig(k_start=6), B=3)
    keys = keys_of(3)
    together = run(case, seeds=None, keys=keys)
    for b in range(3):
        alone = run(case.picture(b), seeds=None, keys=keys[b : b + 1])
        torch.testing.assert_close(
            alone.assignments[:, 0], together.assignments[:, b], rtol=0, atol=1e-12
        )


# --- on a GPU ----------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@both
@several
def test_gpu_never_waits_and_agrees_with_the_cpu(variant: str, seed: int) -> None:
    case = make_case(seed, ClusterConfig(variant=variant), B=3, H=3, grid=(4, 5), empty=True)
    oracle = cluster_paper if variant == "paper" else cluster_released
    gaps = oracle(*case.arguments, case.seeds, case.config)
    assert min(gaps.merge_gap.min(), gaps.count_gap.min(), gaps.argmax_gap.min()) > 1e-9
    on_gpu, keys = case.to("cuda"), keys_of(3).cuda()
    run(on_gpu)  # the first call may load libraries
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = run(on_gpu)
        drawn = run(on_gpu, seeds=None, keys=keys)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    for on_device, expected in (
        (result, run(case)),
        (drawn, run(case, seeds=None, keys=keys.cpu())),
    ):
        moved = Clusters(
            on_device.assignments.cpu(),
            on_device.valid.cpu(),
            on_device.cost.cpu(),
            on_device.count.cpu(),
        )
        assert_same(moved, expected, atol=1e-9)
