"""Schedules, weight decay and clipping; Muon against PyTorch's and an SVD."""

import copy
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from croc.config import LossConfig, OptimConfig
from croc.method.croc import Network, teacher_momentum, teacher_temp
from croc.method.optim import QUINTIC, Muon, clip_gradient, make_optimizer, orthogonalize, set_lr
from croc.method.types import ScheduleState
from croc.train.loop import schedule_at
from tests.kernels.interpreter import forbid_synchronization
from tests.tiny import tiny_config


def table(base: float, final: float, epochs: int, per_epoch: int, warmup_epochs: int = 0):
    warmup = np.linspace(0, base, warmup_epochs * per_epoch)
    steps = np.arange(epochs * per_epoch - len(warmup))
    cosine = final + 0.5 * (base - final) * (1 + np.cos(np.pi * steps / len(steps)))
    return np.concatenate([warmup, cosine])


def test_lr_weight_decay_and_momentum_equal_the_tables():
    optim = OptimConfig(batch=1024, epochs=30, warmup_epochs=3)
    loss = LossConfig()
    schedule = [schedule_at(step, optim, 7) for step in range(30 * 7)]
    np.testing.assert_allclose(
        [s.lr for s in schedule], table(5e-4 * 4, 1e-5, 30, 7, 3), rtol=1e-12, atol=1e-18
    )
    np.testing.assert_allclose([s.weight_decay for s in schedule], table(0.04, 0.4, 30, 7))
    np.testing.assert_allclose(
        [teacher_momentum(loss, s) for s in schedule], table(0.996, 1.0, 30, 7)
    )
    assert [s.epoch for s in schedule] == [step // 7 for step in range(30 * 7)]


@pytest.mark.parametrize("warmup", [0, 1, 30])
def test_teacher_temp_rises_once_per_epoch(warmup: int):
    loss = LossConfig(temp_warmup_epochs=warmup)
    expected = np.concatenate([np.linspace(0.04, 0.07, warmup), np.full(40 - warmup, 0.07)])
    if warmup == 1:
        expected[0] = 0.07  # an epoch of warm-up starts at the final value
    np.testing.assert_allclose([teacher_temp(loss, epoch) for epoch in range(40)], expected)


def test_weight_decay_excludes_biases_and_norms_only():
    network = Network(tiny_config(), drop_path=0.0)
    optimizer = make_optimizer(network, torch.device("cpu"))
    names = {parameter: name for name, parameter in network.named_parameters()}
    decayed, exempt = ({names[p] for p in group["params"]} for group in optimizer.param_groups)
    assert {"head.image.lengths", "backbone.vit.pos_embed", "backbone.vit.cls_token"} <= decayed
    assert {"backbone.vit.norm.weight", "backbone.vit.blocks.0.attn.qkv.bias"} <= exempt
    assert not any(name.endswith("bias") for name in decayed)
    assert len(decayed) + len(exempt) == len(names)
    set_lr(optimizer, ScheduleState(0, 1, 0, lr=0.5, weight_decay=0.25))
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.5, 0.25), (0.5, 0)]


def test_clipping_scales_only_gradients_above_the_limit():
    layer = nn.Linear(3, 3)
    for factor, limit, clipped in ((10.0, 1.0, True), (1e-3, 1.0, False), (10.0, 0.0, False)):
        layer.weight.grad, layer.bias.grad = torch.randn(3, 3) * factor, torch.randn(3) * factor
        before = torch.cat([layer.weight.grad.flatten(), layer.bias.grad]).norm()
        norm = clip_gradient(layer.parameters(), limit)
        after = torch.cat([layer.weight.grad.flatten(), layer.bias.grad]).norm()
        torch.testing.assert_close(norm, before)
        torch.testing.assert_close(after, torch.tensor(1.0) if clipped else before)


MUON = OptimConfig(matrix_optimizer="muon", muon_lr_factor=2.0)
SETTINGS = ScheduleState(0, 1, 0, lr=0.01, weight_decay=0.1)


def set_gradients(network: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def take_step(network: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    set_lr(optimizer, SETTINGS)
    set_gradients(network, seed)
    optimizer.step()


def values(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
def test_orthogonalization_applies_the_polynomial_to_singular_values(shape):
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(3, *shape, dtype=torch.float64, generator=generator)
    a, b, c = QUINTIC
    for matrix, result in zip(matrices, orthogonalize(matrices)):
        left, s, right = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
        for _ in range(5):
            s = a * s + b * s**3 + c * s**5
        torch.testing.assert_close(result.double(), left @ s.diag() @ right, atol=1e-5, rtol=1e-4)
        assert s.max() < 1.3
        assert s.median() > 0.6


def test_muon_equals_pytorchs(monkeypatch: pytest.MonkeyPatch):
    """PyTorch's also computes in bfloat16 on the CPU, so that type is replaced by float32."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)
    network = nn.Sequential(nn.Linear(6, 9, False), nn.Linear(9, 4, False))
    twin = copy.deepcopy(network)
    adamw = torch.optim.AdamW([{"params": [nn.Parameter(torch.zeros(1))]}])
    ours = Muon(dict(network.named_parameters()), adamw, lr=0.02, weight_decay=0.1)
    options = {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.95}
    pytorchs = torch.optim.Muon(twin.parameters(), lr=0.02, weight_decay=0.1, **options)
    for seed in range(4):
        for module, optimizer in ((network, ours), (twin, pytorchs)):
            set_gradients(module, seed)
            optimizer.step()
    for one, other in zip(network.parameters(), twin.parameters()):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_muon_updates_queries_keys_and_values_separately_and_adamw_the_rest():
    network = Network(tiny_config(), drop_path=0.0)
    twin = copy.deepcopy(network)
    optimizer = make_optimizer(network, torch.device("cpu"), MUON)
    names = {parameter: name for name, parameter in network.named_parameters()}
    matrices, *rest = ({names[p] for p in group["params"]} for group in optimizer.param_groups)
    kinds = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    assert matrices == {f"backbone.vit.blocks.{i}.{k}.weight" for i in range(2) for k in kinds}
    assert sorted([*matrices, *rest[0], *rest[1]]) == sorted(names.values())
    plain = make_optimizer(twin, torch.device("cpu"))
    qkv = network.backbone.vit.blocks[0].attn.qkv.weight
    before = qkv.detach().clone()
    take_step(network, optimizer, seed=0)
    take_step(twin, plain, seed=0)
    for name, value in values(twin).items():
        assert torch.equal(value, values(network)[name]) == (name not in matrices), name
    assert [g["lr"] for g in optimizer.param_groups] == [0.02, 0.01, 0.01]
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.1, 0.0]
    rate, width = SETTINGS.lr * MUON.muon_lr_factor, qkv.shape[1]
    for old, gradient, new in zip(before.chunk(3), qkv.grad.chunk(3), qkv.detach().chunk(3)):
        update = orthogonalize(gradient[None])[0] * 0.2 * width**0.5
        expected = old * (1 - rate * SETTINGS.weight_decay) - rate * update
        torch.testing.assert_close(new, expected, atol=1e-6, rtol=1e-4)


def test_muon_skips_steps_with_non_finite_gradients(monkeypatch: pytest.MonkeyPatch):
    """As on a GPU, where a tensor on the device makes the fused optimizer skip a step."""
    real = torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda *a, **k: real(*a, **k | {"fused": True}))
    network = Network(tiny_config(), drop_path=0.0)
    optimizer = make_optimizer(network, torch.device("cpu"), MUON)
    optimizer.found_inf = torch.tensor(0.0)
    take_step(network, optimizer, seed=0)
    before, state = values(network), copy.deepcopy(optimizer.state_dict()["state"])
    optimizer.found_inf = torch.tensor(1.0)
    set_lr(optimizer, SETTINGS)
    set_gradients(network, 1)
    qkv = network.backbone.vit.blocks[0].attn.qkv.weight
    qkv.grad[0, 0] = torch.inf
    optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in values(network).items())
    for number, after in optimizer.state_dict()["state"].items():
        assert all(torch.equal(after[name], state[number][name]) for name in after)
    optimizer.found_inf = torch.tensor(0.0)
    take_step(network, optimizer, seed=2)
    assert not torch.equal(qkv, before["backbone.vit.blocks.0.attn.qkv.weight"])


@pytest.mark.cuda
def test_muon_on_gpu_is_close_to_the_cpu_and_never_synchronizes():
    network = Network(tiny_config(), drop_path=0.0)
    twin = copy.deepcopy(network).cuda()
    on_cpu = make_optimizer(network, torch.device("cpu"), MUON)
    on_gpu = make_optimizer(twin, torch.device("cuda"), MUON)
    on_gpu.found_inf = torch.zeros((), device="cuda")
    before = values(network)
    for seed in range(3):
        take_step(network, on_cpu, seed)
        set_lr(on_gpu, SETTINGS)
        for parameter, source in zip(twin.parameters(), network.parameters()):
            parameter.grad = source.grad.cuda()
        with forbid_synchronization() if seed else nullcontext():
            on_gpu.step()
    for name, value in values(network).items():
        update, other = value - before[name], twin.state_dict()[name].cpu() - before[name]
        assert (update - other).norm() <= 0.02 * update.norm() + 1e-6, name
