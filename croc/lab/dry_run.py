"""`croc pretrain --dry-run`: what a run needs, from its first steps in a temporary folder."""

import contextlib
import gc
import io
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from croc.config import PretrainConfig
from croc.data.loader import steps_per_epoch
from croc.data.sources import open_source, read_images
from croc.errors import UserError
from croc.io import read_metrics
from croc.lab.report.hook import ReportHook
from croc.signals import is_first_process
from croc.train.loop import pretrain
from croc.train.run_folder import KEPT, check_run_folder
from croc.weights.checkpoint import checkpoints, step_of

CHECKED_IMAGES = 100
"""Number of images that are decoded to find corrupt files."""
ON_CPU, ON_GPU = (15, 5), (60, 20)
"""Number of steps, and of timed steps at the end, after the prefetched batches are used up."""
RESTART_STEPS = 5
"""Steps of the second start on a GPU, until the step has been captured as a CUDA graph."""


def dry_run(config: PretrainConfig, recipe: str) -> None:
    """Print what was found, measured and expected; nothing is written to the run's folder."""
    run, batch = config.run, config.optim.batch
    folder = Path(run.folder or f"runs/{recipe}").absolute()
    check_run_folder(folder, config)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{existing} is not writable: choose another --run.folder")
    source = open_source(config.data, run.seed)
    indices = range(min(CHECKED_IMAGES, len(source)))
    readable = {index for index, _ in read_images(source, indices)}
    broken = [source.name(index) for index in indices if index not in readable]
    last_step = config.optim.epochs * steps_per_epoch(len(source), batch)
    last_step = min(last_step, run.stop_after_steps or last_step)
    saved = checkpoints(folder)
    left = last_step - (step_of(saved[-1]) if saved else 0)

    on_gpu = run.accelerator == "cuda" or (run.accelerator == "auto" and torch.cuda.is_available())
    steps, timed = ON_GPU if on_gpu else ON_CPU
    with TemporaryDirectory() as temporary:
        trial = replace(
            run,
            folder=f"{temporary}/run",
            resume="never",
            stop_after_steps=min(steps, last_step),
            log_every_steps=timed,
            checkpoint_every_steps=steps + 1,
        )
        started = time.time()
        with contextlib.redirect_stderr(io.StringIO()):
            path = pretrain(replace(config, run=trial), recipe, ReportHook)
        ended = time.time()
        if not is_first_process():
            return
        start = {"step": 0, "seconds": 0.0}  # of a run of a single step
        *_, before, last = [start, *read_metrics(path)]
        step_s = (last["seconds"] - before["seconds"]) / (last["step"] - before["step"])
        checkpoint_bytes = checkpoints(path)[-1].stat().st_size
        # What follows the last line of the metrics: a checkpoint, its gauges, the report.
        save_s = ended - (path / "metrics.jsonl").stat().st_mtime
        start_s = ended - started - save_s - step_s * last["step"]
        compile_s = 0.0
        single_gpu = on_gpu and run.nodes == 1 and 1 in (run.devices, torch.cuda.device_count())
        if single_gpu and run.compile is not False:
            restart_s = start_again(path, f"{temporary}/again") - RESTART_STEPS * step_s
            start_s, compile_s = restart_s, max(0.0, start_s - restart_s)
    saves = -(-left // run.checkpoint_every_steps)
    files = min(saves, KEPT) + (left // run.keep_every_steps if run.keep_every_steps else 0)
    free_bytes = shutil.disk_usage(existing).free

    def print_row(name: str, text: str) -> None:
        print(f"{name:12}{text}")

    names = "".join(f"\n{'':12}{name}" for name in broken[:5])
    print_row("images", f"{len(source):,} (first: {source.name(0)})")
    print_row("undecodable", f"{len(broken)} of the first {len(indices)}{names}")
    resuming = f", resuming from step {last_step - left:,}" if saved else ""
    print_row("steps", f"{left:,} at batch size {batch}{resuming}")
    print_row("speed", f"{batch / step_s:,.0f} images/s, {1e3 * step_s:,.0f} ms per step")
    memory = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB RAM"
    if on_gpu:
        memory = f"{torch.cuda.max_memory_reserved() / 2**30:.1f} GiB of GPU memory, {memory}"
    print_row("memory", f"{memory} (peak of one process, without loader workers)")
    print_row("time", duration(start_s + step_s * left + save_s * saves))
    print_row("", f"{start_s:.0f} s to start, {save_s:.1f} s for each of {saves:,} checkpoints")
    if compile_s:
        print_row("", f"{compile_s:.0f} s more to compile, which this dry run has already done")
    disk = f"{files * checkpoint_bytes / 2**30:.1f} GiB for {files} checkpoints"
    print_row("disk", f"{disk}, {free_bytes / 2**30:.0f} GiB free")
    print_row("folder", str(folder))


def start_again(run: Path, folder: str) -> float:
    """Seconds for the first steps of a second run, in a new process like a user's run: most of its
    compiled code is already in torch's cache on disk."""
    gc.collect()
    torch.cuda.empty_cache()
    command = [sys.executable, "-m", "croc", "pretrain", str(run / "config.json")]
    command += [
        "--run.folder",
        folder,
        "--run.stop-after-steps",
        str(RESTART_STEPS),
        "--run.no-report",
    ]
    started = time.time()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the second start failed: {done.stderr.strip().splitlines()[-1]}")
    return time.time() - started


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
