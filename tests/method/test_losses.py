"""Heads, losses and centers against loops."""

import math

import torch
from torch.nn.functional import kl_div

from croc.config import HeadConfig
from croc.method.heads import ProjectionHead, Prototypes
from croc.method.losses import (
    Center,
    cross_view_entropy,
    entropy,
    sinkhorn_center,
    teacher_probabilities,
)

CONFIG = HeadConfig(hidden=32, bottleneck=8, image_prototypes=20, cluster_prototypes=12)


def test_outputs_are_weight_normalised_products_of_unit_features():
    head = ProjectionHead(16, CONFIG)
    x = torch.randn(5, 16)
    features = head.trunk(x)
    features = features / features.norm(dim=-1, keepdim=True)
    for output, prototypes in ((head.images(x), head.image), (head.clusters(x), head.cluster)):
        directions = prototypes.directions / prototypes.directions.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(output, features @ (prototypes.lengths * directions).T)
    assert head.images(x).shape == (5, 20)
    assert head.clusters(x).shape == (5, 12)


def test_prototypes_equal_torchs_weight_norm():
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 20, bias=False))
    prototypes = Prototypes(8, 20, unit=False)
    with torch.no_grad():
        prototypes.lengths.copy_(torch.rand(20, 1) + 0.5)
        layer.parametrizations.weight.original0.copy_(prototypes.lengths)
        layer.parametrizations.weight.original1.copy_(prototypes.directions)
    x = torch.randn(3, 8)
    torch.testing.assert_close(prototypes(x), layer(x))


def test_lengths_start_at_one_and_stay_if_asked():
    assert torch.equal(ProjectionHead(16, CONFIG).image.lengths, torch.ones(20, 1))
    assert ProjectionHead(16, CONFIG).image.lengths.requires_grad
    assert not Prototypes(8, 20, unit=True).lengths.requires_grad


def test_the_trunk_is_dinos():
    head = ProjectionHead(384, HeadConfig(image_prototypes=4, cluster_prototypes=4))
    kinds = [type(layer).__name__ for layer in head.trunk]
    assert kinds == ["Linear", "GELU", "Linear", "GELU", "Linear"]
    shapes = [layer.weight.shape for layer in head.trunk if hasattr(layer, "weight")]
    assert shapes == [(2048, 384), (2048, 2048), (256, 2048)]


def naive_cross_entropy(teacher, student, temperature):
    views, items, prototypes = teacher.shape
    losses = []
    for item in range(items):
        terms = []
        for i in range(views):
            for j in range(views):
                if i == j:
                    continue
                scaled = [student[j, item, p].item() / temperature for p in range(prototypes)]
                total = sum(math.exp(s) for s in scaled)
                terms.append(
                    -sum(
                        teacher[i, item, p].item() * math.log(math.exp(scaled[p]) / total)
                        for p in range(prototypes)
                    )
                )
        losses.append(sum(terms) / len(terms))
    return torch.tensor(losses)


def test_cross_view_entropy_equals_the_loops():
    generator = torch.Generator().manual_seed(0)
    for views in (2, 3):
        teacher = torch.randn(views, 4, 9, generator=generator).softmax(dim=-1)
        student = torch.randn(views, 4, 9, generator=generator)
        got = cross_view_entropy(teacher, student, 0.5)
        torch.testing.assert_close(got, naive_cross_entropy(teacher, student, 0.5))


def test_cross_entropy_is_entropy_plus_divergence():
    teacher = torch.rand(2, 3, 5).softmax(dim=-1)
    student = torch.randn(2, 3, 5)
    log = (student / 0.1).log_softmax(dim=-1)
    crossed = [kl_div(log[j], teacher[i], reduction="none").sum(-1) for i, j in ((0, 1), (1, 0))]
    expected = entropy(teacher).mean(dim=0) + torch.stack(crossed).mean(dim=0)
    torch.testing.assert_close(cross_view_entropy(teacher, student, 0.1), expected)


def test_center_is_a_moving_mean_and_stays_when_nothing_is_counted():
    center = Center(3, momentum=0.9)
    center.update(torch.tensor([2.0, 4.0, -6.0]), torch.tensor(2.0))
    torch.testing.assert_close(center.value, torch.tensor([0.1, 0.2, -0.3]))
    before = center.value.clone()
    center.update(torch.zeros(3), torch.tensor(0.0))
    assert torch.equal(center.value, before)


def test_centring_and_sharpening():
    logits, center = torch.randn(4, 6), torch.randn(6)
    got = teacher_probabilities(logits, center, torch.tensor(0.07))
    shifted = ((logits - center) / 0.07).exp()
    torch.testing.assert_close(got, shifted / shifted.sum(-1, keepdim=True))


def naive_sinkhorn(logits, weights, temperature, iterations):
    """Scale items to their weight, then prototypes to equal shares; items come last."""
    plan = (logits.double() / temperature).exp()
    weights = weights.double() / weights.sum()
    for _ in range(iterations):
        for item, weight in enumerate(weights):
            plan[item] *= weight / plan[item].sum()
        for p in range(plan.shape[1]):
            plan[:, p] *= 1 / plan.shape[1] / plan[:, p].sum()
    return plan / plan.sum(dim=1, keepdim=True)


def test_sinkhorn_centring_equals_the_scalings():
    logits, weights = torch.randn(2, 10, 5), torch.rand(2, 10)
    temperature = torch.tensor(0.1)
    center = sinkhorn_center(logits, weights, temperature, iterations=3)
    got = teacher_probabilities(logits, center, temperature).flatten(0, 1)
    expected = naive_sinkhorn(logits.flatten(0, 1), weights.flatten(), 0.1, 3)
    torch.testing.assert_close(got, expected.float(), rtol=1e-3, atol=1e-5)


def test_sinkhorn_centring_uses_all_prototypes_alike():
    logits, weights = torch.randn(40, 5) + 3 * torch.arange(5), (torch.arange(40) < 30).float()
    temperature = torch.tensor(0.5)
    center = sinkhorn_center(logits, weights, temperature, iterations=100)
    counted = teacher_probabilities(logits, center, temperature)[:30]
    torch.testing.assert_close(counted.mean(dim=0), torch.full((5,), 0.2), rtol=1e-3, atol=1e-3)


def test_two_views_are_the_papers_half_sum():
    teacher = torch.rand(2, 3, 5).softmax(dim=-1)
    student = torch.randn(2, 3, 5)
    log = (student / 0.1).log_softmax(dim=-1)
    half = -((teacher[0] * log[1]).sum(-1) + (teacher[1] * log[0]).sum(-1)) / 2
    torch.testing.assert_close(cross_view_entropy(teacher, student, 0.1), half)


def test_entropy_is_log_p_for_uniform_and_zero_for_certain():
    uniform, certain = torch.full((8,), 1 / 8), torch.eye(8)[3]
    torch.testing.assert_close(entropy(uniform), torch.tensor(math.log(8)))
    assert entropy(certain) == 0


def test_sinkhorn_centring_of_nothing_is_finite():
    logits = torch.randn(4, 5)
    assert sinkhorn_center(logits, torch.zeros(4), torch.tensor(0.02)).isfinite().all()
