"""`croc sweep`: train every setting with every seed, score every run, and plot the ablation.

Any number of processes share a sweep. Each byte of an empty file stands for a run, and the process
that works on the run has locked the byte. Such locks end with their process, however it ends.
"""

import fcntl
import gc
import json
import math
import os
import re
import shlex
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, make_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Literal

import torch
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD

from croc.config import PretrainConfig, option_names, parse, require, write_config
from croc.data.loader import steps_per_epoch
from croc.data.sources import open_source
from croc.errors import Interrupted, UserError
from croc.eval.evaluate import OpenData, find_machine, open_data
from croc.eval.protocols import PROTOCOLS, Request
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
from croc.eval.table_formats import METRICS, data_titles
from croc.io import gpu_versions, hardware, read_metrics, replacing, try_lock
from croc.lab.report.hook import ReportHook
from croc.lab.report.page import training_seconds
from croc.plotting import COLORS, save_chart, span_enough, verbatim
from croc.tables import (
    MISSING,
    markdown_table,
    one_line,
    plain_markdown,
    table_console,
    terminal_table,
)
from croc.train.loop import make_method, pretrain
from croc.train.run_folder import FREE
from croc.weights.checkpoint import checkpoints, step_of
from croc.weights.open import follow_init, open_backbone

FILE, TABLE, PICTURE, LOCK = "sweep.json", "sweep.md", "sweep.png", "sweep.lock"
RESULTS, UNTRAINED, FIRST_RUN = 0, 1, 2
"""Bytes of the lock file; the last is followed by those of the other runs."""
POLL_SECONDS = 1.0
EVALUATION = (*(f"--{protocol}." for protocol in PROTOCOLS), "--device", "--precision", "--workers")
"""Prefixes of the options that are those of `croc evaluate table`."""
OURS = {
    "--run.seed": "--sweep.seeds sets the seeds",
    "--run.folder": "--sweep.to sets the folder",
    "--run.devices": "start the same command once per GPU: the processes share the runs",
    "--run.nodes": "start the same command once per GPU: the processes share the runs",
}
SHOWN_METRICS = {
    "k_mean": ("K", 2, "mean K at the end of training"),
    "valid_share": ("valid", 3, "share of clusters that both views have"),
}
"""Columns from metrics.jsonl: title and digits in the table, and title in the picture."""
NOT_METRICS = {"step", "epoch", "images_per_s", "seconds"}


@dataclass(frozen=True)
class SweepConfig:
    """What to vary, what to evaluate on, and where to write the results."""

    to: str
    """Output folder for runs, sweep.json, sweep.md and sweep.png; an existing sweep is resumed."""
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
    protocols: tuple[Literal["linear", "kmeans", "within", "incontext", "video"], ...] = PROTOCOLS
    """Protocols to run, each on the datasets that support it."""
    hold_out: float = 0.0
    """Score on this held-out fraction of the training split instead of the validation split, so
    that model selection does not overfit to the validation split."""
    untrained: bool = True
    """Also evaluate the untrained networks."""

    def __post_init__(self) -> None:
        require(
            (self.vary is not None) == bool(self.values) != bool(self.settings),
            "pass either --sweep.vary OPTION --sweep.values A B …, or "
            "--sweep.settings NAME=OPTIONS …",
        )
        require(bool(self.seeds), "--sweep.seeds is empty")


@dataclass(frozen=True)
class Run:
    """A setting with a seed, in a folder of its own."""

    setting: str
    recipe: str
    options: tuple[str, ...]
    """The setting's own, in addition to those that all settings share."""
    config: PretrainConfig

    @property
    def name(self) -> str:
        return f"{self.setting}, seed {self.config.run.seed}"

    @property
    def folder(self) -> Path:
        return Path(str(self.config.run.folder))


OpenRecipe = Callable[[str], tuple[PretrainConfig, str]]
"""From the word on the command line to a recipe's configuration and name."""


def run_command(recipe: str, arguments: Sequence[str], open_recipe: OpenRecipe) -> bool:
    """Run the sweep; whether every run succeeded.

    Options are split as text, since each setting adds its own to the recipe's, and they need to be
    valid only together (`--cluster.k-select fixed` needs a k-max).
    """
    default, name = open_recipe(recipe)
    sections: Any = [
        (each.name, each.type, getattr(default, each.name)) for each in fields(default)
    ]
    options = make_dataclass("Sweep", [("sweep", SweepConfig), *sections], frozen=True)
    options.__doc__ = (
        "Run an ablation: train every setting with every seed, evaluate and plot. "
        "Options of croc evaluate table (--linear.steps 500, --device cpu) are also accepted."
    )
    words: dict[str, list[str]] = {"sweep": [], "evaluation": [], "recipe": []}
    part = "recipe"
    for word in arguments:
        if word.startswith("--"):
            own = "evaluation" if word.startswith(EVALUATION) else "recipe"
            part = "sweep" if word.startswith("--sweep.") else own
        words[part].append(word)
    own = ["--help"] if {"-h", "--help"} & set(arguments) else words["sweep"]
    sweep = parse(options, own, f"croc sweep {recipe}").sweep
    runs = plan_runs(sweep, recipe, words["recipe"], open_recipe)
    return run_sweep(name, sweep, runs, words["recipe"], words["evaluation"])


def plan_runs(
    sweep: SweepConfig, recipe: str, words: Sequence[str], open_recipe: OpenRecipe
) -> list[Run]:
    """Every setting with every seed, parsed and checked.

    Numbers are sorted, names stay in the order given. Seed by seed: a sweep that is stopped early
    has the whole curve of some seeds.
    """
    texts = {one_line(value): f"--{sweep.vary} {value}" for value in sweep.values}
    for text in sweep.settings:
        name, equals, rest = text.partition("=")
        name = one_line(name)
        if not equals or not name or name.startswith("-"):
            raise UserError(f"--sweep.settings {text!r}: give 'NAME=OPTIONS', or 'NAME=' for none")
        if name in texts:
            raise UserError(f"two settings are called {name!r}: rename one")
        texts[name] = rest
    settings: dict[str, Run] = {}
    for name in sorted(texts, key=float) if all(map(is_number, texts)) else texts:
        slug = re.sub(r"[^\w.+-]+", "-", name).strip("-") or "setting"
        try:
            own = shlex.split(texts[name])
            used = own.pop(0)[1:] if own and own[0].startswith("@") else recipe
            for flag in (word.partition("=")[0].replace("_", "-") for word in (*words, *own)):
                if flag in OURS:
                    raise UserError(f"leave out {flag}: {OURS[flag]}")
            if slug in settings:
                raise UserError(f"it would share a folder with {settings[slug].setting!r}")
            default, recipe_name = open_recipe(used)
            # A setting's options come last and so override the recipe's.
            arguments = [*words, *own]
            config = parse(type(default), arguments, f"croc pretrain {used}", default)
            if config.model.init != default.model.init:
                config = follow_init(config, recipe_name, option_names(arguments))
        except (UserError, ValueError) as error:
            raise UserError(f"setting {name!r}: {error}") from None
        settings[slug] = Run(name, recipe_name, tuple(own), config)
    runs = []
    for seed in dict.fromkeys(sweep.seeds):
        for slug, setting in settings.items():
            folder = str(Path(sweep.to) / "runs" / f"{slug}-seed-{seed}")
            run = replace(setting.config.run, seed=seed, folder=folder, devices=1, nodes=1)
            runs.append(replace(setting, config=replace(setting.config, run=run)))
    return runs


def is_number(value: Any) -> bool:
    try:
        return not math.isnan(float(value))
    except ValueError:
        return False


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
    folder, scores_folder = Path(sweep.to), Path(sweep.to) / "evaluations"
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
        opened = open_data(columns, scores_folder)
    except UserError as error:  # these options have other names here
        message = re.sub(r"--(data|protocols|hold-out)\b", r"--sweep.\1", str(error))
        raise UserError(message) from None
    device = find_machine(table_options).device
    identity = identify(recipe, sweep, runs, columns)
    read_entries(folder, identity)  # before anything is written
    steps = check_settings(runs, columns, opened, table_options)
    command = {"recipe": recipe, "options": [*options, *evaluation], "sweep": asdict(sweep)}
    by_setting: dict[str, list[Run]] = {}
    for run in runs:
        by_setting.setdefault(run.setting, []).append(run)
    titles, shown = data_titles(column.data for column in columns), []
    for column in columns:
        metric = METRICS.get(column.protocol, ("mIoU",))[0]
        title = f"{titles[column.data]}: {column.name}, {metric}"
        shown.append({"place": column.place, "metric": metric, "title": title})

    def trained(run: Run) -> bool:
        return any(step_of(each) >= steps[run.setting] for each in checkpoints(run.folder))

    def finished(run: Run) -> bool:
        return run.name in entries and not entries[run.name]["failed"]

    def score(label: str, spec: str) -> tuple[dict[str, Any], float, list[str]]:
        """Scores by protocol and data, seconds, and what failed."""
        row = plan_row(label, spec, columns, opened, table_options)
        cells, failures = compute([row], opened, table_options, scores_folder)
        lines = {column.place: cells[key] for column, _, key in row.cells if key in cells}
        scores = {place: line["scores"] for place, line in lines.items()}
        seconds = sum(line["seconds"] for line in lines.values())
        return scores, seconds, [f"{failure_name(each)}: {each['reason']}" for each in failures]

    def run_once(run: Run) -> dict[str, Any]:
        """Train and score one run, whatever it may fail with; its entry in sweep.json."""
        failures, scores, untrained, seconds = [], {}, {}, 0.0
        try:
            if not trained(run):
                pretrain(run.config, run.recipe, ReportHook)
                gc.collect()
                torch.cuda.empty_cache()
            scores, seconds, failures = score(run.name, str(run.folder))
            if sweep.untrained:
                # Runs whose networks are the same before training, such as those of two λ_pos,
                # share these scores: one process computes them, the others wait.
                with locked(lock_file, UNTRAINED):
                    untrained, _, more = score(f"{run.name}, untrained", f"random:{run.folder}")
                failures += more
        except Interrupted:  # the run has saved a checkpoint
            raise
        except Exception as error:  # the other runs may still succeed
            if not isinstance(error, UserError):
                traceback.print_exception(error)
            failures.append(describe(error))
            log(f"failed: {run.name}: {failures[-1]}")
        lines = read_metrics(run.folder) if (run.folder / "metrics.jsonl").exists() else []
        step = int(lines[-1]["step"]) if lines else 0
        return {
            "seed": run.config.run.seed,
            "folder": str(run.folder),
            "failed": "; ".join(failures) or None,
            "steps": step,
            "images_seen": step * run.config.optim.batch,
            "training_s": round(training_seconds([line["seconds"] for line in lines]), 2),
            "evaluating_s": round(seconds, 2),
            "scores": scores,
            "untrained": untrained,
            "metrics": last_metrics(lines),
        }

    def update(**new: dict[str, Any]) -> dict[str, Any]:
        """Add entries to those in sweep.json, which other processes write too; the whole record."""
        with locked(lock_file, RESULTS):
            entries.update(read_entries(folder, identity))
            for run in runs:  # forget those whose run is lost
                if finished(run) and not trained(run):
                    del entries[run.name]
            entries.update(new)
            record = {
                "format": 1,
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "hardware": hardware(device),
                "versions": gpu_versions(),
                "command": command,
                "configuration": identity,
                "columns": shown,
                "settings": [summarize_setting(own, entries) for own in by_setting.values()],
                "to_come": [run.name for run in runs if run.name not in entries],
            }
            record = to_plain(record)
            text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            for name, content in ((FILE, text), (TABLE, to_markdown(record))):
                with replacing(folder / name) as partial:
                    partial.write_text(content, encoding="utf-8")
            if any(setting["scores"] for setting in record["settings"]):
                save_chart(make_figure(record), folder / PICTURE)
        return record

    folder.mkdir(parents=True, exist_ok=True)
    entries: dict[str, dict[str, Any]] = {}
    with (folder / LOCK).open("ab") as lock_file:
        try:
            record, waits, tried = update(), False, set()
            while left := [n for n, run in enumerate(runs) if n not in tried and not finished(run)]:
                # The runs of others come last, and are repeated if their process was killed.
                free = (each for each in left if try_lock(lock_file, FIRST_RUN + each))
                number = next(free, None)
                if number is None:
                    if not waits:
                        names = "; ".join(runs[each].name for each in left)
                        log(f"waiting for runs that other processes are working on: {names}")
                    waits = True
                    time.sleep(POLL_SECONDS)
                    continue
                run, record = runs[number], update()
                if not finished(run):
                    tried.add(number)
                    log(f"run {number + 1} of {len(runs)}: {run.name}")
                    record = update(**{run.name: run_once(run)})
                fcntl.lockf(lock_file, fcntl.LOCK_UN, 1, FIRST_RUN + number)
        except (Interrupted, KeyboardInterrupt):
            log(STOPPED)
            raise
    print_record(record)
    drawn = f", {PICTURE}" if (folder / PICTURE).exists() else ""
    print(f"written to {folder}: {FILE}, {TABLE}{drawn}; the runs in runs/")
    failed = [f"{name} ({each['failed']})" for name, each in entries.items() if each["failed"]]
    if failed:
        count = f"{len(failed)} of {len(runs)} runs"
        log(f"croc: {count} failed, the same command runs only these again: {'; '.join(failed)}")
    return not failed


@contextmanager
def locked(file: BinaryIO, byte: int) -> Iterator[None]:
    """Wait until no other process has the byte."""
    fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)


def identify(
    recipe: str, sweep: SweepConfig, runs: Sequence[Run], columns: Sequence[Request]
) -> dict[str, Any]:
    """What makes a sweep this one: not how it is run, nor where it is."""
    settings = {run.setting: run for run in runs}
    configs = {name: asdict(run.config) for name, run in settings.items()}
    for config in configs.values():
        for section, name in (*FREE, ("run", "seed")):
            del config[section][name]
    return to_plain(
        {
            "recipe": recipe,
            "settings": list(settings),
            "seeds": sweep.seeds,
            "hold_out": sweep.hold_out,
            "untrained": sweep.untrained,
            "evaluations": [column.place for column in columns],
            "protocols": {column.place: asdict(column.config) for column in columns},
            "recipes": {name: run.recipe for name, run in settings.items()},
            "configs": configs,
        }
    )


def differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """What changed; options that an older sweep.json does not have yet are no difference."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key, value in before.items():
            yield from differences(value, now.get(key), f"{name}.{key}" if name else key)
    elif before != now:
        yield f"{name} was {before}, now {now}"


def read_entries(folder: Path, identity: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of a sweep's finished runs by their names.

    Refuses a folder with another sweep or with other things in it.
    """
    # Listed first, in case another process creates the sweep just now.
    paths = list(folder.iterdir()) if folder.exists() else []
    others = [path for path in paths if path.name != LOCK and path.suffix != ".partial"]
    if not (folder / FILE).exists():
        require(not others, f"{folder} exists and contains no sweep: choose another --sweep.to")
        return {}
    record = json.loads((folder / FILE).read_text(encoding="utf-8"))
    if changes := list(differences(record["configuration"], identity)):
        raise UserError(
            f"{folder} contains another sweep ({'; '.join(changes[:3])}): choose another "
            "--sweep.to, or pass the same settings to resume it"
        )
    settings = record["settings"]
    return {f"{each['name']}, seed {run['seed']}": run for each in settings for run in each["runs"]}


def check_settings(
    runs: Sequence[Run], columns: list[Request], opened: OpenData, options: TableOptions
) -> dict[str, int]:
    """Open each setting's data, networks and evaluation once; the last step of its runs."""
    steps: dict[str, int] = {}
    for run in {run.setting: run for run in runs}.values():
        config = run.config
        try:
            count = len(open_source(config.data, seed=0))
            planned = config.optim.epochs * steps_per_epoch(count, config.optim.batch)
            if not planned:
                raise UserError(f"{count} images do not fill a batch: pass --optim.batch {count}")
            steps[run.setting] = min(planned, config.run.stop_after_steps or planned)
            make_method(config, torch.device("cpu"))
            if config.model.init is not None:
                open_backbone(config.model.init, flag="--init")
            with TemporaryDirectory() as parent:
                network = Path(parent) / "network"  # the name in messages
                write_config(network, config, run.recipe)
                plan_row("network", f"random:{network}", columns, opened, options)
        except UserError as error:
            raise UserError(f"setting {run.setting!r}: {error}") from None
    return steps


def last_metrics(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the last tenth of the lines, since one line is of one batch."""
    last = lines[-max(1, len(lines) // 10) :]
    names = [name for name in (last[-1] if last else {}) if name not in NOT_METRICS]
    values = {name: [line[name] for line in last if line.get(name) is not None] for name in names}
    return {name: fmean(each) for name, each in values.items() if each}


def summarize_setting(runs: Sequence[Run], entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The entries of a setting's runs, and mean and deviation over them."""
    own = [entries[run.name] for run in runs if run.name in entries]
    return {
        "name": runs[0].setting,
        "recipe": runs[0].recipe,
        "options": list(runs[0].options),
        "runs": own,
        "scores": summarize([first_scores(run["scores"]) for run in own]),
        "untrained": summarize([first_scores(run["untrained"]) for run in own]),
        "metrics": summarize([run["metrics"] for run in own if not run["failed"]]),
    }


def first_scores(scores: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of each protocol the metric that papers report."""
    return {place: next(iter(each.values())) for place, each in scores.items()}


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean and sample deviation over the seeds that have a value; one has no deviation."""
    summary = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        values = [run[name] for run in runs if name in run]
        if all(isinstance(value, int | float) and math.isfinite(value) for value in values):
            deviation = stdev(values) if len(values) > 1 else None
            summary[name] = {"mean": fmean(values), "deviation": deviation, "count": len(values)}
    return summary


def to_plain(value: Any) -> Any:
    """As JSON gives it back: without tuples, and with inf and nan as strings."""
    if isinstance(value, dict):
        return {str(name): to_plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def table_of(record: dict[str, Any]) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, rows (the settings, then the networks before training) and notes."""
    settings, places = record["settings"], [column["place"] for column in record["columns"]]
    metrics = [name for name in SHOWN_METRICS if any(name in each["metrics"] for each in settings)]

    def cell(summary: dict[str, Any] | None, digits: int = 1) -> str:
        if summary is None:
            return MISSING
        mean, deviation = f"{summary['mean']:.{digits}f}", summary["deviation"]
        return mean if deviation is None else f"{mean} ± {deviation:.{digits}f}"

    headings = [
        record["command"]["sweep"]["vary"] or "setting",
        *(column["title"] for column in record["columns"]),
        *(SHOWN_METRICS[name][0] for name in metrics),
        *("seeds", "images", "training, s", "evaluating, s"),
    ]
    device, share = record["hardware"], record["configuration"]["hold_out"]
    where = device["cpu"] if device["gpu"] == "no GPU" else device["gpu"]
    recipe, version = record["configuration"]["recipe"], record["versions"]["croc"]
    notes = [f"{recipe} on {where}, croc {version}, {record['date'][:10]}."]
    if share:
        notes.append(f"Scored on {100 * share:g}% of the training parts, held out.")
    rows, untrained = [], {}
    for setting in settings:
        complete = [run for run in setting["runs"] if not run["failed"]]
        costs = [MISSING] * 3
        if complete:  # seconds are the mean of the runs
            means = (fmean(run[n] for run in complete) for n in ("training_s", "evaluating_s"))
            costs = [f"{complete[0]['images_seen']:,}", *(f"{mean:,.1f}" for mean in means)]
        scores = [cell(setting["scores"].get(place)) for place in places]
        shown = [cell(setting["metrics"].get(name), SHOWN_METRICS[name][1]) for name in metrics]
        rows.append([setting["name"], *scores, *shown, str(len(complete)), *costs])
        if setting["untrained"]:  # one row for all settings with the same scores
            before = tuple(cell(setting["untrained"].get(place)) for place in places)
            untrained.setdefault(before, []).append(setting["name"])
        for run in setting["runs"]:
            if run["failed"]:
                notes.append(f"Failed: {setting['name']}, seed {run['seed']}: {run['failed']}")
    for scores, names in untrained.items():
        label = "untrained" if len(untrained) == 1 else f"untrained: {', '.join(names)}"
        rows.append([label, *scores, *[MISSING] * (len(headings) - 1 - len(scores))])
    if record["to_come"]:
        notes.append(f"Not finished yet: {'; '.join(record['to_come'])}.")
    return headings, rows, notes


def to_markdown(record: dict[str, Any]) -> str:
    headings, rows, notes = table_of(record)
    escaped = [list(map(plain_markdown, row)) for row in (headings, *rows)]
    notes.insert(0, "Scores in percent: mean ± standard deviation over the seeds.")
    below = "".join(f"\n{plain_markdown(note)}\n" for note in notes)
    return markdown_table(escaped[0], escaped[1:]) + below


def print_record(record: dict[str, Any]) -> None:
    console = table_console()
    headings, rows, notes = table_of(record)
    headings = [heading.replace(": ", ":\n") for heading in headings]
    console.print(terminal_table(headings, rows, box=SIMPLE_HEAD, padding=(0, 1, 0, 0)))
    for note in notes:
        console.print(note, soft_wrap=True)


def make_figure(record: dict[str, Any]) -> Figure:
    """A panel per protocol and data set, and two of the clusters, with one dot per seed."""
    settings = record["settings"]
    names = [setting["name"] for setting in settings]
    few = min(2, len(settings))  # one of several has nothing to be compared with
    panels = [("scores", each["place"], each["title"], 1) for each in record["columns"]]
    panels += [("metrics", name, title, few) for name, (_, _, title) in SHOWN_METRICS.items()]
    panels = [each for each in panels if sum(each[1] in s[each[0]] for s in settings) >= each[3]]
    across = min(3, len(panels))
    down = math.ceil(len(panels) / across)
    width = 4 if len(names) < 9 else 6
    size = (width * across, 3.6 * down + 0.8)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    for number, (kind, name, title, _) in enumerate(panels):
        axes = figure.add_subplot(down, across, number + 1)
        dots, levels = [], []
        for x, setting in enumerate(settings):
            runs = [run[kind] for run in setting["runs"]]
            values = [first_scores(run) if kind == "scores" else run for run in runs]
            dots += [(x, each[name]) for each in values if is_number(each.get(name, math.nan))]
            if kind == "scores" and name in setting["untrained"]:
                levels.append((setting["untrained"][name]["mean"], x - 0.5, x + 0.5))
        means = [setting[kind].get(name, {"mean": math.nan})["mean"] for setting in settings]
        # A line between the means of names, not numbers, would stand for nothing.
        line = "D-" if all(map(is_number, names)) else "D"
        axes.scatter(*zip(*dots), color=COLORS[0], alpha=0.5, lw=0, label="one seed")
        axes.plot(range(len(names)), means, line, color=COLORS[0], ms=4, label="mean")
        if levels:
            heights, left, right = zip(*levels)
            axes.hlines(heights, left, right, COLORS[-1], "--", label="untrained")
        axes.margins(y=0.12)
        if kind == "scores":
            span_enough(axes)
        axes.set_title(verbatim(title), fontsize=9, loc="left")
        axes.set_xlabel(record["command"]["sweep"]["vary"] or "", fontsize=8)
        labels = [verbatim(textwrap.shorten(each, 30, placeholder="…")) for each in names]
        slant = 0 if sum(map(len, names)) < 8 * width else 40
        axes.set_xticks(
            range(len(names)), labels, rotation=slant, ha="right" if slant else "center"
        )
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    about = textwrap.wrap(" ".join(table_of(record)[2]), int(14 * size[0]), max_lines=4)
    figure.suptitle(verbatim("\n".join(about)), x=0.01, ha="left", fontsize=9)
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower left", ncols=3, fontsize=8, frameon=False)
    return figure
