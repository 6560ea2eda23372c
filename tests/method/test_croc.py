"""The steps of CrOC and DINO against loops over images, heads and clusters."""

from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor

from croc.config import CrocConfig, RunConfig
from croc.data.loader import make_loader
from croc.data.sources import open_source
from croc.method.build import build_method
from croc.method.croc import Croc
from croc.method.losses import teacher_probabilities
from croc.method.optim import Guard, make_optimizer
from croc.method.types import Canvases, Settings
from croc.method.views import make_views
from croc.recipes import without_clusters
from croc.train.cuda_graph import Gradients
from croc.train.distributed import make_fabric
from croc.train.loop import pretrain, settings_at, train_step
from tests.tiny import tiny_config, tiny_dino
from tests.train import metrics_of

SETTINGS = Settings(step=1, total_steps=9, epoch=1, rate=1e-3, weight_decay=0.1)


def variant(name: str, **cluster: object) -> CrocConfig:
    config = tiny_config()
    changed = replace(config.cluster, variant=name, **cluster)  # pyright: ignore[reportArgumentType]
    return replace(config, cluster=changed, model=replace(config.model, drop_path=0.0))


def make_canvases(config: CrocConfig, batch: int = 6) -> Canvases:
    source = open_source(config.data, 0)
    loader = make_loader(
        source, canvas_px=config.data.canvas_px, batch=batch, seed=0, first_step=0, last_step=1
    )
    return next(iter(loader))


def prepared(config: CrocConfig) -> tuple[Fabric, Croc, torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    fabric = Fabric(accelerator="cpu", devices=1)
    method = Croc(config, torch.device("cpu"))
    with torch.no_grad():  # a student unlike its teacher, centres unlike zero
        for parameter in method.student.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        method.image_center.value.normal_(std=0.1)
        method.cluster_center.value.normal_(std=0.1)
    method.set_schedule(SETTINGS)
    optimizer = make_optimizer(method.student, torch.device("cpu"))
    student, optimizer = fabric.setup(method.student, optimizer)
    student.train()
    return fabric, method, student, optimizer


def naive_losses(
    config: CrocConfig, method: Croc, canvases: Canvases
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both losses and both new centres, cluster by cluster."""
    views = make_views(canvases, config.views, 8)
    temperature = torch.tensor(0.07)  # the tiny run's warm-up is over in epoch 1
    found = method.teach(views, canvases.keys).dense.clusters
    networks = {"teacher": method.teacher, "student": method.student}
    tokens = {name: network.backbone(views.pixels) for name, network in networks.items()}

    def outputs(name: str, view: int, image: int, head: int, k: int) -> Tensor:
        cls, patches = tokens[name]
        centroid = torch.zeros(patches.shape[-1])
        for n in range(patches.shape[2]):
            weight = found.assignments[view, image, head, n, k]
            centroid = centroid + weight * patches[view, image, n]
        norms = cls.norm(dim=-1)
        length = norms.mean() if config.cluster.variant == "released" else norms[:, image].mean()
        centroid = centroid / centroid.norm() * length
        return networks[name].head.clusters(centroid)

    def cross_entropy(t: Tensor, s: Tensor, center: Tensor) -> Tensor:
        return -(((t - center) / temperature).softmax(-1) * (s / 0.1).log_softmax(-1)).sum()

    image_losses, per_image, everything, image_outputs, cluster_outputs = [], [], [], [], []
    for image in range(len(canvases.keys)):
        t, s = ([networks[n].head.images(tokens[n][0][v, image]) for v in (0, 1)] for n in networks)
        image_outputs += t
        center = method.image_center.value
        image_losses.append(
            (cross_entropy(t[0], s[1], center) + cross_entropy(t[1], s[0], center)) / 2
        )
        mine = []
        for head in range(found.valid.shape[1]):
            for k in range(found.valid.shape[2]):
                if not found.valid[image, head, k]:
                    continue
                t, s = ([outputs(n, v, image, head, k) for v in (0, 1)] for n in networks)
                cluster_outputs += t
                center = method.cluster_center.value
                pair = cross_entropy(t[0], s[1], center) + cross_entropy(t[1], s[0], center)
                mine.append(pair / 2)
        if mine:
            per_image.append(torch.stack(mine).mean())
            everything += mine
    dense = everything if config.cluster.variant == "released" else per_image
    return (
        torch.stack(image_losses).mean(),
        torch.stack(dense).mean(),
        0.9 * method.image_center.value + 0.1 * torch.stack(image_outputs).mean(0),
        0.9 * method.cluster_center.value + 0.1 * torch.stack(cluster_outputs).mean(0),
    )


@pytest.mark.parametrize("name", ["paper", "released"])
def test_a_step_equals_the_loops(name: str):
    config = variant(name)
    canvases = make_canvases(config)
    fabric, method, student, _ = prepared(config)
    image, cluster, image_center, cluster_center = naive_losses(config, method, canvases)
    (image + cluster).backward()
    expected = {
        n: p.grad.clone() for n, p in method.student.named_parameters() if p.grad is not None
    }
    method.student.zero_grad()

    method.set_schedule(SETTINGS)
    metrics = method.compute_gradients(fabric, student, canvases)
    torch.testing.assert_close(metrics["loss_image"], image.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(metrics["loss_cluster"], cluster.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(method.image_center.value, image_center)
    torch.testing.assert_close(method.cluster_center.value, cluster_center)
    for n, parameter in method.student.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[n], rtol=1e-3, atol=1e-5)


def test_alpha_zero_leaves_the_image_loss_alone():
    config = variant("paper")
    config = replace(config, loss=replace(config.loss, alpha=0.0))
    fabric, method, student, _ = prepared(config)
    method.set_schedule(SETTINGS)
    metrics = method.compute_gradients(fabric, student, make_canvases(config))
    assert metrics["loss"] == metrics["loss_image"]
    assert not method.student.head.cluster.directions.grad.any()


def test_sinkhorn_centring_uses_the_batch_and_not_the_moving_mean():
    config = variant("paper")
    config = replace(config, loss=replace(config.loss, centring="sinkhorn"))
    canvases = make_canvases(config)
    _, method, _, _ = prepared(config)
    assert method.micro_batch is None
    views, temperature = make_views(canvases, config.views, 8), torch.tensor(0.07)
    targets = method.teach(views, canvases.keys)
    images = teacher_probabilities(targets.outputs, targets.center, temperature)
    clusters = teacher_probabilities(targets.dense.outputs, targets.dense.center, temperature)
    valid = targets.dense.clusters.valid.expand(clusters.shape[:-1])
    for shares in (images.mean(dim=(0, 1)), clusters[valid].mean(dim=0)):
        assert ((shares * len(shares) - 1).abs() < 0.5).all()  # three iterations leave some
    method.image_center.value.normal_()
    again = method.teach(views, canvases.keys)
    assert torch.equal(again.center, targets.center)


def prune(config: CrocConfig, kept: int, monkeypatch: pytest.MonkeyPatch):
    """A step in which all but `kept` clusters of the batch are pruned."""
    import croc.method.croc as module

    real = module.cluster_views

    def pruned(*arguments, **named):
        found = real(*arguments, **named)
        valid = torch.zeros_like(found.valid)
        valid.view(-1)[found.valid.view(-1).nonzero()[:kept, 0]] = True
        return replace(found, valid=valid)

    monkeypatch.setattr(module, "cluster_views", pruned)
    fabric, method, student, optimizer = prepared(config)
    before = method.cluster_center.value.clone()
    gradients = Gradients(fabric, method, student)
    metrics = train_step(
        gradients, Guard(optimizer, fabric.device), make_canvases(config), SETTINGS, config.optim
    )
    for parameter in method.student.parameters():
        assert parameter.isfinite().all()
    assert all(value.isfinite() for value in metrics.values())
    return metrics, torch.equal(before, method.cluster_center.value)


@pytest.mark.parametrize("name", ["paper", "released"])
@pytest.mark.parametrize("kept", [0, 1])
def test_one_valid_cluster_or_none_gives_no_nan(
    name: str, kept: int, monkeypatch: pytest.MonkeyPatch
):
    metrics, center_kept = prune(variant(name), kept, monkeypatch)
    assert (metrics["loss_cluster"] > 0) == (kept > 0)
    assert (metrics["valid_share"] > 0) == (kept > 0)
    assert center_kept == (kept == 0)


@pytest.mark.parametrize("tokens", ["values", "keys", "queries", "last"])
def test_all_tokens_can_be_clustered(tokens: str):
    config = variant("paper", tokens=tokens)
    fabric, method, student, _ = prepared(config)
    method.set_schedule(SETTINGS)
    metrics = method.compute_gradients(fabric, student, make_canvases(config))
    assert metrics["loss_cluster"] > 0


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def steps_on_the_gpu(name: str, compiles: bool, steps: int, checked_from: int) -> dict[str, Tensor]:
    """Train some steps; from `checked_from` on, waiting for the device is an error."""
    config = replace(tiny_config(), cluster=variant(name).cluster)
    torch.manual_seed(0)
    fabric = make_fabric(RunConfig(accelerator="cuda", devices=1))
    method = build_method(config, fabric.device, compiles)
    optimizer = make_optimizer(method.student, fabric.device)
    student, optimizer = fabric.setup(method.student, optimizer)
    student.train()
    gradients = Gradients(fabric, method, student)
    source = open_source(config.data, 0)
    loader = make_loader(
        source,
        canvas_px=40,
        batch=8,
        seed=0,
        first_step=0,
        last_step=steps,
        device=fabric.device,
    )
    metrics: dict[str, Tensor] = {}
    for step, canvases in enumerate(list(loader)):
        if step == checked_from:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        try:
            settings = settings_at(step, config.optim, 3)
            metrics = train_step(
                gradients, Guard(optimizer, fabric.device), canvases, settings, config.optim
            )
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return {name: value.cpu() for name, value in metrics.items()}


@GPU
@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", ["paper", "released"])
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.compiled)])
def test_a_step_never_waits_for_the_gpu(name: str, compiles: bool):
    metrics = steps_on_the_gpu(name, compiles, steps=6, checked_from=4)
    assert all(value.isfinite() for value in metrics.values())


@GPU
@pytest.mark.cuda
@pytest.mark.compiled
@pytest.mark.parametrize("name", ["paper", "released"])
def test_compiled_steps_equal_eager_ones(name: str):
    compiled, eager = (steps_on_the_gpu(name, flag, 2, checked_from=9) for flag in (True, False))
    for metric, value in eager.items():
        torch.testing.assert_close(compiled[metric], value, rtol=2e-2, atol=2e-2)


def test_a_dino_step_equals_the_loops():
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
    method.set_schedule(SETTINGS)
    metrics = method.compute_gradients(fabric, student, canvases)
    torch.testing.assert_close(metrics["loss"], loss.detach())
    torch.testing.assert_close(metrics["entropy_image"], torch.stack(entropies).mean().detach())
    mean = torch.stack(outputs).mean(dim=0)
    torch.testing.assert_close(method.image_center.value, 0.9 * center + 0.1 * mean)
    assert len(expected) > 20
    for name, gradient in expected.items():
        torch.testing.assert_close(parameters[name].grad, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("centring", ["mean", "sinkhorn"])
def test_croc_with_alpha_zero_is_dino_to_the_last_digit(tmp_path, centring: str):
    config = tiny_config(tmp_path / "croc", report=False)
    config = replace(config, loss=replace(config.loss, alpha=0.0, centring=centring))
    dino = without_clusters(replace(config, run=replace(config.run, folder=str(tmp_path / "dino"))))
    runs = [metrics_of(pretrain(each, "tiny")) for each in (config, dino)]
    assert len(runs[1]) == 9
    for croc_line, dino_line in zip(*runs, strict=True):
        assert dino_line["loss"] == dino_line["loss_image"]
        for name, value in dino_line.items():
            assert croc_line[name] == value, name
