"""AdamW's groups, clipping, and the teacher's average."""

import copy

import torch
from torch import nn

from croc.method.croc import Network
from croc.method.optim import clip_gradient, make_optimizer, set_rates, update_teacher
from croc.method.schedules import Settings
from tests.tiny import tiny_config


def test_biases_and_vectors_are_not_decayed_but_lengths_positions_and_cls_are():
    network = Network(tiny_config(), drop_path=0.0)
    optimizer = make_optimizer(network, torch.device("cpu"))
    names = {parameter: name for name, parameter in network.named_parameters()}
    decayed, kept = ({names[p] for p in group["params"]} for group in optimizer.param_groups)
    assert {"head.image.lengths", "backbone.vit.pos_embed", "backbone.vit.cls_token"} <= decayed
    assert {"backbone.vit.norm.weight", "backbone.vit.blocks.0.attn.qkv.bias"} <= kept
    assert not any(name.endswith("bias") for name in decayed)
    assert len(decayed) + len(kept) == len(names)
    set_rates(optimizer, Settings(0, 1, 0, rate=0.5, weight_decay=0.25))
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.5, 0.25), (0.5, 0)]


def test_clipping_shortens_long_gradients_only():
    layer = nn.Linear(3, 3)
    for factor, expected in ((10.0, 1.0), (1e-3, None)):
        layer.weight.grad, layer.bias.grad = torch.randn(3, 3) * factor, torch.randn(3) * factor
        before = torch.cat([layer.weight.grad.flatten(), layer.bias.grad]).norm()
        told = clip_gradient(layer.parameters(), 1.0)
        after = torch.cat([layer.weight.grad.flatten(), layer.bias.grad]).norm()
        torch.testing.assert_close(told, before)
        torch.testing.assert_close(after, before if expected is None else torch.tensor(expected))


def test_zero_clips_nothing():
    layer = nn.Linear(3, 3)
    layer.weight.grad = torch.full((3, 3), 100.0)
    assert clip_gradient(layer.parameters(), 0.0) == 300
    assert torch.equal(layer.weight.grad, torch.full((3, 3), 100.0))


def test_the_teacher_is_a_moving_average():
    student, teacher = nn.Linear(4, 4), nn.Linear(4, 4)
    before = copy.deepcopy(teacher)
    update_teacher(teacher, student, 0.9)
    for new, old, now in zip(teacher.parameters(), before.parameters(), student.parameters()):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * now)
