"""MAE against loops over images and patches."""

import math

import numpy as np
import torch

from croc.fabric import Fabric
from croc.method.backbone import sincos_positions
from croc.method.mae import Mae, MaeNetwork, draw_mask, reconstruction_error
from croc.method.views import make_views
from tests.method.test_croc import SETTINGS, make_canvases
from tests.method.test_randomness import sample_keys
from tests.tiny import tiny_config, tiny_mae


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
