"""`croc sweep`: train every setting with every seed, score every run, and plot the ablation.

What is finished follows from the runs' checkpoints and from evaluations/results.jsonl, whose cells
are not computed again. Any number of processes may share a sweep. A process locks a run's file in
locks/ while it works on the run; the lock ends with the process, even if that is killed. What fails
is added to failures.jsonl, so that processes that have already started do not try it again.
"""

import contextlib
import gc
import json
import math
import os
import re
import shlex
import textwrap
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from croc.config import PretrainConfig, option_names, parse, require
from croc.data.loader import steps_per_epoch
from croc.data.sources import open_source
from croc.errors import Interrupted, UserError
from croc.eval.evaluate import open_data
from croc.eval.protocols import PROTOCOLS, Usual, read_options
from croc.eval.table import (
    STOPPED,
    Row,
    TableOptions,
    compute,
    error_line,
    log,
    plan_row,
    print_table,
)
from croc.eval.table_formats import fill_cells, layout, make_record, write_record
from croc.io import read_lines, try_lock
from croc.lab.report.hook import ReportHook
from croc.plotting import COLORS, save_chart, span_enough, verbatim
from croc.recipes import open_recipe
from croc.results import key_of, read_results
from croc.tables import one_line
from croc.train.loop import make_method, pretrain
from croc.train.run_folder import check_run_folder
from croc.weights.checkpoint import checkpoints, step_of
from croc.weights.init import follow_init

PICTURE, FAILURES = "sweep.png", "failures.jsonl"
POLL_SECONDS = 1.0
EVALUATION = (*(f"--{protocol}." for protocol in PROTOCOLS), "--device", "--precision", "--workers")
"""Prefixes of the options of `croc evaluate table`."""
SET_BY_SWEEP = ("--run.seed", "--run.folder", "--run.devices", "--run.nodes")


@dataclass(frozen=True)
class SweepConfig:
    """What to vary, what to evaluate on, and where to write the results."""

    to: str
    """Output folder for runs, table.md, .tex and .json, and sweep.png; rerun to resume."""
    data: tuple[str, ...]
    """KIND:PATH (a folder or a .tar) as for `croc evaluate table`, or scenes."""
    vary: str | None = None
    """One option of the recipe, without the leading dashes, such as cluster.position-weight."""
    values: tuple[str, ...] = ()
    """The values to try, one setting each; quote values that contain spaces: '0.1 1'."""
    settings: tuple[str, ...] = ()
    """Instead of vary and values: 'NAME=OPTIONS' for each setting. OPTIONS may be empty, contain
    several options, or start with another recipe: 'K 6=--cluster.k-select fixed --cluster.k-max 6',
    'DINO=@dino-demo'."""
    seeds: tuple[int, ...] = (0,)
    """Every setting is trained with each seed."""
    protocols: tuple[Usual, ...] = PROTOCOLS
    """Protocols to run, each on the datasets that support it."""
    hold_out: float = 0.0
    """Score on this held-out fraction of the training split instead of the validation split, so
    that model selection does not overfit to the validation split."""

    def __post_init__(self) -> None:
        is_varied = self.vary is not None
        require(
            is_varied == bool(self.values) and is_varied != bool(self.settings),
            "pass either --sweep.vary OPTION --sweep.values A B …, or "
            "--sweep.settings NAME=OPTIONS …",
        )
        require(bool(self.seeds), "--sweep.seeds is empty")


@dataclass(frozen=True)
class Sweep:
    """Run an ablation: train every setting with every seed, evaluate and plot. Also accepts
    the recipe's options (except --run.folder, --run.seed, --run.devices and --run.nodes), and from
    croc evaluate table: protocol options such as --linear.steps 500, --device, --precision and
    --workers."""

    sweep: SweepConfig


@dataclass(frozen=True)
class Run:
    """A setting with a seed; each has its own folder."""

    setting: str
    recipe: str
    config: PretrainConfig

    @property
    def name(self) -> str:
        return f"{self.setting}, seed {self.config.run.seed}"

    @property
    def folder(self) -> Path:
        return Path(str(self.config.run.folder))


def run_command(arguments: Sequence[str]) -> bool:
    """Run the sweep; whether every run succeeded.

    Options are split as text, since each setting adds its own to the recipe's, and they need to be
    valid only together (`--cluster.k-select fixed` needs a k-max).
    """
    recipe, *words = arguments
    _, name = open_recipe(recipe)
    parts: dict[str, list[str]] = {"sweep": [], "evaluation": [], "recipe": []}
    part = "recipe"
    for word in words:
        if word.startswith("--sweep."):
            part = "sweep"
        elif word.startswith(EVALUATION):
            part = "evaluation"
        elif word.startswith("--"):
            part = "recipe"
        parts[part].append(word)
    sweep_words = ["--help"] if {"-h", "--help"} & set(words) else parts["sweep"]
    sweep = parse(Sweep, sweep_words, f"croc sweep {recipe}").sweep
    runs = plan_runs(sweep, recipe, parts["recipe"])
    try:
        return run_sweep(name, sweep, runs, parts["evaluation"])
    except (Interrupted, KeyboardInterrupt):
        log(STOPPED)
        raise


def plan_runs(sweep: SweepConfig, recipe: str, words: Sequence[str]) -> list[Run]:
    """Every setting with every seed, parsed and checked.

    All settings with the first seed come first, so that a sweep that is stopped early has complete
    curves for some of the seeds.
    """
    settings: dict[str, Run] = {}
    for name, options in read_settings(sweep):
        slug = re.sub(r"[^\w.+-]+", "-", name).strip("-") or "setting"
        try:
            if slug in settings:
                raise UserError(f"it would share a folder with {settings[slug].setting!r}")
            settings[slug] = parse_setting(name, shlex.split(options), recipe, words)
        except (UserError, ValueError) as error:
            raise UserError(f"setting {name!r}: {error}") from None
    runs = []
    for seed in dict.fromkeys(sweep.seeds):
        for slug, setting in settings.items():
            folder = str(Path(sweep.to) / "runs" / f"{slug}-seed-{seed}")
            run = replace(setting.config.run, seed=seed, folder=folder, devices=1, nodes=1)
            runs.append(replace(setting, config=replace(setting.config, run=run)))
    return runs


def read_settings(sweep: SweepConfig) -> list[tuple[str, str]]:
    """The name and the options of each setting; numbers are sorted, names are not."""
    settings = [(one_line(value), f"--{sweep.vary} {value}") for value in sweep.values]
    if all(is_number(name) for name, _ in settings):
        settings.sort(key=lambda setting: float(setting[0]))
    for setting in sweep.settings:
        name, equals, options = setting.partition("=")
        name = one_line(name)
        if not equals or not name or name.startswith("-"):
            raise UserError(
                f"--sweep.settings {setting!r}: give 'NAME=OPTIONS', or 'NAME=' for none"
            )
        settings.append((name, options))
    return settings


def parse_setting(name: str, options: list[str], recipe: str, words: Sequence[str]) -> Run:
    """A setting's own options come after those of the recipe, which they override."""
    if options and options[0].startswith("@"):
        recipe = options.pop(0)[1:]
    words = [*words, *options]
    for flag in (word.partition("=")[0].replace("_", "-") for word in words):
        if flag in SET_BY_SWEEP:
            raise UserError(f"leave out {flag}, which the sweep sets (see docs/sweep.md)")
    default, recipe_name = open_recipe(recipe)
    config = parse(type(default), words, f"croc pretrain {recipe}", default)
    if config.model.init != default.model.init:
        config = follow_init(config, recipe_name, option_names(words))
    return Run(name, recipe_name, config)


def is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def run_sweep(recipe: str, sweep: SweepConfig, runs: Sequence[Run], evaluation: list[str]) -> bool:
    """Whether every run succeeded; all settings are checked before the first run starts."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("do not use torchrun with croc sweep: start the same command once per GPU")
    folder = Path(sweep.to)
    evaluations = folder / "evaluations"
    options, requests = read_options(
        evaluation,
        TableOptions,
        f"croc sweep {recipe}",
        weights=("run",),
        data=sweep.data,
        protocols=sweep.protocols,
        hold_out=sweep.hold_out,
        device=runs[0].config.run.accelerator,
    )
    data = open_data(requests, evaluations)
    last_steps = check_runs(runs)
    columns = layout(requests)
    earlier = len(read_failures(folder))  # to be tried again
    rows: dict[str, Row] = {}
    cells: dict[str, list[dict[str, Any]]] = {}
    record: dict[str, Any] = {}
    files: list[str] = []
    visited: set[str] = set()

    def new_failures() -> list[dict[str, str]]:
        labels = {run.name for run in runs}
        return [line for line in read_failures(folder)[earlier:] if line["label"] in labels]

    def plan(run: Run) -> Row:
        if run.name not in rows:
            rows[run.name] = plan_row(run.name, str(run.folder), requests, data, options)
        return rows[run.name]

    for run in unlocked_runs(runs, folder / "locks"):
        if all(line["label"] != run.name for line in new_failures()):
            try:
                train(run, last_steps[run.setting])
                _, failed = compute([plan(run)], data, options, evaluations)
            except Interrupted:  # the run has saved a checkpoint
                raise
            except Exception as error:  # the other runs may still succeed
                if not isinstance(error, UserError):
                    traceback.print_exception(error)
                reason = error_line(error)
                failure = {"label": run.name, "protocol": "training", "data": run.recipe}
                failed = [{**failure, "reason": reason}]
                log(f"failed: {run.name}: {reason}")
            with (folder / FAILURES).open("a") as file:  # one write: processes may share it
                file.write("".join(json.dumps(failure) + "\n" for failure in failed))
        visited.add(run.name)
        failures = new_failures()
        results = {key_of(line): line["scores"] for line in read_results(evaluations)}
        for other in runs:  # those of other processes, too
            with contextlib.suppress(UserError):  # of a damaged checkpoint, once it is visited
                if is_trained(other, last_steps[other.setting]):
                    keys = {(x.name, x.data): key for x, key in plan(other).cells}
                    scores = {name: results[key] for name, key in keys.items() if key in results}
                    if len(scores) == len(keys) or other.name in visited:
                        cells[other.name] = fill_cells(columns, scores)
        done = {*cells, *(failure["label"] for failure in failures)}
        names = "; ".join(run.name for run in runs if run.name not in done)
        notes = [f"Not finished yet: {names}."] if names else []
        record = make_record(columns, summarize(runs, cells), requests, notes, failures)
        files = write_record(record, folder)
        if cells:
            save_chart(make_figure(record, sweep.vary or ""), folder / PICTURE)
            files.append(PICTURE)
    return print_table(record, folder, [*files, "runs/"])


def check_runs(runs: Sequence[Run]) -> dict[str, int]:
    """Open each setting's images and build its networks once; the last step of its runs."""
    last_steps: dict[str, int] = {}
    for run in runs:
        check_run_folder(run.folder, run.config)
        if run.setting in last_steps:
            continue
        config = run.config
        try:
            count = len(open_source(config.data, seed=0))
            steps = config.optim.epochs * steps_per_epoch(count, config.optim.batch)
            if not steps:
                raise UserError(f"{count} images do not fill a batch: pass --optim.batch {count}")
            last_steps[run.setting] = min(steps, config.run.stop_after_steps or steps)
            make_method(config, torch.device("cpu"))
        except UserError as error:
            raise UserError(f"setting {run.setting!r}: {error}") from None
    return last_steps


def unlocked_runs(runs: Sequence[Run], locks: Path) -> Iterator[Run]:
    """Each run that no other process is working on, locked until the next one is requested. Runs
    that are locked by other processes come last, when they are finished or abandoned."""
    remaining, waiting = list(runs), False
    locks.mkdir(parents=True, exist_ok=True)
    while remaining:
        for run in list(remaining):
            with (locks / run.folder.name).open("ab") as file:
                if try_lock(file):
                    remaining.remove(run)
                    log(f"run {len(runs) - len(remaining)} of {len(runs)}: {run.name}")
                    yield run
        if remaining:
            if not waiting:
                names = "; ".join(run.name for run in remaining)
                log(f"waiting for runs that other processes are working on: {names}")
            waiting = True
            time.sleep(POLL_SECONDS)


def train(run: Run, last_step: int) -> None:
    """Train a run to its last step, unless it has a checkpoint of it."""
    if not is_trained(run, last_step):
        pretrain(run.config, run.recipe, ReportHook)
        gc.collect()
        torch.cuda.empty_cache()


def read_failures(folder: Path) -> list[dict[str, str]]:
    """Of all processes so far, oldest first."""
    return read_lines(folder / FAILURES) if (folder / FAILURES).exists() else []


def is_trained(run: Run, last_step: int) -> bool:
    return any(step_of(path) >= last_step for path in checkpoints(run.folder))


def summarize(runs: Sequence[Run], cells: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each setting: mean and sample deviation over the seeds, and each run's scores."""
    rows = []
    for setting in dict.fromkeys(run.setting for run in runs):
        finished = [run for run in runs if run.setting == setting and run.name in cells]
        if not finished:
            continue
        summary = []
        for column in zip(*(cells[run.name] for run in finished)):
            values = [cell["value"] for cell in column if cell["value"] is not None]
            deviation = stdev(values) if len(values) > 1 else column[0]["deviation"]
            mean = fmean(values) if values else None
            summary.append({"value": mean, "deviation": deviation, "best": False})
        scores = [
            {"folder": str(run.folder), "scores": [cell["value"] for cell in cells[run.name]]}
            for run in finished
        ]
        rows.append({"label": setting, "cells": summary, "runs": scores})
    return rows


def make_figure(record: dict[str, Any], vary: str) -> Figure:
    """A panel for each protocol and dataset, with one dot per seed."""
    rows, columns = record["rows"], record["columns"]
    labels = [verbatim(textwrap.shorten(row["label"], 30, placeholder="…")) for row in rows]
    slant = 40 if sum(map(len, labels)) > 32 else 0
    # A line between the means of names, not numbers, would stand for nothing.
    line = "D-" if all(is_number(row["label"]) for row in rows) else "D"
    across = min(3, len(columns))
    down = math.ceil(len(columns) / across)
    figure = Figure(figsize=(4 * across, 3.2 * down), dpi=120, layout="constrained")
    for number, column in enumerate(columns):
        axes = figure.add_subplot(down, across, number + 1)
        for x, row in enumerate(rows):
            values = np.array([run["scores"][number] for run in row["runs"]], float)  # None is NaN
            axes.scatter([x] * len(values), values, color=COLORS[0], alpha=0.5, lw=0)
        means = np.array([row["cells"][number]["value"] for row in rows], float)
        axes.plot(range(len(rows)), means, line, color=COLORS[0], ms=4)
        span_enough(axes)
        axes.set_title(verbatim(f"{column['group']}, {column['title']}"), fontsize=9, loc="left")
        axes.set_xlabel(vary, fontsize=8)
        axes.set_xticks(range(len(rows)), labels, rotation=slant, ha="right" if slant else "center")
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
