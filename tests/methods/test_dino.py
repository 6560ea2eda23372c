"""DINO against loops over images, and against CrOC without its clusters."""

from dataclasses import replace

import pytest
import torch
from lightning.fabric import Fabric

from croc.method.croc import Croc
from croc.method.optim import make_optimizer
from croc.method.views import make_views
from croc.recipes import without_clusters
from croc.train.loop import pretrain
from tests.methods.test_croc import SETTINGS, make_canvases
from tests.test_train import told
from tests.tiny import tiny_config, tiny_dino


def test_a_step_equals_the_loops():
    config = tiny_dino()
    config = replace(config, model=replace(config.model, drop_path=0.0))
    torch.manual_seed(0)
    fabric = Fabric(accelerator="cpu", devices=1)
    method = Croc(config, torch.device("cpu"))
    with torch.no_grad():  # a student unlike its teacher, a centre unlike zero
        for parameter in method.student.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        method.image_center.value.normal_(std=0.1)
    canvases = make_canvases(tiny_config())
    views = make_views(canvases, config.views, 8)
    center = method.image_center.value.clone()
    losses, entropies, outputs = [], [], []
    for image in range(len(canvases.keys)):
        pair = views.pixels[:, image : image + 1]
        t = method.teacher.head.images(method.teacher.backbone(pair)[0])[:, 0]
        s = method.student.head.images(method.student.backbone(pair)[0])[:, 0]
        outputs += [t[0], t[1]]
        p = [((output - center) / 0.07).softmax(-1) for output in t]
        q = [(output / 0.1).log_softmax(-1) for output in s]
        losses.append(-((p[0] * q[1]).sum() + (p[1] * q[0]).sum()) / 2)
        entropies.append(-sum((each * each.log()).sum() for each in p) / 2)
    loss = torch.stack(losses).mean()
    loss.backward()
    parameters = dict(method.student.named_parameters())
    expected = {n: p.grad.clone() for n, p in parameters.items() if p.grad is not None}
    method.student.zero_grad()

    student, _ = fabric.setup(
        method.student.train(), make_optimizer(method.student, torch.device("cpu"))
    )
    method.before_gradients(SETTINGS)
    metrics = method.accumulate(fabric, student, canvases)
    torch.testing.assert_close(metrics["loss"], loss.detach())
    torch.testing.assert_close(metrics["entropy_image"], torch.stack(entropies).mean().detach())
    mean = torch.stack(outputs).mean(dim=0)
    torch.testing.assert_close(method.image_center.value, 0.9 * center + 0.1 * mean)
    assert len(expected) > 20
    for name, gradient in expected.items():
        torch.testing.assert_close(parameters[name].grad, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("centring", ["mean", "sinkhorn"])
def test_croc_with_alpha_zero_is_dino_to_the_last_digit(tmp_path, centring: str):
    config = tiny_config(tmp_path / "croc")
    config = replace(config, loss=replace(config.loss, alpha=0.0, centring=centring))
    dino = without_clusters(replace(config, run=replace(config.run, folder=str(tmp_path / "dino"))))
    runs = [told(pretrain(each, "tiny")) for each in (config, dino)]
    assert len(runs[1]) == 9
    for croc_line, dino_line in zip(*runs, strict=True):
        assert dino_line["loss"] == dino_line["loss_image"]
        for name, value in dino_line.items():
            assert croc_line[name] == value, name
