"""The training loop: images → views → tokens → clusters → centroids → loss → step."""

import contextlib
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor

from croc.config import OptimConfig, PretrainConfig
from croc.data.loader import batch_indices, make_loader, steps_per_epoch, worker_count
from croc.data.sources import ImageSource, open_source
from croc.errors import LostPeerError, UserError
from croc.kernels import use_kernels
from croc.method.build import Method, build_method
from croc.method.distributed import is_lost_peer, leave_processes, union_over_processes
from croc.method.optim import clip_gradient, make_optimizer, set_rates
from croc.method.schedules import Settings, settings_at
from croc.method.sharding import shard_teacher
from croc.method.stages import stage
from croc.method.types import Canvases
from croc.train.checkpoint import TrainState, checkpoints, load_checkpoint
from croc.train.cuda_graph import Gradients, make_gradients, records
from croc.train.devices import compiles, make_fabric, processes_here
from croc.train.guard import Guard
from croc.train.log import RunLog
from croc.train.run_folder import open_run_folder, write_config
from croc.train.signals import notice_of_end
from croc.train.watch import Watch

LOST_PEER = (
    "another process of this run has ended or does not answer; the same command resumes from the "
    "last checkpoint, with as many processes or another number"
)

OUT_OF_MEMORY = (
    "out of GPU memory: try a smaller --run.micro-batch, --optim.batch or "
    "--head.image-prototypes, and see whether other programs use the GPU"
)


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
    except torch.OutOfMemoryError as error:
        raise UserError(f"{OUT_OF_MEMORY} ({str(error).partition('. ')[0]})") from error
    except RuntimeError as error:
        if is_lost_peer(error):
            raise LostPeerError(LOST_PEER) from error
        raise
    finally:
        leave_processes()
    return folder


def train(
    fabric: Fabric, config: PretrainConfig, recipe: str, source: ImageSource, folder: Path
) -> None:
    """One process's part in a run."""
    run, optim = config.run, config.optim
    gradients, guard, state, origin = make_ready(fabric, config, len(source), folder)
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
        workers=worker_count(config.data, processes_here(fabric, run)),
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
        watch = Watch(config, source, folder, gradients, guard, state, log, ending, last_step)
        for canvases in loader:
            settings = settings_at(state.step, optim, per_epoch)
            metrics = train_step(gradients, guard, canvases, settings, optim)
            state.step += 1
            watch.after_step(canvases, settings, metrics)


def make_ready(
    fabric: Fabric, config: PretrainConfig, images: int, folder: Path
) -> tuple[Gradients, Guard, TrainState, str | None]:
    """Networks and optimiser, as new, from --init (of which is told) or from a checkpoint."""
    run = config.run
    found = checkpoints(folder)
    resumed = load_checkpoint(found[-1]) if found else None
    torch.manual_seed(run.seed)
    use_kernels(run.kernels)
    compile = compiles(run, fabric.device)
    method = build_method(config, fabric.device, compile)
    origin = None if resumed else _start_from(config.model.init, method)
    student = fabric.setup_module(method.student)
    student.train()
    if isinstance(fabric.strategy, ModelParallelStrategy) and "teacher" in method.modules:
        shard_teacher(method.modules["teacher"], fabric.strategy.device_mesh)
    optimizer: Any = make_optimizer(method.student, fabric.device, config.optim)
    optimizer = fabric.setup_optimizers(optimizer)
    gradients = make_gradients(fabric, method, student, records(run, fabric, compile))
    state = TrainState(method.modules, optimizer, images)
    if resumed:
        state.load_state_dict(resumed)
    _check_agreement(state.step, images)
    return gradients, Guard(optimizer, fabric.device, state.skipped), state, origin


def _start_from(init: str | None, method: Method) -> str | None:
    """Fill the backbones, and tell with what."""
    if init is None:
        return None
    from croc.weights.start import load_into

    return [load_into(backbone, init) for backbone in method.backbones][-1]


def train_step(
    gradients: Gradients,
    guard: Guard,
    canvases: Canvases,
    settings: Settings,
    optim: OptimConfig,
) -> dict[str, Tensor]:
    """One update of student and teacher. Nothing in it waits for the device."""
    fabric, method = gradients.fabric, gradients.method
    set_rates(guard.optimizer, settings)
    method.before_gradients(settings)
    metrics = gradients(canvases)
    method.before_update(settings)
    with stage("update"):
        norm = clip_gradient(method.student.parameters(), optim.clip_gradient)
        # It is the same everywhere, where shares add up.
        metrics["gradient_norm"] = norm / fabric.world_size
        guard.step(norm, metrics["loss"])
    method.after_update(settings)
    return metrics


def _opening(source: ImageSource, first: int, last: int, fabric: Fabric, folder: Path) -> str:
    verb = f"resumes from step {first}" if first else "starts"
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
