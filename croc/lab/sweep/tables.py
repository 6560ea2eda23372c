"""A sweep as a table: a row a setting, on the terminal and as Markdown."""

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from croc.eval.table.layout import MISSING
from croc.eval.table.text_formats import plain_markdown

METRICS = {"k_mean": ("K", 2), "valid_share": ("valid", 3)}
"""Of the last lines of metrics.jsonl, with the digits that are shown."""
LEGEND = "Scores in percent: mean ± standard deviation over the seeds."
ENDLESS = 10_000


def headings(page: dict[str, Any]) -> list[str]:
    metrics = [title for name, (title, _) in METRICS.items() if _has(page, name)]
    costs = ["seeds", "images", "training, s", "evaluating, s"]
    return [_varied(page), *(column["title"] for column in page["columns"]), *metrics, *costs]


def rows(page: dict[str, Any]) -> Iterator[list[str]]:
    """The settings, then the networks before training."""
    for setting in page["settings"]:
        yield [setting["name"], *_scores(page, setting["scores"]), *_facts(page, setting)]
    blank = [MISSING] * (len(headings(page)) - 1 - len(page["columns"]))
    for label, found in untrained_rows(page):
        yield [label, *_scores(page, found), *blank]


def untrained_rows(page: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The scores before training, once for all settings that have the same."""
    if page["untrained"] is not None:
        return [("untrained", page["untrained"])] if page["untrained"] else []
    groups: dict[str, list[dict[str, Any]]] = {}
    for setting in page["settings"]:
        if setting["untrained"]:
            groups.setdefault(str(setting["untrained"]), []).append(setting)
    return [
        (f"untrained: {', '.join(each['name'] for each in group)}", group[0]["untrained"])
        for group in groups.values()
    ]


def notes(page: dict[str, Any]) -> Iterator[str]:
    yield LEGEND
    share = page["configuration"]["hold_out"]
    if share:
        yield f"Scored on {100 * share:g}% of the training parts, held out."
    for setting in page["settings"]:
        for run in setting["runs"]:
            if run["failed"]:
                yield f"Failed: {setting['name']}, seed {run['seed']}: {run['failed']}"
    if page["to_come"]:
        yield f"Still to come: {'; '.join(page['to_come'])}."


def to_markdown(page: dict[str, Any]) -> str:
    titles = headings(page)
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1), *rows(page)]
    lines[0] = list(map(plain_markdown, titles))
    lines[2:] = [list(map(plain_markdown, line)) for line in lines[2:]]
    below = "".join(f"\n{plain_markdown(note)}\n" for note in (*notes(page), _made(page)))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + below


def print_page(page: dict[str, Any], console: Console | None = None) -> None:
    console = console or Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:  # a file has no edge
        console.width = ENDLESS
    table = Table(title=_made(page), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    first, *others = headings(page)
    table.add_column(first)
    for title in others:
        table.add_column(title.replace(": ", ":\n"), justify="right")
    for row in rows(page):
        table.add_row(*row)
    console.print(table)
    for note in notes(page):
        console.print(note, soft_wrap=True)


def _made(page: dict[str, Any]) -> str:
    device = page["hardware"]
    where = device["cpu"] if device["gpu"] == "no GPU" else device["gpu"]
    recipe, version = page["configuration"]["recipe"], page["versions"]["croc"]
    return f"{recipe} on {where}, croc {version}, {page['date'][:10]}"


def _varied(page: dict[str, Any]) -> str:
    return page["command"]["sweep"]["vary"] or "setting"


def _has(page: dict[str, Any], metric: str) -> bool:
    return any(metric in setting["metrics"] for setting in page["settings"])


def _scores(page: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [_spread(found.get(column["place"]), 1) for column in page["columns"]]


def _spread(found: dict[str, Any] | None, digits: int) -> str:
    if found is None:
        return MISSING
    mean, deviation = found["mean"], found["deviation"]
    spread = "" if deviation is None else f" ± {deviation:.{digits}f}"
    return f"{mean:.{digits}f}{spread}"


def _facts(page: dict[str, Any], setting: dict[str, Any]) -> list[str]:
    """Seconds are a run's, on the average; images those of the run that saw most."""
    metrics = [
        _spread(setting["metrics"].get(name), digits)
        for name, (_, digits) in METRICS.items()
        if _has(page, name)
    ]
    runs = [run for run in setting["runs"] if not run["failed"]]
    if not runs:
        return [*metrics, "0", MISSING, MISSING, MISSING]
    seconds = [
        f"{sum(run[name] for run in runs) / len(runs):,.1f}"
        for name in ("training_s", "evaluating_s")
    ]
    images = max(run["images_seen"] for run in runs)
    return [*metrics, str(len(runs)), f"{images:,}", *seconds]
