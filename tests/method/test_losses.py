"""Heads, losses and centers against loops."""

import math
from itertools import permutations

import torch

from croc.config import HeadConfig
from croc.method.heads import ProjectionHead
from croc.method.losses import Center, cross_view_entropy, sinkhorn_center, teacher_probabilities

CONFIG = HeadConfig(hidden=32, bottleneck=8, image_prototypes=20, cluster_prototypes=12)


def test_head_equals_torch_weight_norm_of_unit_features():
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 20, bias=False))
    head = ProjectionHead(16, CONFIG)
    prototypes = head.image
    with torch.no_grad():
        prototypes.lengths.copy_(torch.rand(20, 1) + 0.5)
        layer.parametrizations.weight.original0.copy_(prototypes.lengths)
        layer.parametrizations.weight.original1.copy_(prototypes.directions)
    x = torch.randn(3, 16)
    features = head.trunk(x)
    expected = layer(features / features.norm(dim=-1, keepdim=True))
    torch.testing.assert_close(head.images(x), expected)


def naive_cross_entropy(teacher, student, temperature):
    losses = []
    for item in range(teacher.shape[1]):
        terms = []
        for i, j in permutations(range(len(teacher)), 2):
            powers = [math.exp(x / temperature) for x in student[j, item].tolist()]
            pairs = zip(teacher[i, item].tolist(), powers)
            terms.append(-sum(p * math.log(power / sum(powers)) for p, power in pairs))
        losses.append(sum(terms) / len(terms))
    return torch.tensor(losses)


def test_cross_view_entropy_equals_the_loops():
    generator = torch.Generator().manual_seed(0)
    for views in (2, 3):
        teacher = torch.randn(views, 4, 9, generator=generator).softmax(dim=-1)
        student = torch.randn(views, 4, 9, generator=generator)
        losses = cross_view_entropy(teacher, student, 0.5)
        torch.testing.assert_close(losses, naive_cross_entropy(teacher, student, 0.5))


def test_center_is_a_moving_average_and_ignores_empty_or_non_finite_updates():
    center = Center(3, momentum=0.9)
    center.update(torch.tensor([2.0, 4.0, -6.0]), torch.tensor(2.0))
    torch.testing.assert_close(center.value, torch.tensor([0.1, 0.2, -0.3]))
    before = center.value.clone()
    center.update(torch.zeros(3), torch.tensor(0.0))
    center.update(torch.tensor([math.nan, math.inf, -0.6]), torch.tensor(2.0))
    torch.testing.assert_close(center.value, before)


def naive_sinkhorn(logits, weights, temperature, iterations):
    """Scale items to their weight, then prototypes to equal shares; normalize items last."""
    plan = (logits.double() / temperature).exp()
    weights = weights.double() / weights.sum()
    for _ in range(iterations):
        for item, weight in enumerate(weights):
            plan[item] *= weight / plan[item].sum()
        for p in range(plan.shape[1]):
            plan[:, p] *= 1 / plan.shape[1] / plan[:, p].sum()
    return plan / plan.sum(dim=1, keepdim=True)


def test_sinkhorn_centering_equals_the_loops():
    logits, weights = torch.randn(2, 10, 5), torch.rand(2, 10)
    temperature = torch.tensor(0.1)
    parts = list(logits.split([3, 7], dim=1)), list(weights.split([3, 7], dim=1))
    center = sinkhorn_center(*parts, temperature, iterations=3)
    probabilities = teacher_probabilities(logits, center, temperature).flatten(0, 1)
    expected = naive_sinkhorn(logits.flatten(0, 1), weights.flatten(), 0.1, 3)
    torch.testing.assert_close(probabilities, expected.float(), rtol=1e-3, atol=1e-5)


def test_sinkhorn_centering_uses_all_prototypes_equally():
    logits, weights = torch.randn(40, 5) + 3 * torch.arange(5), (torch.arange(40) < 30).float()
    temperature = torch.tensor(0.5)
    center = sinkhorn_center([logits], [weights], temperature, iterations=100)
    counted = teacher_probabilities(logits, center, temperature)[:30]
    torch.testing.assert_close(counted.mean(dim=0), torch.full((5,), 0.2), rtol=1e-3, atol=1e-3)
    without_weights = sinkhorn_center([logits], [torch.zeros(40)], torch.tensor(0.02))
    assert without_weights.isfinite().all()
