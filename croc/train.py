"""The training loop: images → views → tokens → clusters → centroids → loss → step."""

import contextlib
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor

from croc.checkpoint import TrainState, checkpoints, load_checkpoint
from croc.config import OptimConfig, PretrainConfig
from croc.data.loader import batch_indices, make_loader, steps_per_epoch, worker_count
from croc.data.sources import ImageSource, open_source
from croc.devices import compiles, make_fabric, processes_here
from croc.diagnosis import DIAGNOSIS, diagnose, images_of, write_diagnosis
from croc.distributed import (
    any_process,
    is_lost_peer,
    leave_processes,
    sum_over_processes,
    union_over_processes,
)
from croc.errors import AskedToEnd, LostPeerError, UserError
from croc.guard import Guard
from croc.health import Health
from croc.kernels import use_kernels
from croc.log import RunLog
from croc.methods import Method, build_method
from croc.notices import notice_of_end
from croc.optim import clip_gradient, make_optimizer, set_rates
from croc.recorded import Gradients, make_gradients, records
from croc.report.hook import Reporter, weights_to_show
from croc.run_folder import open_run_folder, write_config
from croc.saving import Saver
from croc.schedules import Settings, settings_at
from croc.sharding import shard_teacher
from croc.stages import stage
from croc.types import Canvases

LOST_PEER = (
    "another process of this run has ended or does not answer; the same command goes on from the "
    "last checkpoint, with as many processes or another number"
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
    found = checkpoints(folder)
    resumed = load_checkpoint(found[-1]) if found else None
    torch.manual_seed(run.seed)
    use_kernels(run.kernels)
    method = build_method(config, fabric.device, compiles(run, fabric.device))
    origin = None if resumed else _start_from(config.model.init, method)
    student = fabric.setup_module(method.student)
    student.train()
    if isinstance(fabric.strategy, ModelParallelStrategy) and "teacher" in method.modules:
        shard_teacher(method.modules["teacher"], fabric.strategy.device_mesh)
    optimizer: Any = make_optimizer(method.student, fabric.device, optim.betas)
    optimizer = fabric.setup_optimizers(optimizer)
    gradients = make_gradients(
        fabric, method, student, records(run, fabric, compiles(run, fabric.device))
    )
    state = TrainState(method.modules, optimizer, len(source))
    if resumed:
        state.load_state_dict(resumed)
        del resumed  # as large as the run itself
    _check_agreement(state.step, len(source))
    guard, health = Guard(optimizer, fabric.device, state.skipped), Health(config)

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
        reporter = Reporter(config, source, folder, writes=fabric.is_global_zero, say=log.say)
        reporter.start(weights_to_show(method), state.step)
        saver = Saver(fabric, folder, run, log.say)
        skipped: list[str] = []
        problem, late = "", False
        for canvases in loader:
            settings = settings_at(state.step, optim, per_epoch)
            metrics = train_step(gradients, guard, canvases, settings, optim)
            state.step += 1
            skipped += canvases.failed
            log.advance(state.step)

            # Several processes must agree on an end, so they ask each other now and then.
            asks = fabric.world_size == 1 or state.step % min(10, run.log_every_steps) == 0
            ends = asks and any_process(bool(ending), fabric.device)
            last = ends or state.step == last_step
            logs = last or state.step == 1 or state.step % run.log_every_steps == 0
            due = state.step % run.checkpoint_every_steps == 0 or (logs and (saver.owes or late))
            saves = last or due
            if logs or saves:
                values = fetch(metrics)
                for name in state.failed.add(union_over_processes(skipped)):
                    log.say(f"skipped, cannot be decoded: {name}")
                skipped.clear()
                seen = state.step * optim.batch
                state.failed.check(seen, len(source), config.data.max_failed_share)
                before, (state.skipped, in_a_row) = state.skipped, guard.counts()
                if state.skipped > before:
                    log.say(f"skipped for want of a finite gradient, so far: {state.skipped}")
                if in_a_row >= run.max_skipped:
                    steps = range(state.step - in_a_row, state.step)
                    images = images_of(source, steps, optim.batch, run.seed)
                    page = diagnose(gradients, canvases, settings, values) | {"images": images}
                    raise UserError(_stopped(fabric, folder, steps, page))
                # Weights that give no gradient must not take the place of those that gave one.
                late = saves and in_a_row > 0 and not last
                saves = saves and not late
                if logs:
                    values |= {"rate": settings.rate, "weight_decay": settings.weight_decay}
                    log.write(state.step, settings.epoch, values, optim.batch)
                    for sign in health.look(values):
                        log.say(sign)
            if saves:
                problem = saver.save(state, last=last)
                if problem and last and not (ends and checkpoints(folder)):
                    raise UserError(problem)
                if not ends:  # then there is no time for pictures
                    reporter.refresh(weights_to_show(method), state.step, last)
            if ends:
                fabric.barrier()  # Lightning kills all processes when one has ended before it
                said = f"asked to end: {problem or f'saved step {state.step}'}"
                # Of several processes only some may have had the signal.
                number = ending[0] if ending else signal.SIGTERM
                raise AskedToEnd(f"{said}; the same command goes on from the last one", number)


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


def fetch(metrics: dict[str, Tensor]) -> dict[str, float]:
    """Sum the shares of all processes and bring them to the host: the only wait of a step."""
    values = sum_over_processes(torch.stack([value.float() for value in metrics.values()]))
    return dict(zip(metrics, values.tolist()))


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


def _stopped(fabric: Fabric, folder: Path, steps: range, page: dict[str, Any]) -> str:
    """Leave what is known, and say it in a line."""
    if fabric.is_global_zero:
        with contextlib.suppress(OSError):  # what is said below matters more
            write_diagnosis(folder, page | {"skipped_steps": [steps[0] + 1, steps[-1] + 1]})
    found = checkpoints(folder)
    left = f"the last checkpoint is {found[-1].name}" if found else "no checkpoint was saved"
    return (
        f"steps {steps[0] + 1} to {steps[-1] + 1} had no finite gradient and were skipped; "
        f"{folder / DIAGNOSIS} tells of which images and where, {left}: try a lower --optim.rate "
        "or --optim.clip-gradient 3"
    )
