"""Run a sweep: check everything, then train and score run by run, and write after each.

Any number of processes share a sweep. Each byte of an empty file stands for a run, and the process
that works on the run has locked the byte. Such locks end with their process, however it ends.
"""

import fcntl
import gc
import json
import os
import re
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import torch

from croc.config import write_config
from croc.data.loader import steps_per_epoch
from croc.data.sources import open_source
from croc.errors import AskedToEnd, UserError
from croc.eval.evaluate import OpenData, find_machine, open_data
from croc.eval.protocols import Request
from croc.eval.table import (
    STOPPED,
    TableOptions,
    compute,
    describe,
    failure_name,
    log,
    plan_row,
    read_options,
)
from croc.io import read_metrics, replacing
from croc.lab.report.hook import ReportHook
from croc.lab.sweep import report
from croc.lab.sweep.command import Run, SweepConfig
from croc.method.build import build_method
from croc.plotting import save_chart
from croc.train.loop import pretrain
from croc.weights.checkpoint import checkpoints, step_of
from croc.weights.open import open_backbone

FILE, TABLE, PICTURE, LOCK = "sweep.json", "sweep.md", "sweep.png", "sweep.lock"
RESULTS, UNTRAINED, FIRST_RUN = 0, 1, 2
"""Bytes of the lock file; the last is followed by those of the other runs."""
POLL_SECONDS = 1.0
EXPECTED = (UserError, MemoryError, torch.OutOfMemoryError)
"""Failures that their message explains; for others the traceback is printed, too."""


def run_sweep(
    recipe: str,
    sweep: SweepConfig,
    runs: Sequence[Run],
    options: Sequence[str],
    evaluation: list[str],
) -> bool:
    """Whether every run succeeded; all settings are checked before the first run starts."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("start the same command once per GPU instead of torchrun")
    folder = Path(sweep.to)
    try:
        table_options, columns = read_options(
            evaluation,
            program=f"croc sweep {recipe}",
            weights=("run",),
            data=sweep.data,
            protocols=sweep.protocols,
            hold_out=sweep.hold_out,
            device=runs[0].config.run.accelerator,
        )
        opened = open_data(columns, folder / "evaluations")
    except UserError as error:  # these options have other names here
        message = re.sub(r"--(data|protocols|hold-out)\b", r"--sweep.\1", str(error))
        raise UserError(message) from None
    device = find_machine(table_options).device
    identity = report.identify(recipe, sweep, runs, columns)
    _check_folder(folder, identity)

    steps = _check_settings(runs, columns, opened, table_options)

    def score(label: str, spec: str) -> tuple[dict[str, Any], float, list[str]]:
        """Scores by protocol and data, seconds, and what failed."""
        row = plan_row(label, spec, columns, opened, table_options)
        finished, failures = compute([row], opened, table_options, folder / "evaluations")
        lines = {column.place: finished[key] for column, _, key in row.cells if key in finished}
        scores = {place: line["scores"] for place, line in lines.items()}
        seconds = sum(line["seconds"] for line in lines.values())
        return scores, seconds, [f"{failure_name(each)}: {each['reason']}" for each in failures]

    def trained(run: Run) -> bool:
        return any(step_of(each) >= steps[run.setting] for each in checkpoints(run.folder))

    def run_once(run: Run, lock_file: BinaryIO) -> dict[str, Any]:
        """Train and score one run, whatever it may fail with; its entry in sweep.json."""
        failed, scores, untrained, seconds = None, {}, {}, 0.0
        try:
            if not trained(run):
                pretrain(run.config, run.recipe, ReportHook)
                gc.collect()
                torch.cuda.empty_cache()
            scores, seconds, failures = score(run.name, str(run.folder))
            if sweep.untrained:
                # Runs whose networks are the same before training, such as those of two λ_pos,
                # share these scores: one process computes them, the others wait.
                with locked(lock_file, UNTRAINED, "the untrained networks"):
                    untrained, _, more = score(f"{run.name}, untrained", f"random:{run.folder}")
                failures += more
            failed = "; ".join(failures) or None
        except AskedToEnd:  # the run has saved a checkpoint; end the sweep
            raise KeyboardInterrupt from None
        except Exception as error:  # the other runs may still succeed
            if not isinstance(error, EXPECTED):
                traceback.print_exception(error)
            failed = describe(error)
            log(f"failed: {run.name}: {failed}")
        lines = read_metrics(run.folder) if (run.folder / "metrics.jsonl").exists() else []
        last_step = int(lines[-1]["step"]) if lines else 0
        entry = {
            "seed": run.config.run.seed,
            "folder": str(run.folder),
            "failed": failed,
            "steps": last_step,
            "images_seen": last_step * run.config.optim.batch,
            "training_s": round(report.training_seconds(lines), 2),
            "evaluating_s": round(seconds, 2),
            "scores": scores,
            "untrained": untrained,
            "metrics": report.last_metrics(lines),
        }
        return report.to_plain(entry)

    def write(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """With the results of other and earlier processes, whose runs are still there."""
        before = {}
        if (folder / FILE).exists():
            known = report.runs_of(json.loads((folder / FILE).read_text()))
            before = {
                run.name: known[run.name]
                for run in runs
                if run.name in known and not known[run.name]["failed"] and trained(run)
            }
        # A run that failed here may have succeeded elsewhere.
        own = {name: each for name, each in results.items() if not each["failed"]}
        merged = results | before | own
        command = {"recipe": recipe, "options": [*options, *evaluation], "sweep": asdict(sweep)}
        record = report.make_record(command, identity, runs, merged, columns, device)
        whole = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        for name, text in ((FILE, whole), (TABLE, report.to_markdown(record))):
            with replacing(folder / name) as partial:
                partial.write_text(text, encoding="utf-8")
        return record

    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    with (folder / LOCK).open("ab") as lock_file:
        with locked(lock_file, RESULTS, "the results"):
            _check_folder(folder, identity)  # another process may have created it by now
            record = write(results)
        try:
            remaining, waiting = list(range(len(runs))), False
            while remaining:
                # The runs of others come last, and are repeated if their process was killed.
                free = (each for each in remaining if try_lock(lock_file, FIRST_RUN + each))
                number = next(free, None)
                if number is None:
                    if not waiting:
                        names = "; ".join(runs[each].name for each in remaining)
                        log(f"waiting for runs that other processes are working on: {names}")
                    waiting = True
                    time.sleep(POLL_SECONDS)
                    continue
                remaining.remove(number)
                run = runs[number]
                state = " (trained before)" if trained(run) else ""
                log(f"run {number + 1} of {len(runs)}: {run.name}{state}")
                results[run.name] = run_once(run, lock_file)
                with locked(lock_file, RESULTS, "the results"):
                    record = write(results)
                fcntl.lockf(lock_file, fcntl.LOCK_UN, 1, FIRST_RUN + number)
        except KeyboardInterrupt:
            log(STOPPED)
            raise
        finally:
            if any(run["scores"] for run in report.runs_of(record).values()):
                with locked(lock_file, RESULTS, "the results"):
                    save_chart(report.make_figure(record), folder / PICTURE)
    report.print_record(record)
    drawn = f", {PICTURE}" if (folder / PICTURE).exists() else ""
    print(f"written to {folder}: {FILE}, {TABLE}{drawn}; the runs in runs/")
    finished = report.runs_of(record)
    failed = [f"{name} ({run['failed']})" for name, run in finished.items() if run["failed"]]
    if failed:
        count = f"{len(failed)} of {len(finished)} runs"
        log(f"croc: {count} failed, the same command runs only these again: {'; '.join(failed)}")
    return not failed


def try_lock(file: BinaryIO, byte: int) -> bool:
    """Lock a byte until it is unlocked, or the file closed; False if another process has it."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):  # POSIX allows either for a lock that is taken
        return False
    except OSError as error:
        raise UserError(
            f"{file.name} cannot be locked ({error.strerror}): choose a --sweep.to on "
            "another file system"
        ) from None
    return True


@contextmanager
def locked(file: BinaryIO, byte: int, what: str) -> Iterator[None]:
    """Wait until no other process has the byte."""
    if not try_lock(file, byte):
        log(f"waiting for another process, which is working on {what}")
        while not try_lock(file, byte):
            time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)


def _check_settings(
    runs: Sequence[Run], columns: list[Request], opened: OpenData, options: TableOptions
) -> dict[str, int]:
    """Open each setting's data, networks and evaluation once; the last step of its runs."""
    steps: dict[str, int] = {}
    images: dict[Any, int] = {}
    for run in runs:
        if run.setting in steps:
            continue
        config = run.config
        try:
            if config.data not in images:
                images[config.data] = len(open_source(config.data, seed=0))
            count = images[config.data]
            per_epoch = steps_per_epoch(count, config.optim.batch)
            if not per_epoch:
                raise UserError(f"{count} images do not fill a batch: pass --optim.batch {count}")
            planned = config.optim.epochs * per_epoch
            steps[run.setting] = min(planned, config.run.stop_after_steps or planned)
            build_method(config, torch.device("cpu"), compile=False)
            if config.model.init is not None:
                open_backbone(config.model.init, flag="--init")
            with TemporaryDirectory() as parent:
                network = Path(parent) / "network"  # the name in messages
                write_config(network, config, run.recipe)
                spec = f"random:{network}"
                plan_row(spec, spec, columns, opened, options)
        except UserError as error:
            raise UserError(f"setting {run.setting!r}: {error}") from None
    return steps


def _check_folder(folder: Path, identity: dict[str, Any]) -> None:
    """Refuse a folder with another sweep or with other things in it."""
    # Listed first, in case another process creates the sweep just now.
    others = folder.exists() and any(
        path.suffix != ".partial" and path.name != LOCK for path in folder.iterdir()
    )
    if not (folder / FILE).exists():
        if others:
            raise UserError(f"{folder} exists and contains no sweep: choose another --sweep.to")
        return
    before = json.loads((folder / FILE).read_text())["configuration"]
    changes = list(report.differences(before, identity))
    if changes:
        raise UserError(
            f"{folder} contains another sweep ({'; '.join(changes[:3])}): choose another "
            "--sweep.to, or pass the same settings to resume it"
        )
