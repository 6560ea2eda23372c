"""The steps of CrOC and DINO, also with masked patches, against loops over images and clusters."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import croc.method.croc as step_module
from croc.config import CrocConfig, DinoConfig, PretrainConfig, RunConfig
from croc.data.loader import make_loader
from croc.data.sources import open_source
from croc.fabric import Fabric
from croc.method.croc import Croc
from croc.method.masking import draw_mask
from croc.method.types import Canvases, ScheduleState
from croc.method.views import make_views
from croc.recipes import without_clusters
from croc.train.distributed import make_fabric
from croc.train.loop import Trainer, pretrain, schedule_at
from tests.kernels.interpreter import forbid_synchronization
from tests.tiny import tiny_config
from tests.train import metrics_of

SETTINGS = ScheduleState(step=1, total_steps=9, epoch=1, lr=1e-3, weight_decay=0.1)


def variant(name: str, **cluster: object) -> CrocConfig:
    config = tiny_config()
    changed = replace(config.cluster, variant=name, **cluster)
    return replace(config, cluster=changed, model=replace(config.model, drop_path=0.0))


def make_canvases(config: PretrainConfig, batch: int = 6) -> Canvases:
    source = open_source(config.data, 0)
    steps = {"seed": 0, "first_step": 0, "last_step": 1}
    return next(iter(make_loader(source, canvas_px=config.data.max_side_px, batch=batch, **steps)))


def prepare(config: DinoConfig) -> tuple[Fabric, Croc, Any]:
    torch.manual_seed(0)
    fabric = Fabric(accelerator="cpu", devices=1)
    method = Croc(config, torch.device("cpu"))
    with torch.no_grad():  # student and teacher differ, centers are not zero
        for parameter in method.student.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        method.centers["image"].value.normal_(std=0.1)
        if "cluster" in method.centers:
            method.centers["cluster"].value.normal_(std=0.1)
    method.set_schedule(SETTINGS)
    return fabric, method, fabric.setup(method.student).train()


def naive_losses(config: CrocConfig, method: Croc, canvases: Canvases) -> tuple[Tensor, ...]:
    """Both losses, both new centers and the teacher's entropy, cluster by cluster."""
    views = make_views(canvases, config.views, 8)
    temperature = torch.tensor(0.07)  # the tiny run's warm-up is over in epoch 1
    clusters = method.compute_targets(views, canvases.sample_keys).clusters
    networks = {"teacher": method.teacher, "student": method.student}
    tokens = {name: network.backbone(views.pixels) for name, network in networks.items()}

    def outputs(name: str, view: int, image: int, head: int, k: int) -> Tensor:
        cls, patches = tokens[name]
        centroid = torch.zeros(patches.shape[-1])
        for n in range(patches.shape[2]):
            weight = clusters.assignments[view, image, head, n, k]
            centroid = centroid + weight * patches[view, image, n]
        norms = cls.norm(dim=-1)
        length = norms.mean() if config.cluster.variant == "released" else norms[:, image].mean()
        centroid = centroid / centroid.norm() * length
        return networks[name].head.clusters(centroid)

    def cross_entropy(t: Tensor, s: Tensor, center: Tensor) -> Tensor:
        return -(((t - center) / temperature).softmax(-1) * (s / 0.1).log_softmax(-1)).sum()

    image_losses, per_image, per_cluster, entropies = [], [], [], []
    image_outputs, cluster_outputs = [], []
    for image in range(len(canvases.sample_keys)):
        t, s = ([networks[n].head.images(tokens[n][0][v, image]) for v in (0, 1)] for n in networks)
        image_outputs += t
        center = method.centers["image"].value
        pair = cross_entropy(t[0], s[1], center) + cross_entropy(t[1], s[0], center)
        image_losses.append(pair / 2)
        for output in t:
            p = ((output - center) / temperature).softmax(-1)
            entropies.append(-(p * p.log()).sum())
        losses = []
        for head in range(clusters.valid.shape[1]):
            for k in range(clusters.valid.shape[2]):
                if not clusters.valid[image, head, k]:
                    continue
                t, s = ([outputs(n, v, image, head, k) for v in (0, 1)] for n in networks)
                cluster_outputs += t
                center = method.centers["cluster"].value
                pair = cross_entropy(t[0], s[1], center) + cross_entropy(t[1], s[0], center)
                losses.append(pair / 2)
        if losses:
            per_image.append(torch.stack(losses).mean())
            per_cluster += losses
    dense = per_cluster if config.cluster.variant == "released" else per_image
    return (
        torch.stack(image_losses).mean(),
        torch.stack(dense).mean(),
        0.9 * method.centers["image"].value + 0.1 * torch.stack(image_outputs).mean(0),
        0.9 * method.centers["cluster"].value + 0.1 * torch.stack(cluster_outputs).mean(0),
        torch.stack(entropies).mean(),
    )


@pytest.mark.parametrize("name", ["paper", "released"])
def test_step_equals_the_loops(name: str):
    config = variant(name)
    canvases = make_canvases(config)
    fabric, method, student = prepare(config)
    image, cluster, image_center, cluster_center, entropy = naive_losses(config, method, canvases)
    (image + cluster).backward()
    expected = {
        n: p.grad.clone() for n, p in method.student.named_parameters() if p.grad is not None
    }
    method.student.zero_grad()

    method.set_schedule(SETTINGS)
    metrics = method.compute_gradients(fabric, student, canvases)
    torch.testing.assert_close(metrics["loss_image"], image.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(metrics["loss_cluster"], cluster.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(metrics["entropy_image"], entropy.detach())
    torch.testing.assert_close(method.centers["image"].value, image_center)
    torch.testing.assert_close(method.centers["cluster"].value, cluster_center)
    for n, parameter in method.student.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[n], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["paper", "released"])
@pytest.mark.parametrize("kept", [0, 1])
def test_one_valid_cluster_or_none_gives_finite_losses(name: str, kept: int, monkeypatch):
    """All other clusters of the batch are pruned."""
    real = step_module.cluster

    def pruned(*arguments, **options):
        clusters = real(*arguments, **options)
        valid = torch.zeros_like(clusters.valid)
        valid.view(-1)[clusters.valid.view(-1).nonzero()[:kept, 0]] = True
        return replace(clusters, valid=valid)

    monkeypatch.setattr(step_module, "cluster", pruned)
    config = variant(name)
    trainer = Trainer(Fabric(accelerator="cpu", devices=1), config)
    method: Any = trainer.method
    before = method.centers["cluster"].value.clone()
    metrics = trainer.step(make_canvases(config), SETTINGS)
    assert all(parameter.isfinite().all() for parameter in method.student.parameters())
    assert all(value.isfinite() for value in metrics.values())
    assert (metrics["loss_cluster"] > 0) == (metrics["valid_fraction"] > 0) == (kept > 0)
    assert torch.equal(before, method.centers["cluster"].value) == (kept == 0)


def train_on_gpu(name: str, compiles: bool, steps: int, checked_from: int) -> dict[str, Tensor]:
    """Metrics of the last step; from step `checked_from`, synchronization is an error."""
    config = replace(tiny_config(), cluster=variant(name).cluster)
    run = RunConfig(accelerator="cuda", devices=1, compile=compiles, cuda_graph=False)
    fabric = make_fabric(run)
    trainer = Trainer(fabric, replace(config, run=run))
    source = open_source(config.data, 0)
    options = {"seed": 0, "first_step": 0, "last_step": steps}
    loader = make_loader(source, canvas_px=40, batch=8, device=fabric.device, **options)
    metrics: dict[str, Tensor] = {}
    for step, canvases in enumerate(list(loader)):
        schedule = schedule_at(step, config.optim, 3)
        torch.cuda.synchronize()
        with forbid_synchronization() if step >= checked_from else nullcontext():
            metrics = trainer.step(canvases, schedule)
    return {name: value.cpu() for name, value in metrics.items()}


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["paper", "released"])
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.compiled)])
def test_step_never_synchronizes_with_the_gpu(name: str, compiles: bool):
    metrics = train_on_gpu(name, compiles, steps=6, checked_from=4)
    assert all(value.isfinite() for value in metrics.values())


@pytest.mark.cuda
@pytest.mark.compiled
@pytest.mark.parametrize("name", ["paper", "released"])
def test_compiled_steps_equal_eager_ones(name: str):
    compiled, eager = (train_on_gpu(name, flag, 2, checked_from=9) for flag in (True, False))
    for metric, value in eager.items():
        torch.testing.assert_close(compiled[metric], value, rtol=2e-2, atol=2e-2)


def test_croc_with_alpha_zero_equals_dino(tmp_path: Path):
    config = tiny_config(tmp_path / "croc", report=False, stop_after_steps=5)
    config = replace(config, loss=replace(config.loss, alpha=0.0))
    dino = without_clusters(replace(config, run=replace(config.run, folder=str(tmp_path / "dino"))))
    runs = [metrics_of(pretrain(each, "tiny")) for each in (config, dino)]
    assert len(runs[1]) == 5
    for croc_line, dino_line in zip(*runs, strict=True):
        assert dino_line["loss"] == dino_line["loss_image"]
        for name, value in dino_line.items():
            assert croc_line[name] == value, name


@pytest.mark.parametrize("clusters", [True, False])
def test_masked_patch_loss_and_center_equal_the_loop(clusters: bool):
    config = variant("paper")
    config = replace(config, loss=replace(config.loss, mask_ratio=0.3))
    config = config if clusters else without_clusters(config)
    canvases = make_canvases(config)
    fabric, method, student = prepare(config)
    center = method.centers["patch"].value.normal_(std=0.1).clone()
    views = make_views(canvases, config.views, 8)
    images, patches = len(canvases.sample_keys), views.positions.shape[2]
    hidden = draw_mask(canvases.sample_keys, patches, 0.3).hidden
    mask = hidden, method.student.mask_token
    networks = (
        (method.teacher, *method.teacher.backbone(views.pixels)),
        (method.student, *method.student.backbone(views.pixels, None, mask)),
    )
    losses, outputs = [], []
    for view, image, n in hidden.nonzero().tolist():
        pair = []
        for network, cls, tokens in networks:
            length = (cls[0, image].norm() + cls[1, image].norm()) / 2
            patch = tokens[view, image, n] / tokens[view, image, n].norm() * length
            pair.append((network.head.clusters if clusters else network.head.images)(patch))
        outputs.append(pair[0])
        teacher = ((pair[0] - center) / 0.07).softmax(-1)
        losses.append(-(teacher * (pair[1] / 0.1).log_softmax(-1)).sum())
    assert 0 < len(losses) < images * patches  # at most half of the images are masked
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


def test_masked_pixels_do_not_affect_the_tokens():
    config = variant("paper")
    config = replace(config, loss=replace(config.loss, mask_ratio=0.5))
    canvases = make_canvases(config)
    _, method, _ = prepare(config)
    views = make_views(canvases, config.views, 8)
    hidden = draw_mask(canvases.sample_keys, views.positions.shape[2], 0.5).hidden
    side = views.pixels.shape[-1] // 8
    pixels = hidden.unflatten(2, (side, side)).repeat_interleave(8, 2).repeat_interleave(8, 3)
    noise = torch.where(pixels[:, :, None], torch.randn_like(views.pixels), views.pixels)
    tokens = [
        method.student.backbone(each, None, (hidden, method.student.mask_token))
        for each in (views.pixels, noise)
    ]
    assert hidden.any()
    assert torch.equal(tokens[0][1], tokens[1][1])
