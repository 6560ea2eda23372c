"""The training loop: schedule, gradients, update, teacher, log, save, stop."""

import contextlib
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from croc.config import DinoConfig, MaeConfig, OptimConfig, PretrainConfig, require
from croc.data.loader import batch_indices, make_loader, steps_per_epoch, worker_count
from croc.data.sources import ImageSource, open_source
from croc.errors import Interrupted, LostPeerError, UserError
from croc.fabric import Fabric, ModelParallelStrategy
from croc.io import read_gauges
from croc.kernels import use_kernels
from croc.method.croc import Croc
from croc.method.distributed import (
    fetch,
    full_state,
    is_lost_peer,
    leave_processes,
    shard_teacher,
    union_over_processes,
)
from croc.method.mae import Mae
from croc.method.optim import Guard, clip_gradient, make_optimizer, set_lr
from croc.method.profiling import profile_range
from croc.method.types import Canvases, ScheduleState, cosine
from croc.signals import catch_signals
from croc.train.compile import CudaGraph, compile_parts, use_cuda_graph
from croc.train.distributed import StopRequest, compiles, make_fabric, processes_here
from croc.train.gauges import Gauges
from croc.train.health import Health, non_finite_gradient
from croc.train.log import RunLog
from croc.train.run_folder import TrainState, check_run_folder, claim_folder, try_save
from croc.weights.checkpoint import checkpoints, load_checkpoint
from croc.weights.init import load_into

LOST_PEER = (
    "another process of this run has exited or stopped responding; rerun the same command to "
    "resume from the last checkpoint (the number of processes may change)"
)
OUT_OF_MEMORY = (
    "out of GPU memory: try a smaller --run.micro-batch, --optim.batch or "
    "--head.image-prototypes, and check whether other programs use the GPU"
)

SaveHook = Callable[[dict[str, Tensor], int, bool], None]
"""Called in the first process with the backbone's weights, the step, and whether it is the last."""
SaveHookFactory = Callable[[PretrainConfig, ImageSource, Path, int], SaveHook]
"""Makes a hook from the configuration, the images, the run folder and the first step."""


def pretrain(
    config: PretrainConfig, recipe: str, make_save_hook: SaveHookFactory | None = None
) -> Path:
    """Train, or resume the run in the folder; returns the folder. With `run.report`, the hook is
    called at the start and after each checkpoint; an error in it does not stop the run."""
    run = config.run
    anchored = isinstance(config, DinoConfig) and config.anchor.weight > 0
    require(
        config.model.init is not None or not anchored,
        "--anchor.weight needs --init: the weights to stay close to",
    )
    folder = Path(run.folder or f"runs/{recipe}")
    source = open_source(config.data, run.seed)
    check_run_folder(folder, config)
    fabric = make_fabric(run)
    # Raises now, not in the first step, if the batch does not fit the images or the processes.
    batch_indices(0, len(source), config.optim.batch, run.seed, 0, fabric.world_size)
    try:
        fabric.launch()
        train(fabric, config, recipe, source, folder, make_save_hook)
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
    fabric: Fabric,
    config: PretrainConfig,
    recipe: str,
    source: ImageSource,
    folder: Path,
    make_save_hook: SaveHookFactory | None,
) -> None:
    """The loop of one process: schedule, gradients, update, teacher, log, save, stop."""
    run, optim = config.run, config.optim
    existing = checkpoints(folder)
    trainer, state = start_or_resume(fabric, config, len(source), existing)
    per_epoch = steps_per_epoch(len(source), optim.batch)
    last_step = optim.epochs * per_epoch
    if run.stop_after_steps is not None:
        last_step = min(last_step, run.stop_after_steps)
    loader = make_loader(
        source,
        canvas_px=config.data.max_side_px,
        batch=optim.batch,
        seed=run.seed,
        first_step=state.step,
        last_step=last_step,
        rank=fabric.global_rank,
        processes=fabric.world_size,
        workers=worker_count(config.data, processes_here(fabric, run)),
        device=fabric.device,
    )
    is_first = fabric.is_global_zero
    with (
        claim_folder(folder, config, recipe, existing) if is_first else contextlib.nullcontext(),
        RunLog(folder, state.step, last_step, writes=is_first) as log,
        contextlib.closing(loader),
        catch_signals() as signals,
    ):
        verb = f"resumes from step {state.step}" if state.step else "starts"
        devices = f"{fabric.world_size} × {fabric.device.type}"
        images = f"{len(source):,} images (first: {source.name(0)})"
        if state.step >= last_step:
            verb = "has already finished"
        log.say(f"{folder}: {verb}, {last_step} steps in total, on {devices}; {images}")
        if trainer.origin:
            log.say(f"backbone initialized from {trainer.origin}; heads start from scratch")

        health = Health(config)
        report = CheckpointReport(trainer, source, folder, log, health, state.step, make_save_hook)
        report(state.step, last=False)
        stop_requested = StopRequest(fabric, signals, state.step)
        undecoded: list[str] = []  # since the last logged step
        postponed = False  # whether a checkpoint was due after a skipped step
        problem = ""  # why the last checkpoint could not be written

        for canvases in loader:
            schedule = schedule_at(state.step, optim, per_epoch)
            metrics = trainer.step(canvases, schedule)  # gradients, update, teacher
            state.step += 1
            undecoded += canvases.failed
            log.advance(state.step)

            stops = stop_requested(state.step)
            last = stops or state.step == last_step
            logs = last or state.step == 1 or state.step % run.log_every_steps == 0
            saves = last or state.step % run.checkpoint_every_steps == 0 or (logs and postponed)
            if logs or saves:
                values = fetch(metrics)
                report_undecoded(undecoded, state, config, log)
                in_a_row = report_skipped(trainer.guard, state, log)
                if in_a_row >= run.max_skipped:
                    steps = range(state.step - in_a_row, state.step)
                    raise non_finite_gradient(folder, values, steps)
                # Do not replace a good checkpoint while gradients are not finite.
                postponed = saves and in_a_row > 0 and not last
                if logs:
                    values |= {"lr": schedule.lr, "weight_decay": schedule.weight_decay}
                    log.write(state.step, schedule.epoch, values, optim.batch)
                    for warning in health.warnings(values):
                        log.say(warning)
                    stop_requested.set_pace(state.step)
            if saves and not postponed:
                is_second = problem != ""
                problem = try_save(fabric, folder, state, run.keep_every_steps)
                if problem and (is_second or last) and not (stops and checkpoints(folder)):
                    raise UserError(problem)
                if problem:
                    log.say(f"{problem}; training ends if the next one cannot be written either")
                if not stops:  # a stopping run has no time for gauges and pictures
                    report(state.step, last=last)
            if stops:
                fabric.barrier()  # Lightning kills all processes if one ends early
                outcome = problem or f"saved step {state.step}"
                raise Interrupted(
                    f"interrupted: {outcome}; the same command resumes from the last checkpoint",
                    # Only some of the processes may have received the signal.
                    signals[0] if signals else signal.SIGTERM,
                )


def start_or_resume(
    fabric: Fabric, config: PretrainConfig, images: int, existing: list[Path]
) -> tuple["Trainer", TrainState]:
    """A new trainer and its state, or those of the last checkpoint."""
    resumed = load_checkpoint(existing[-1]) if existing else None
    trainer = Trainer(fabric, config, None if resumed else config.model.init)
    state = TrainState(trainer.method.modules, trainer.optimizer, images)
    if resumed:
        state.load_state_dict(resumed)
        trainer.guard.add_skipped(state.skipped)
    progress = set(union_over_processes([f"step {state.step} of {images:,} images"]))
    if len(progress) > 1:  # else they would diverge unnoticed
        raise UserError(
            f"the processes do not see the same run ({'; '.join(sorted(progress))}): "
            "--run.folder must be on a shared file system, and --data.root must contain the same "
            "images on every machine"
        )
    return trainer, state


def report_undecoded(
    undecoded: list[str], state: TrainState, config: PretrainConfig, log: RunLog
) -> None:
    """Report files that no process had reported yet, empty the list, and end the run if too many
    files cannot be decoded."""
    for name in state.failed.add(union_over_processes(undecoded)):
        log.say(f"cannot be decoded, replaced by the next readable image: {name}")
    undecoded.clear()
    seen = state.step * config.optim.batch
    state.failed.check(seen, state.images, config.data.max_corrupt_fraction)


def report_skipped(guard: Guard, state: TrainState, log: RunLog) -> int:
    """Report newly skipped steps; returns how many of the latest were skipped in a row."""
    before, (state.skipped, in_a_row) = state.skipped, guard.counts()
    if state.skipped > before:
        log.say(f"{state.skipped} steps skipped so far (non-finite gradient)")
    return in_a_row


def schedule_at(step: int, optim: OptimConfig, steps_per_epoch: int) -> ScheduleState:
    """The schedule at a step: linear warm-up from 0 to lr · batch / 256, then cosine decay to
    lr_end (not scaled). A pure function of the step, so checkpoints need not store it."""
    total = optim.epochs * steps_per_epoch
    warmup = optim.warmup_epochs * steps_per_epoch
    peak = optim.lr * optim.batch / 256
    if step < warmup:
        rate = peak * step / max(1, warmup - 1)
    else:
        rate = cosine(peak, optim.lr_end, step - warmup, total - warmup)
    decay = cosine(optim.weight_decay, optim.weight_decay_end, step, total)
    return ScheduleState(step, total, step // steps_per_epoch, rate, decay)


class Trainer:
    """The networks and the optimizer on their devices, and one training step."""

    def __init__(self, fabric: Fabric, config: PretrainConfig, init: str | None = None) -> None:
        """`init` names weights to start from; `origin` then describes what was loaded."""
        run, device = config.run, fabric.device
        torch.manual_seed(run.seed)
        use_kernels(run.kernels)
        self.fabric, self.config, self.origin = fabric, config, None
        self.method = make_method(config, device)
        compiled = compiles(run, device)
        if compiled:
            compile_parts(self.method)
        if init is not None:
            first, *others = self.method.backbones
            self.origin = load_into(first, init)
            for backbone in others:
                backbone.load_state_dict(first.state_dict())
        self.student = fabric.setup_module(self.method.student)
        self.student.train()
        if isinstance(fabric.strategy, ModelParallelStrategy) and "teacher" in self.method.modules:
            shard_teacher(self.method.modules["teacher"], fabric.strategy.device_mesh)
        optimizer = make_optimizer(self.method.student, device, config.optim)
        self.optimizer: Any = fabric.setup_optimizers(optimizer)
        self.guard = Guard(self.optimizer, device)
        self.uses_graph = use_cuda_graph(run, fabric, compiled)
        self.compute_gradients = partial(self.method.compute_gradients, fabric, self.student)
        self.graph = CudaGraph(self.method, self.compute_gradients) if self.uses_graph else None

    def step(
        self, canvases: Canvases, schedule: ScheduleState, *, use_graph: bool = True
    ) -> dict[str, Tensor]:
        """Update student and teacher without waiting for the device; eagerly if not `use_graph`."""
        method = self.method
        method.set_schedule(schedule)
        compute = self.graph if self.graph and use_graph else self.compute_gradients
        metrics = compute(canvases)
        method.freeze_prototypes(schedule)
        with profile_range("update"):
            set_lr(self.optimizer, schedule)
            norm = clip_gradient(method.student.parameters(), self.config.optim.clip_gradient)
            # Metrics are summed over processes, and this one is the same on all of them.
            metrics["gradient_norm"] = norm / self.fabric.world_size
            self.guard.step(norm, metrics["loss"])
        method.update_teacher(schedule)
        return metrics


def make_method(config: PretrainConfig, device: torch.device) -> Croc | Mae:
    if isinstance(config, DinoConfig):  # CrocConfig is one too
        return Croc(config, device)
    assert isinstance(config, MaeConfig)
    return Mae(config, device)


class CheckpointReport:
    """Gauges and the caller's save hook, at the start and after each checkpoint. Errors in them
    never stop the run."""

    def __init__(
        self,
        trainer: Trainer,
        source: ImageSource,
        folder: Path,
        log: RunLog,
        health: Health,
        first_step: int,
        make_save_hook: SaveHookFactory | None,
    ) -> None:
        config = trainer.config
        self._method, self._folder, self._log = trainer.method, folder, log
        self._health, self._hook = health, None
        self._gauges = Gauges(trainer.fabric, config, source, folder)
        self._enabled = config.run.report
        if make_save_hook and config.run.report and log.writes:
            with log.never_fatal("the report could not be written"):
                self._hook = make_save_hook(config, source, folder, first_step)

    def __call__(self, step: int, *, last: bool) -> None:
        """Measure the gauges of this step, unless there are any, and call the hook. A checkpoint
        saved on a signal gets its gauges when the run resumes."""
        if not self._enabled:
            return
        network = self._method.modules.get("teacher", self._method.student)
        weights = full_state(network.get_submodule("backbone").state_dict())  # by all processes
        if not self._log.writes:
            return
        with self._log.never_fatal("the gauges could not be computed"):
            if all(line["step"] != step for line in read_gauges(self._folder)):
                gauges = self._gauges.measure(weights, step)
                self._log.write_gauges(step, gauges)
                if warning := self._health.gauge_warning(gauges):
                    self._log.say(warning)
        if self._hook:
            with self._log.never_fatal("the report could not be written"):
                self._hook(weights, step, last)
