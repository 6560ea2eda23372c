"""Heads, losses, centers and MAE against loops."""

import math
from itertools import permutations

import numpy as np
import torch

from croc.config import HeadConfig
from croc.fabric import Fabric
from croc.method.backbone import sincos_positions
from croc.method.heads import ProjectionHead
from croc.method.losses import Center, cross_view_entropy, sinkhorn_center, teacher_probabilities
from croc.method.mae import Mae, MaeNetwork, draw_mask, reconstruction_error
from croc.method.views import make_views
from tests.method.test_croc import SETTINGS, make_canvases
from tests.method.test_views import sample_keys
from tests.tiny import tiny_config, tiny_mae

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


def test_masks_are_uniform_with_the_requested_share():
    visible, hidden = draw_mask(sample_keys(4000), 16, 0.75)
    assert visible.shape == (4000, 4)
    assert (hidden.sum(dim=1) == 12).all()
    assert not hidden.gather(1, visible).any()
    assert (hidden.float().mean(dim=0) - 0.75).abs().max() < 0.03
    assert draw_mask(sample_keys(2), 196, 0.75)[0].shape == (2, 49)
    batch = draw_mask(sample_keys(7), 16, 0.75)[1]
    assert torch.equal(batch[3:4], draw_mask(sample_keys(7)[3:4], 16, 0.75)[1])  # keyed by sample


def test_error_equals_the_loops():
    torch.manual_seed(0)
    predicted, target = torch.randn(2, 3, 5, 12).unbind()
    hidden = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 1, 0], [1, 1, 1, 1, 1]]).bool()
    for normalize in (True, False):
        for image, error in enumerate(reconstruction_error(predicted, target, hidden, normalize)):
            errors = []
            for patch in range(5):
                if hidden[image, patch]:
                    x, y = (pixels[image, patch].double().numpy() for pixels in (predicted, target))
                    if normalize:
                        y = (y - y.mean()) / np.sqrt(y.var(ddof=1) + 1e-6)
                    errors.append(((x - y) ** 2).mean())
            assert math.isclose(error, np.mean(errors), rel_tol=1e-5)


def test_positions_equal_the_formula():
    positions = sincos_positions(3, 16)
    for y in range(3):
        for x in range(3):
            for i in range(4):
                rate = 10_000 ** (-i / 4)
                waves = [wave(c * rate) for c in (x, y) for wave in (math.sin, math.cos)]
                values = [float(positions[3 * y + x, i + 4 * part]) for part in range(4)]
                np.testing.assert_allclose(values, waves, atol=1e-6)


def test_network_equals_mae_with_shuffling():
    """As in the paper: visible patches first, mask tokens appended, then the order restored."""
    torch.manual_seed(0)
    config = tiny_mae()
    network = MaeNetwork(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    pixels, keys = torch.randn(4, 3, 32, 32), sample_keys(4)
    visible, _ = draw_mask(keys, 16, 0.75)
    order = [[*row, *(n for n in range(16) if n not in row)] for row in visible.tolist()]
    back = torch.tensor(order).argsort(dim=1)
    vit, decoder, every = network.backbone.vit, network.decoder, torch.arange(4)[:, None]

    x = vit.patch_embed(pixels).flatten(1, 2) + vit.pos_embed[:, 1:]
    first = (vit.cls_token + vit.pos_embed[:, :1]).expand(4, -1, -1)
    x = decoder.embed(vit.norm(vit.blocks(torch.cat([first, x[every, visible]], dim=1))))
    masked = torch.cat([x[:, 1:], decoder.mask_token.expand(4, 12, -1)], dim=1)[every, back]
    positions = torch.cat([torch.zeros(1, 32), sincos_positions(4, 32)])
    x = torch.cat([x[:, :1], masked], dim=1) + positions
    predicted = decoder.paint(decoder.norm(decoder.blocks(x)))[:, 1:]
    target = torch.einsum("bchpwq->bhwpqc", pixels.reshape(4, 3, 4, 8, 4, 8)).reshape(4, 16, 192)
    target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6) ** 0.5
    hidden = torch.cat([torch.zeros(4, 4), torch.ones(4, 12)], dim=1)[every, back]
    expected = ((predicted - target).square().mean(dim=-1) * hidden).sum(dim=1) / 12
    torch.testing.assert_close(network(pixels, keys), expected)


def test_step_is_the_mean_error_of_the_images():
    config = tiny_mae()
    torch.manual_seed(0)
    method = Mae(config, torch.device("cpu"))
    canvases = make_canvases(tiny_config())
    fabric = Fabric(accelerator="cpu", devices=1)
    views = make_views(canvases, config.views, 8, views=1)
    expected = method.student(views.pixels[0], canvases.sample_keys).mean()
    expected.backward()
    gradient = method.student.decoder.mask_token.grad.clone()
    method.student.zero_grad()
    method.micro_batch_size = 4  # of 6
    method.set_schedule(SETTINGS)
    metrics = method.compute_gradients(fabric, fabric.setup(method.student), canvases)
    torch.testing.assert_close(metrics["loss"], expected.detach())
    torch.testing.assert_close(method.student.decoder.mask_token.grad, gradient)
    assert method.student.backbone.vit.pos_embed.grad is None
