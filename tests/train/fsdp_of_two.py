"""One of two processes with shares, started by torchrun: what it holds, clips, skips, averages."""

import torch
import torch.distributed as dist

from croc.method.croc import update_teacher
from croc.method.distributed import full_state, leave_processes, local_shards, shard_teacher
from croc.method.optim import Guard, clip_gradient, make_optimizer, set_lr
from croc.signals import exit_process
from croc.train.distributed import make_fabric
from croc.train.loop import make_method, schedule_at
from tests.tiny import tiny_config


def main() -> None:
    config = tiny_config(strategy="fsdp", devices=2)
    fabric = make_fabric(config.run)
    fabric.launch()
    torch.manual_seed(0)
    method = make_method(config, fabric.device)
    full = {name: value.clone() for name, value in method.student.state_dict().items()}
    numbers = sum(value.numel() for value in method.student.parameters())
    fabric.setup_module(method.student)
    shard_teacher(method.modules["teacher"], fabric.strategy.device_mesh)  # pyright: ignore
    optimizer = make_optimizer(method.student, fabric.device)
    set_lr(optimizer, schedule_at(5, config.optim, 3))

    held = sum(share.numel() for share in local_shards(method.student.parameters()))
    assert 0.45 < held / numbers < 0.55, held / numbers

    parameters = list(method.student.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    counted = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    norm = clip_gradient(parameters, 1.0)
    torch.testing.assert_close(norm, torch.tensor(float(counted)).sqrt())
    torch.testing.assert_close(clip_gradient(parameters, 0.0), torch.tensor(1.0))

    guard = Guard(optimizer, fabric.device)
    if fabric.global_rank == 1:
        local_shards([parameters[-1].grad])[0].fill_(torch.nan)  # pyright: ignore
    guard.step(clip_gradient(parameters, 1.0), torch.tensor(1.0))
    assert guard.counts() == (1, 1), guard.counts()
    same(full_state(method.student.state_dict()), full)

    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    guard.step(clip_gradient(parameters, 1.0), torch.tensor(1.0))
    assert guard.counts() == (1, 0), guard.counts()
    moved = full_state(method.student.state_dict())
    update_teacher(method.modules["teacher"], method.student, momentum=0.75)
    follows = full_state(method.modules["teacher"].state_dict())
    if fabric.global_rank == 0:
        assert not torch.equal(moved["backbone.vit.norm.weight"], full["backbone.vit.norm.weight"])
        same(follows, {name: value.lerp(moved[name], 0.25) for name, value in full.items()})
    print("all is well")
    leave_processes()
    exit_process(0)


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """They are whole on the first process, and take no room on the other."""
    assert ours.keys() == theirs.keys()
    if dist.get_rank():
        assert not sum(value.numel() for value in ours.values())
        return
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, msg=name)


if __name__ == "__main__":
    main()
