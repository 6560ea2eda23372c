"""One of two FSDP processes, started by torchrun: sharding, clipping, skipping, moving average."""

from dataclasses import replace

import torch
import torch.distributed as dist

from croc.method.croc import ema_update
from croc.method.distributed import full_state, leave_processes, local_shards, shard_teacher
from croc.method.optim import Guard, clip_gradient, make_optimizer, set_lr
from croc.signals import exit_process
from croc.train.distributed import make_fabric
from croc.train.loop import make_method, schedule_at
from tests.tiny import tiny_config


def main() -> None:
    config = tiny_config(strategy="fsdp", devices=2)
    config = replace(config, loss=replace(config.loss, mask_ratio=0.3))
    fabric = make_fabric(config.run)
    fabric.launch()
    torch.manual_seed(0)
    method = make_method(config, fabric.device)
    start = {name: value.clone() for name, value in method.student.state_dict().items()}
    total = sum(value.numel() for value in method.student.parameters())
    fabric.setup_module(method.student)
    shard_teacher(method.modules["teacher"], fabric.strategy.device_mesh)
    optimizer = make_optimizer(method.student, fabric.device)
    set_lr(optimizer, schedule_at(5, config.optim, 3))

    local = sum(shard.numel() for shard in local_shards(method.student.parameters()))
    assert 0.45 < local / total < 0.55, local / total

    parameters = list(method.student.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    trainable = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    norm = clip_gradient(parameters, 1.0)
    torch.testing.assert_close(norm, torch.tensor(float(trainable)).sqrt())
    torch.testing.assert_close(clip_gradient(parameters, 0.0), torch.tensor(1.0))

    guard = Guard(optimizer, fabric.device)
    if fabric.global_rank == 1:
        local_shards([parameters[-1].grad])[0].fill_(torch.nan)
    guard.step(clip_gradient(parameters, 1.0), torch.tensor(1.0))
    assert guard.counts() == (1, 1), guard.counts()
    check_state(full_state(method.student.state_dict()), start)

    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    guard.step(clip_gradient(parameters, 1.0), torch.tensor(1.0))
    assert guard.counts() == (1, 0), guard.counts()
    student = full_state(method.student.state_dict())
    ema_update(method.modules["teacher"], method.student, momentum=0.75)
    teacher = full_state(method.modules["teacher"].state_dict())
    if fabric.global_rank == 0:
        name = "backbone.vit.norm.weight"
        assert not torch.equal(student[name], start[name])
        check_state(teacher, {name: start[name].lerp(student[name], 0.25) for name in start})
    print("passed")
    leave_processes()
    exit_process(0)


def check_state(state: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """The state is complete on the first process and empty on the other."""
    assert state.keys() == expected.keys()
    if dist.get_rank():
        assert not sum(value.numel() for value in state.values())
        return
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, msg=name)


if __name__ == "__main__":
    main()
