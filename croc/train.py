"""The training loop: images → views → tokens → clusters → centroids → loss → step."""

import contextlib
import math
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from torch import Tensor

from croc.checkpoint import TrainState, checkpoints, load_checkpoint, save_checkpoint
from croc.config import OptimConfig, PretrainConfig, RunConfig
from croc.data.loader import batch_indices, make_loader, steps_per_epoch, worker_count
from croc.data.sources import ImageSource, open_source
from croc.distributed import (
    any_process,
    leave_processes,
    sum_over_processes,
    union_over_processes,
)
from croc.errors import UserError
from croc.kernels import use_kernels
from croc.log import RunLog
from croc.methods import Method, build_method
from croc.notices import notice_of_end
from croc.optim import clip_gradient, make_optimizer, set_rates
from croc.recorded import Gradients, make_gradients, records
from croc.run_folder import open_run_folder, write_config
from croc.schedules import Settings, settings_at
from croc.stages import stage
from croc.types import Canvases


def pretrain(config: PretrainConfig, recipe: str) -> Path:
    """Train, or go on with a run found in the folder; returns the folder."""
    run = config.run
    folder = Path(run.folder or f"runs/{recipe}")
    source = open_source(config.data, run.seed)
    open_run_folder(folder, config)
    fabric = make_fabric(run)
    batch_indices(0, len(source), config.optim.batch, run.seed, 0, fabric.world_size)  # fits?
    try:
        fabric.launch()
        train(fabric, config, recipe, source, folder)
    finally:
        leave_processes()
    return folder


def train(
    fabric: Fabric, config: PretrainConfig, recipe: str, source: ImageSource, folder: Path
) -> None:
    """One process's part in a run."""
    run, optim = config.run, config.optim
    found = checkpoints(folder)
    resumed = load_checkpoint(found[-1]) if found else None
    torch.manual_seed(run.seed)
    use_kernels(run.kernels)
    method = build_method(config, fabric.device, compiles(run, fabric.device))
    origin = None if resumed else _start_from(config.model.init, method)
    optimizer = make_optimizer(method.student, fabric.device, optim.betas)
    student, optimizer = fabric.setup(method.student, optimizer)
    student.train()
    gradients = make_gradients(
        fabric, method, student, records(run, fabric, compiles(run, fabric.device))
    )
    state = TrainState(method.modules, optimizer, len(source))
    if resumed:
        state.load_state_dict(resumed)
        del resumed  # as large as the run itself
    _check_agreement(state.step, len(source))

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
        workers=worker_count(config.data, _processes_here(fabric, run)),
        device=fabric.device,
    )

    with (
        RunLog(folder, state.step, last_step, writes=fabric.is_global_zero) as log,
        contextlib.closing(loader),
        notice_of_end() as ending,
    ):
        log.say(_opening(source, state.step, last_step, fabric, folder))
        if origin:
            log.say(f"starts from {origin}; heads are fresh")
        skipped: list[str] = []
        for canvases in loader:
            settings = settings_at(state.step, optim, per_epoch)
            metrics = train_step(gradients, optimizer, canvases, settings, optim)
            state.step += 1
            skipped += canvases.failed
            log.advance(state.step)

            # Several processes must agree on an end, so they ask each other now and then.
            asks = fabric.world_size == 1 or state.step % min(10, run.log_every_steps) == 0
            ends = asks and any_process(bool(ending), fabric.device)
            last = ends or state.step == last_step
            saves = last or state.step % run.checkpoint_every_steps == 0
            logs = last or state.step == 1 or state.step % run.log_every_steps == 0
            if logs or saves:
                values = fetch(metrics)
                for name in state.failed.add(union_over_processes(skipped)):
                    log.say(f"skipped, cannot be decoded: {name}")
                skipped.clear()
                seen = state.step * optim.batch
                state.failed.check(seen, len(source), config.data.max_failed_share)
                if not math.isfinite(values["loss"]):
                    raise UserError(_diverged(state.step, values["loss"], folder))
                if logs:
                    values |= {"rate": settings.rate, "weight_decay": settings.weight_decay}
                    log.write(state.step, settings.epoch, values, optim.batch)
            if saves:
                _save(fabric, folder, state, run)
            if ends:
                log.say(f"asked to end: saved step {state.step}; the same command goes on from it")
                break


def _start_from(init: str | None, method: Method) -> str | None:
    """Fill the backbones, and tell with what."""
    if init is None:
        return None
    from croc.weights.start import load_into

    return [load_into(backbone, init) for backbone in method.backbones][-1]


def train_step(
    gradients: Gradients,
    optimizer: torch.optim.Optimizer,
    canvases: Canvases,
    settings: Settings,
    optim: OptimConfig,
) -> dict[str, Tensor]:
    """One update of student and teacher. Nothing in it waits for the device."""
    fabric, method = gradients.fabric, gradients.method
    set_rates(optimizer, settings)
    method.before_gradients(settings)
    metrics = gradients(canvases)
    method.before_update(settings)
    with stage("update"):
        norm = clip_gradient(method.student.parameters(), optim.clip_gradient)
        # It is the same everywhere, where shares add up.
        metrics["gradient_norm"] = norm / fabric.world_size
        optimizer.step()
        optimizer.zero_grad()
    method.after_update(settings)
    return metrics


def compiles(run: RunConfig, device: torch.device) -> bool:
    """On a GPU torch.compile needs Triton, which is not everywhere."""
    if run.compile == "auto":
        return device.type == "cuda" and find_spec("triton") is not None
    return run.compile


def in_bfloat16(run: RunConfig, accelerator: str) -> bool:
    """Older GPUs only imitate it."""
    if run.precision == "auto":
        return accelerator == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return run.precision == "bfloat16"


class BFloat16AsGiven(MixedPrecision):
    """Autocast to bfloat16; what is bfloat16 already stays so, where Lightning would widen it."""

    def convert_input(self, data: Any) -> Any:
        return data


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
    half = in_bfloat16(run, accelerator)
    if half and accelerator == "cpu":
        raise UserError("--run.precision bfloat16 is for GPUs; leave it at auto on the CPU")
    try:
        return Fabric(
            accelerator=accelerator,
            devices=devices,
            num_nodes=nodes,
            plugins=BFloat16AsGiven("bf16-mixed", accelerator) if half else None,
        )
    except (RuntimeError, ValueError) as error:  # Lightning's misconfigurations are such
        raise UserError(
            f"--run.accelerator {run.accelerator} --run.devices {run.devices}: {error}"
        ) from None


def fetch(metrics: dict[str, Tensor]) -> dict[str, float]:
    """Sum the shares of all processes and bring them to the host: the only wait of a step."""
    values = sum_over_processes(torch.stack([value.float() for value in metrics.values()]))
    return dict(zip(metrics, values.tolist()))


def _processes_here(fabric: Fabric, run: RunConfig) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", fabric.world_size // run.nodes))


def _opening(source: ImageSource, first: int, last: int, fabric: Fabric, folder: Path) -> str:
    verb = f"goes on from step {first}" if first else "starts"
    images = f"{len(source):,} images, {source.name(0)} the first"
    where = f"{fabric.world_size} × {fabric.device.type}"
    return f"{folder}: {verb}, to step {last}, on {where}; {images}"


def _check_agreement(step: int, images: int) -> None:
    """Processes that read different checkpoints or data would drift apart unnoticed."""
    told = union_over_processes([f"step {step} of {images:,} images"])
    if len(set(told)) > 1:
        raise UserError(
            f"the processes do not see the same run ({'; '.join(sorted(set(told)))}): "
            "--run.folder and --data.root must be on a disk that all machines share"
        )


def _save(fabric: Fabric, folder: Path, state: TrainState, run: RunConfig) -> None:
    """The first process writes; if it cannot, all end, and none waits for it for ever."""
    problem = ""
    if fabric.is_global_zero:
        try:
            save_checkpoint(folder, state.state_dict(), run.keep_every_steps)
        except (OSError, RuntimeError) as error:
            problem = str(error) or type(error).__name__
    problems = [told for told in union_over_processes([problem]) if told]
    if problems:
        raise UserError(f"the checkpoint of step {state.step} cannot be written: {problems[0]}")


def _diverged(step: int, loss: float, folder: Path) -> str:
    found = checkpoints(folder)
    left = f"the last checkpoint, {found[-1].name}, is from before" if found else "none was saved"
    return f"the loss of step {step} is {loss}; {left}. Try a lower --optim.rate or clip gradients"
