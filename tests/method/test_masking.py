"""Hidden patches: what the student sees, and the loss there against a loop."""

from dataclasses import replace

import pytest
import torch

from croc.method.masking import draw_mask
from croc.method.views import make_views
from croc.recipes import without_clusters
from tests.method.test_croc import make_canvases, prepared, variant


@pytest.mark.parametrize("clusters", [True, False])
def test_the_loss_and_its_center_equal_a_loop_over_hidden_patches(clusters: bool):
    config = variant("paper")
    config = replace(config, loss=replace(config.loss, mask=0.3))
    config = config if clusters else without_clusters(config)
    canvases = make_canvases(config)
    fabric, method, student, _ = prepared(config)
    center = method.centers["patch"].value.normal_(std=0.1).clone()
    views = make_views(canvases, config.views, 8)
    images, patches = len(canvases.keys), views.positions.shape[2]
    hidden = draw_mask(canvases.keys, patches, 0.3).hidden
    seen = {
        "teacher": method.teacher.backbone(views.pixels),
        "student": method.student.backbone(views.pixels, None, (hidden, method.student.mask_token)),
    }
    losses, outputs = [], []
    for view, image, n in hidden.nonzero().tolist():
        found = []
        for network in (method.teacher, method.student):
            cls, tokens = seen["teacher" if network is method.teacher else "student"]
            length = (cls[0, image].norm() + cls[1, image].norm()) / 2
            patch = tokens[view, image, n] / tokens[view, image, n].norm() * length
            found.append((network.head.clusters if clusters else network.head.images)(patch))
        outputs.append(found[0])
        teacher = ((found[0] - center) / 0.07).softmax(-1)
        losses.append(-(teacher * (found[1] / 0.1).log_softmax(-1)).sum())
    assert 0 < len(losses) < images * patches  # of two views, half of the images at most
    loss = torch.stack(losses).mean()
    (gradient,) = torch.autograd.grad(loss, method.student.mask_token, retain_graph=True)

    metrics = method.compute_gradients(fabric, student, canvases)
    torch.testing.assert_close(metrics["loss_patch"], loss.detach(), rtol=1e-5, atol=1e-5)
    expected = 0.9 * center + 0.1 * torch.stack(outputs).mean(0)
    torch.testing.assert_close(method.centers["patch"].value, expected)
    total = metrics["loss_image"] + metrics["loss_patch"] + metrics.get("loss_cluster", 0)
    torch.testing.assert_close(metrics["loss"], total)
    assert gradient.any()
    assert method.student.mask_token.grad.any()


def test_what_is_hidden_cannot_be_seen():
    config = variant("paper")
    config = replace(config, loss=replace(config.loss, mask=0.5))
    canvases = make_canvases(config)
    _, method, _, _ = prepared(config)
    views = make_views(canvases, config.views, 8)
    hidden = draw_mask(canvases.keys, views.positions.shape[2], 0.5).hidden
    side = views.pixels.shape[-1] // 8
    pixels = hidden.unflatten(2, (side, side)).repeat_interleave(8, 2).repeat_interleave(8, 3)
    noise = torch.where(pixels[:, :, None], torch.randn_like(views.pixels), views.pixels)
    tokens = [
        method.student.backbone(each, None, (hidden, method.student.mask_token))
        for each in (views.pixels, noise)
    ]
    assert hidden.any()
    assert torch.equal(tokens[0][1], tokens[1][1])
