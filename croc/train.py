"""The training loop: images → views → tokens → clusters → centroids → loss → step."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricModule
from torch import Tensor

from croc.checkpoint import TrainState, checkpoints, load_checkpoint, save_checkpoint
from croc.config import CrocConfig, OptimConfig, RunConfig
from croc.data.loader import batch_indices, make_loader, steps_per_epoch, worker_count
from croc.data.sources import open_source
from croc.distributed import sum_over_processes
from croc.log import RunLog
from croc.methods import Method, build_method
from croc.optim import clip_gradient, make_optimizer, set_rates
from croc.run_folder import open_run_folder, write_config
from croc.schedules import Settings, settings_at
from croc.types import Canvases


def pretrain(config: CrocConfig, recipe: str) -> Path:
    """Train, or go on with a run found in the folder; returns the folder."""
    run, optim = config.run, config.optim
    folder = Path(run.folder or f"runs/{recipe}")
    source = open_source(config.data, run.seed)
    open_run_folder(folder, config)
    found = checkpoints(folder)
    resumed = load_checkpoint(found[-1]) if found else None

    fabric = make_fabric(run)
    batch_indices(0, len(source), optim.batch, run.seed, 0, fabric.world_size)  # do they divide?
    fabric.launch()
    torch.manual_seed(run.seed)
    compiles = fabric.device.type == "cuda" if run.compile == "auto" else run.compile
    method = build_method(config, fabric.device, compiles)
    optimizer = make_optimizer(method.student, fabric.device)
    student, optimizer = fabric.setup(method.student, optimizer)
    student.train()
    state = TrainState(method.modules, optimizer)
    if resumed:
        state.load_state_dict(resumed)

    per_epoch = steps_per_epoch(len(source), optim.batch)
    last_step = optim.epochs * per_epoch
    if run.stop_after_steps is not None:
        last_step = min(last_step, run.stop_after_steps)
    if fabric.is_global_zero:
        write_config(folder, config, recipe)
    loader = make_loader(
        source,
        canvas_px=config.data.canvas_px,
        batch=optim.batch,
        seed=run.seed,
        first_step=state.step,
        last_step=last_step,
        rank=fabric.global_rank,
        processes=fabric.world_size,
        workers=worker_count(config.data),
        pin=fabric.device.type == "cuda",
    )

    with (
        RunLog(folder, state.step, last_step, writes=fabric.is_global_zero) as log,
        contextlib.closing(loader),
        _notice_of_end() as ending,
    ):
        log.say(_opening(len(source), state.step, last_step, fabric, folder))
        for canvases in loader:
            settings = settings_at(state.step, optim, per_epoch)
            on_device = canvases.to(fabric.device)
            metrics = train_step(fabric, method, student, optimizer, on_device, settings, optim)
            state.step += 1
            for name in state.failed.add(canvases):
                log.say(f"skipped, cannot be decoded: {name}")
            log.advance(state.step)
            logs = state.step == 1 or state.step % run.log_every_steps == 0
            if logs or state.step == last_step:
                rates = {"rate": settings.rate, "weight_decay": settings.weight_decay}
                log.write(state.step, settings.epoch, fetch(metrics) | rates, optim.batch)
                seen = state.step * optim.batch // fabric.world_size
                state.failed.check(seen, len(source), config.data.max_failed_share)
            # Several processes must agree on the end; they talk when they log.
            ends = bool(ending) if fabric.world_size == 1 else logs and _any_process(ending, fabric)
            if state.step % run.checkpoint_every_steps == 0 or state.step == last_step or ends:
                if fabric.is_global_zero:
                    save_checkpoint(folder, state.state_dict(), run.keep_every_steps)
                fabric.barrier()
            if ends:
                log.say(f"asked to end: saved step {state.step}; the same command goes on from it")
                break
    return folder


def train_step(
    fabric: Fabric,
    method: Method,
    student: _FabricModule,
    optimizer: torch.optim.Optimizer,
    canvases: Canvases,
    settings: Settings,
    optim: OptimConfig,
) -> dict[str, Tensor]:
    """One update of student and teacher. Nothing in it waits for the device."""
    set_rates(optimizer, settings)
    metrics = method.accumulate(fabric, student, canvases, settings)
    method.before_update(settings)
    norm = clip_gradient(method.student.parameters(), optim.clip_gradient)
    metrics["gradient_norm"] = norm / fabric.world_size  # the same everywhere, where shares add up
    optimizer.step()
    optimizer.zero_grad()
    method.after_update(settings)
    return metrics


def make_fabric(run: RunConfig) -> Fabric:
    """Devices, processes and precision; under torchrun, what torchrun says."""
    accelerator = run.accelerator
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    devices, nodes = run.devices, run.nodes
    if devices == "auto" and "LOCAL_WORLD_SIZE" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    if devices == "auto" and accelerator == "cpu":
        devices = 1
    half = run.precision == "bfloat16" or (run.precision == "auto" and accelerator == "cuda")
    return Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        precision="bf16-mixed" if half else "32-true",
    )


def fetch(metrics: dict[str, Tensor]) -> dict[str, float]:
    """Sum the shares of all processes and bring them to the host: the only wait of a step."""
    values = sum_over_processes(torch.stack([value.float() for value in metrics.values()]))
    return dict(zip(metrics, values.tolist()))


def _opening(images: int, first: int, last: int, fabric: Fabric, folder: Path) -> str:
    verb = f"goes on from step {first}" if first else "starts"
    where = f"{fabric.world_size} × {fabric.device.type}"
    return f"{folder}: {verb}, to step {last}, on {images:,} images, {where}"


@contextlib.contextmanager
def _notice_of_end() -> Iterator[list[int]]:
    """SIGTERM and Ctrl-C put their number into a list instead of ending the process at once."""
    notices: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda n, _: notices.append(n)) for number in numbers]
    try:
        yield notices
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


def _any_process(ending: list[int], fabric: Fabric) -> bool:
    return bool(sum_over_processes(torch.tensor(float(bool(ending)), device=fabric.device)).item())
