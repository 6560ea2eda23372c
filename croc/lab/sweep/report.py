"""The results of a sweep: the record of sweep.json, its table and its picture."""

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from rich.box import SIMPLE_HEAD

from croc.eval.protocols import Request
from croc.eval.table_formats import METRICS, data_titles
from croc.io import gpu_versions, hardware
from croc.lab.sweep.command import Run, SweepConfig, is_number
from croc.plotting import COLOURS, span_enough, verbatim
from croc.tables import MISSING, markdown_table, plain_markdown, table_console, terminal_table
from croc.train.run_folder import FREE

SHOWN_METRICS = {"k_mean": ("K", 2), "valid_share": ("valid", 3)}
"""Columns from metrics.jsonl: title and digits."""
NOT_METRICS = {"step", "epoch", "images_per_s", "seconds"}
LEGEND = "Scores in percent: mean ± standard deviation over the seeds."
PANEL_IN, WIDEST_PANEL_IN, FIGURE_IN = 4.0, 8.0, 12.0
LETTER_IN = 0.075


def identify(
    recipe: str, sweep: SweepConfig, runs: Sequence[Run], columns: Sequence[Request]
) -> dict[str, Any]:
    """What makes a sweep this one: not how it is run, nor where it is."""
    settings = {run.setting: run for run in runs}
    configs = {name: dataclasses.asdict(run.config) for name, run in settings.items()}
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
            "protocols": {column.place: dataclasses.asdict(column.config) for column in columns},
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


def make_record(
    command: dict[str, Any],
    identity: dict[str, Any],
    runs: Sequence[Run],
    results: Mapping[str, dict[str, Any]],
    columns: Sequence[Request],
    device: torch.device,
) -> dict[str, Any]:
    """The content of sweep.json from the entries of the finished runs, by their names."""
    titles = data_titles(column.data for column in columns)
    shown, settings = [], []
    for column in columns:
        metric = METRICS.get(column.protocol, ("mIoU",))[0]
        title = f"{titles[column.data]}: {column.name}, {metric}"
        shown.append({"place": column.place, "metric": metric, "title": title})
    for setting in {run.setting: run for run in runs}.values():
        names = [run.name for run in runs if run.setting == setting.setting]
        own = [results[name] for name in names if name in results]
        settings.append(
            {
                "name": setting.setting,
                "recipe": setting.recipe,
                "options": list(setting.options),
                "runs": own,
                "scores": summarize([first_scores(run["scores"]) for run in own]),
                "untrained": summarize([first_scores(run["untrained"]) for run in own]),
                "metrics": summarize([run["metrics"] for run in own if not run["failed"]]),
            }
        )
    untrained: dict[int, dict[str, float]] = {}
    alike = True  # all settings start from the same networks
    for run in results.values():
        scores = first_scores(run["untrained"])
        if scores:
            alike &= untrained.setdefault(run["seed"], scores) == scores
    record = {
        "format": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(device),
        "versions": gpu_versions(),
        "command": command,
        "configuration": identity,
        "columns": shown,
        "settings": settings,
        "untrained": summarize(list(untrained.values())) if alike else None,
        "to_come": [run.name for run in runs if run.name not in results],
    }
    return to_plain(record)


def runs_of(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of a record's runs by their names."""
    return {
        f"{setting['name']}, seed {run['seed']}": run
        for setting in record["settings"]
        for run in setting["runs"]
    }


def first_scores(scores: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of each protocol the metric that papers report."""
    return {place: next(iter(each.values())) for place, each in scores.items()}


def summarize(runs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Mean and sample deviation over the seeds that have a value; one has no deviation."""
    values: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run.items():
            values.setdefault(name, []).append(value)
    return {
        name: {
            "mean": fmean(numbers),
            "deviation": stdev(numbers) if len(numbers) > 1 else None,
            "count": len(numbers),
        }
        for name, numbers in values.items()
        if all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
    }


def training_seconds(lines: list[dict[str, Any]]) -> float:
    """Of all parts of a run: the clock restarts at every resume."""
    clock = [float(line["seconds"]) for line in lines]
    return sum(now for now, after in pairwise(clock) if after < now) + sum(clock[-1:], 0.0)


def last_metrics(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the last tenth of the lines, since one line is of one batch."""
    last = lines[-max(1, len(lines) // 10) :]
    names = [name for name in (last[-1] if last else {}) if name not in NOT_METRICS]
    values = {name: [line[name] for line in last if line.get(name) is not None] for name in names}
    return {name: fmean(each) for name, each in values.items() if each}


def to_plain(value: Any) -> Any:
    """As JSON gives it back: without tuples, and with inf and nan as strings."""
    if isinstance(value, dict):
        return {str(name): to_plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def table_of(record: dict[str, Any]) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, rows (the settings, then the networks before training) and notes."""
    settings, columns = record["settings"], record["columns"]
    metrics = [name for name in SHOWN_METRICS if any(name in each["metrics"] for each in settings)]
    headings = [
        record["command"]["sweep"]["vary"] or "setting",
        *(column["title"] for column in columns),
        *(SHOWN_METRICS[name][0] for name in metrics),
        *("seeds", "images", "training, s", "evaluating, s"),
    ]

    def cell(summary: dict[str, Any] | None, digits: int) -> str:
        if summary is None:
            return MISSING
        mean, deviation = f"{summary['mean']:.{digits}f}", summary["deviation"]
        return mean if deviation is None else f"{mean} ± {deviation:.{digits}f}"

    def scores(summaries: dict[str, Any]) -> list[str]:
        return [cell(summaries.get(column["place"]), 1) for column in columns]

    rows, untrained = [], {}
    for setting in settings:
        shown = [cell(setting["metrics"].get(name), SHOWN_METRICS[name][1]) for name in metrics]
        complete = [run for run in setting["runs"] if not run["failed"]]
        costs = [MISSING] * 3
        if complete:  # seconds are the mean of the runs
            images = max(run["images_seen"] for run in complete)
            means = (fmean(run[n] for run in complete) for n in ("training_s", "evaluating_s"))
            costs = [f"{images:,}", *(f"{seconds:,.1f}" for seconds in means)]
        cells = [*scores(setting["scores"]), *shown, str(len(complete)), *costs]
        rows.append([setting["name"], *cells])
        if setting["untrained"]:  # one row for all settings with the same scores
            untrained.setdefault(json.dumps(setting["untrained"]), []).append(setting["name"])
    references = {
        f"untrained: {', '.join(names)}": json.loads(text) for text, names in untrained.items()
    }
    if record["untrained"] is not None:
        references = {"untrained": record["untrained"]} if record["untrained"] else {}
    blank = [MISSING] * (len(headings) - 1 - len(columns))
    rows += [[label, *scores(summary), *blank] for label, summary in references.items()]

    notes, share = [LEGEND], record["configuration"]["hold_out"]
    if share:
        notes.append(f"Scored on {100 * share:g}% of the training parts, held out.")
    failed = {name: run["failed"] for name, run in runs_of(record).items() if run["failed"]}
    notes += [f"Failed: {name}: {reason}" for name, reason in failed.items()]
    if record["to_come"]:
        notes.append(f"Not finished yet: {'; '.join(record['to_come'])}.")
    return headings, rows, notes


def to_markdown(record: dict[str, Any]) -> str:
    headings, rows, notes = table_of(record)
    escaped = [list(map(plain_markdown, row)) for row in (headings, *rows)]
    below = "".join(f"\n{plain_markdown(note)}\n" for note in (*notes, _made_by(record)))
    return markdown_table(escaped[0], escaped[1:]) + below


def print_record(record: dict[str, Any]) -> None:
    console = table_console()
    headings, rows, notes = table_of(record)
    headings = [heading.replace(": ", ":\n") for heading in headings]
    style = {"title": _made_by(record), "box": SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
    console.print(terminal_table(headings, rows, **style))
    for note in notes:
        console.print(note, soft_wrap=True)


def _made_by(record: dict[str, Any]) -> str:
    device = record["hardware"]
    where = device["cpu"] if device["gpu"] == "no GPU" else device["gpu"]
    recipe, version = record["configuration"]["recipe"], record["versions"]["croc"]
    return f"{recipe} on {where}, croc {version}, {record['date'][:10]}"


def make_figure(record: dict[str, Any]) -> Figure:
    """A panel per protocol and data set, with one dot per seed, and two of the clusters."""
    settings = record["settings"]
    names = [setting["name"] for setting in settings]
    panels = [
        ("scores", column["place"], column["title"], f"{column['metric']}, %")
        for column in record["columns"]
        if any(column["place"] in setting["scores"] for setting in settings)
    ]
    clustered = sum("k_mean" in setting["metrics"] for setting in settings)
    if clustered >= min(2, len(settings)):  # nothing to compare with one of several
        panels.append(("metrics", "k_mean", "Clusters at the end of training", "mean K"))
        panels.append(("metrics", "valid_share", "Clusters that both views have", "share"))

    # Names are upright below a panel, or slanted if there is no room.
    width = min(WIDEST_PANEL_IN, max(PANEL_IN, 1.2 + 0.35 * len(names)))
    upright = len(names) * (LETTER_IN * max(map(len, names)) + 0.15) <= width - 1.2
    labels = [verbatim(name if len(name) <= 30 else f"{name[:29]}…") for name in names]
    slant: dict[str, Any] = (
        {} if upright else {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    )
    across = min(len(panels), int(FIGURE_IN / width))
    down = math.ceil(len(panels) / across)
    size = (across * width, (3.0 if upright else 3.6) * down + 0.8)
    figure = Figure(figsize=size, dpi=120, layout=ConstrainedLayoutEngine(wspace=0.05))
    grid = figure.subplots(down, across, squeeze=False).flatten()
    # A line between the means of names, not numbers, would stand for nothing.
    seed: dict[str, Any] = {
        "ls": "",
        "marker": "o",
        "ms": 4.5,
        "alpha": 0.55,
        "mew": 0,
        "color": COLOURS[0],
    }
    mean: dict[str, Any] = {
        "ls": "-" if all(map(is_number, names)) else "",
        "marker": "D",
        "color": COLOURS[0],
    }
    mean |= {"lw": 1.4, "ms": 4.5}
    reference: dict[str, Any] = {"ls": "--", "color": COLOURS[-1], "lw": 1.2}

    for axes, (kind, name, title, unit) in zip(grid, panels):
        means = [setting[kind].get(name, {"mean": math.nan})["mean"] for setting in settings]
        axes.plot(range(len(names)), means, **mean)
        for x, setting in enumerate(settings):
            if kind == "scores":
                dots = [first_scores(run["scores"]).get(name) for run in setting["runs"]]
                axes.plot([x] * len(dots), [math.nan if y is None else y for y in dots], **seed)
            if kind == "scores" and name in setting["untrained"]:
                value = (record["untrained"] or setting["untrained"])[name]["mean"]
                axes.plot([x - 0.5, x + 0.5], [value, value], **reference)
        axes.margins(y=0.12)
        if kind == "scores":
            span_enough(axes)
        axes.set_title(verbatim(title), fontsize=9, loc="left")
        axes.set_ylabel(unit, fontsize=8)
        axes.set_xlabel(record["command"]["sweep"]["vary"] or "", fontsize=8)
        axes.set_xticks(range(len(names)), labels, **slant)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)

    about = "; ".join([_made_by(record), *table_of(record)[2][1:]])
    lines = textwrap.wrap(about, int(14 * size[0]), max_lines=4, placeholder=" …")
    figure.suptitle(verbatim("\n".join(lines)), x=0.01, ha="left", fontsize=9)
    keys = [Line2D([], [], **seed, label="one seed"), Line2D([], [], **mean, label="mean")]
    if any(setting["untrained"] for setting in settings):
        keys.append(Line2D([], [], **reference, label="untrained"))
    legend = {"ncols": len(keys), "fontsize": 8, "frameon": False}
    figure.legend(handles=keys, loc="outside lower left", **legend)
    return figure
