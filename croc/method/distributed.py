"""The few words spoken between processes; with one process they do nothing."""

import torch
import torch.distributed as dist
from torch import Tensor


def process_count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def leave_processes() -> None:
    """At the end, however it came: left alone, gloo's threads abort the interpreter's exit."""
    if dist.is_initialized():
        dist.destroy_process_group()


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether it tells of a process that ended or did not answer in time; gloo's has no class."""
    of_torch = isinstance(error, dist.DistError)
    return process_count() > 1 and (of_torch or "gloo" in str(error))


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on one of them; waits for the device if there are several."""
    if process_count() == 1:
        return flag
    return bool(sum_over_processes(torch.full((), float(flag), device=device)).item())


def sum_over_processes(values: Tensor) -> Tensor:
    """The sum of every process's `values`, on each of them."""
    if process_count() == 1:
        return values
    values = values.clone()
    dist.all_reduce(values)
    return values


def union_over_processes(names: list[str]) -> list[str]:
    """Every process's names, in the order of the processes."""
    if process_count() == 1:
        return names
    gathered: list[list[str]] = [[] for _ in range(process_count())]
    dist.all_gather_object(gathered, names)
    return [name for part in gathered for name in part]


def fetch(metrics: dict[str, Tensor]) -> dict[str, float]:
    """Sum the shares of all processes and bring them to the host: the only wait of a step."""
    values = sum_over_processes(torch.stack([value.float() for value in metrics.values()]))
    return dict(zip(metrics, values.tolist()))
