"""What each process sends per training step with DDP or FSDP, measured on CPU processes.

    torchrun --nproc-per-node 2 -m benchmarks.communication --strategy ddp

Prints the collective operations of one step and the size of their data: from the profiler for
FSDP, from a communication hook for DDP. The number and size of images do not matter; for FSDP,
the number of micro-batches does.
"""

import argparse
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.profiler import ProfilerActivity, profile

from croc.lab.bench import BenchTrainer, synthetic_batches
from croc.method.distributed import leave_processes
from croc.recipes import coco_vits16
from croc.signals import exit_process
from croc.train.distributed import make_fabric

MIB = 2**20


def elements(shapes: Any) -> int:
    """Elements of the largest tensor in nested lists of shapes, such as an all-gather's output."""
    if shapes and all(isinstance(side, int) for side in shapes):
        return torch.Size(shapes).numel()
    return max((elements(shape) for shape in shapes or [] if isinstance(shape, list)), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--micro-batches", type=int, default=1)
    options = parser.parse_args()
    config = coco_vits16()
    processes = {"devices": 2, "accelerator": "cpu", "strategy": options.strategy}
    config = replace(
        config,
        model=replace(config.model, name=options.model),
        views=replace(config.views, size_px=64),
        data=replace(config.data, max_side_px=64),
        optim=replace(config.optim, batch=2 * options.micro_batches),
        run=replace(config.run, **processes, micro_batch=2, compile=False),
    )
    fabric = make_fabric(config.run)
    fabric.launch()
    trainer = BenchTrainer(fabric, config)
    batches = synthetic_batches(config, 1, fabric.device)
    buckets = []
    if options.strategy == "ddp":

        def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # pyright: ignore
            buckets.append(bucket.buffer().nbytes)
            return allreduce_hook(state, bucket)

        ddp: Any = trainer.student._forward_module
        ddp.register_comm_hook(None, hook)
    for _ in range(2):  # DDP rebuilds its buckets after the first step
        trainer.next_step(next(batches), use_graph=False)
    buckets.clear()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        trainer.next_step(next(batches), use_graph=False)
    volume, calls = Counter[str](), Counter[str]()
    for event in trace.events() or []:
        if event.name.startswith("c10d::"):
            name = event.name.removeprefix("c10d::").strip("_")
            calls[name] += 1
            volume[name] += 4 * elements(event.input_shapes)  # all are float32
    if fabric.global_rank == 0:
        print(f"{options.model}, {options.strategy}, {options.micro_batches} micro-batches")
        for name, count in calls.items():
            # The profiler does not record the shapes in DDP's lists of tensors.
            size = f", {volume[name] / MIB:.1f} MiB" if volume[name] else ""
            print(f"  {name}: {count} calls{size}")
        if buckets:
            print(f"  of which in DDP's {len(buckets)} buckets: {sum(buckets) / MIB:.1f} MiB")
    leave_processes()
    exit_process(0)


if __name__ == "__main__":
    main()
