"""The record of table.json, and its formats: Markdown, LaTeX, HTML and the terminal.

Labels come from the command line and may contain anything.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from croc.io import replacing
from croc.tables import (
    DATA_TITLES,
    MISSING,
    least_width,
    markdown_table,
    one_line,
    plain_markdown,
    table_console,
    terminal_table,
)

if TYPE_CHECKING:
    from rich.console import Console

    from croc.eval.protocols import Request
    from croc.eval.table import Row

GROUPS = {
    "linear": "Linear (mIoU)",
    "kmeans": "K-means (mIoU)",
    "kmeans (4 blocks)": "K-means, 4 blocks (mIoU)",
    "within": "Within images (mIoU)",
    "incontext": "In-context (mIoU)",
    "fewlabel": "Few labels (mIoU)",
    "video": "Video",
}
METRICS = {"video": ("J&F", "J", "F")}
LEGEND = "Scores in percent; the best in bold, the second best underlined."
FACTS = {"model": "Model", "data": "Data", "epochs": "Epochs"}
"""What is known about weights, shown if it is known for any of them."""
UNSCALED_COLUMNS = 4
"""A wider LaTeX table is scaled to the page's width."""

# A bracket or star at the start of a row would be an argument of the \\ before it.
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "–": "--",
        **{character: f"\\{character}" for character in "&%$#_{}"},
        **{character: f"{{{character}}}" for character in "[]*"},
    }
)


def make_record(
    rows: "Sequence[Row]",
    columns: "Sequence[Request]",
    average: bool,
    finished: dict[str, dict[str, Any]],
    failures: Sequence[dict[str, str]] = (),
) -> dict[str, Any]:
    """The content of table.json, from which the other formats are written."""
    few = {x.data: x.config.metrics for x in columns if x.protocol == "fewlabel"}
    shown = layout([(column.name, column.data) for column in columns], average, few)
    records, croc_versions = [], set()
    for row in rows:
        lines = {(x.name, x.data): finished[key] for x, _, key in row.cells if key in finished}
        croc_versions |= {str(line.get("versions", {}).get("croc")) for line in lines.values()}
        weights = {"label": row.label, "weights": row.spec, "weights_hash": row.weights_hash}
        cells = fill_cells(shown, {place: line["scores"] for place, line in lines.items()})
        records.append({**weights, **row.facts, "cells": cells})
    mark_best([record["cells"] for record in records])
    notes = [note for row in rows for note in row.notes]
    if len(croc_versions) > 1:
        notes.append(f"Scored with different versions of croc: {', '.join(sorted(croc_versions))}.")
    shares = {column.hold_out for column in columns if column.hold_out}
    notes += [f"Scored on {100 * share:g}% of the training parts, held out." for share in shares]
    notes += [one_line(f"Could not be computed: {failure_name(each)}.") for each in failures]
    settings = ("protocol", "data", "config", "hold_out")
    return {
        "columns": shown,
        "rows": records,
        "settings": [{name: asdict(column)[name] for name in settings} for column in columns],
        "notes": notes,
        "failed": list(failures),
    }


def layout(
    places: Sequence[tuple[str, str]], average: bool, few: dict[str, tuple[str, ...]] | None = None
) -> list[dict[str, Any]]:
    """The columns of the (protocol, data) pairs, grouped by protocol; the mean has data None. `few`
    has the metrics of few labels on each data set, which get no mean."""
    titles = data_titles(data for _, data in places)
    shown = []
    for protocol, group in GROUPS.items():
        metrics = METRICS.get(protocol, ("mIoU",))
        sets: list[str | None] = [data for name, data in places if name == protocol]
        pairs = [
            (data, metric)
            for data in sets
            for metric in (few[data] if few and data and protocol == "fewlabel" else metrics)
        ]
        if average and len(sets) > 1 and protocol != "fewlabel":
            pairs.append((None, metrics[0]))
        for data, metric in pairs:
            title = "Avg." if data is None else titles[data]
            title = f"{title} {metric}" if metric != "mIoU" else title
            names = {"protocol": protocol, "data": data, "metric": metric}
            shown.append({**names, "title": title, "group": group})
    return shown


def data_titles(specs: Iterable[str]) -> dict[str, str]:
    """The papers' names of data sets; two with the same name are shown as they were passed."""
    titles = {}
    for spec in specs:
        kind, _, path = spec.partition(":")
        titles[spec] = DATA_TITLES.get(kind) or Path(path).expanduser().resolve().stem or spec
    names = list(titles.values())
    return {x: one_line(title if names.count(title) == 1 else x) for x, title in titles.items()}


def fill_cells(
    shown: Sequence[dict[str, Any]], scores: dict[Any, dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row's cells from the scores of each (protocol, data); a mean needs all its data sets."""
    cells: list[dict[str, Any]] = []
    for column in shown:
        protocol, data, metric = column["protocol"], column["data"], column["metric"]
        own = scores.get((protocol, data), {})
        value, deviation = own.get(metric), own.get("deviation")
        deviation = deviation.get(metric) if isinstance(deviation, dict) else deviation
        if data is None:  # the mean comes after the columns it is of
            same = [(x["protocol"], x["metric"]) == (protocol, metric) for x in shown]
            values: Any = [cell["value"] for cell, is_same in zip(cells, same) if is_same]
            value = None if None in values else sum(values) / len(values)
        cells.append({"value": value, "deviation": deviation, "mark": None})
    return cells


def mark_best(rows: Sequence[list[dict[str, Any]]]) -> None:
    """Mark each column's best and second best, by all digits; ties share the mark."""
    for cells in zip(*rows):
        values = [cell["value"] for cell in cells if cell["value"] is not None]
        if len(values) > 1:  # one alone is no better than any other
            marks = dict(zip(sorted(set(values), reverse=True), ("best", "second")))
            for cell in cells:
                cell["mark"] = marks.get(cell["value"])


def failure_name(failure: dict[str, str]) -> str:
    return f"{failure['label']}, {failure['protocol']} on {failure['data']}"


def text_titles(record: dict[str, Any]) -> dict[str, str]:
    """The titles of the columns of text: the label, and what is known of any of the weights."""
    known = {name: title for name, title in FACTS.items() if any(x[name] for x in record["rows"])}
    return {"label": "Weights", **known}


def spans(record: dict[str, Any]) -> dict[str, int]:
    """The titles above the columns, and how many columns each spans."""
    groups = [column["group"] for column in record["columns"]]
    return {group: groups.count(group) for group in groups}


def text_rows(
    record: dict[str, Any],
    escape: Callable[[str], str],
    best: str,
    second: str,
    plus_minus: str = " ± ",
) -> list[list[str]]:
    """Label, known facts and scores of each row; `best` and `second` are like "**{}**"."""
    marks = {"best": best, "second": second, None: "{}"}
    rows = []
    for row in record["rows"]:
        texts = [escape(row[name] or MISSING) for name in text_titles(record)]
        for cell in row["cells"]:
            number = MISSING if cell["value"] is None else f"{cell['value']:.1f}"
            spread = cell["deviation"]
            end = "" if spread is None else f"{plus_minus}{spread:.1f}"
            texts.append(marks[cell["mark"]].format(number) + end)
        rows.append(texts)
    return rows


def write_record(record: dict[str, Any], folder: Path) -> list[str]:
    """table.md, .tex, .html and .json; their names."""
    texts = {
        "table.md": to_markdown(record),
        "table.tex": to_latex(record),
        "table.html": to_html(record),
        "table.json": json.dumps(record, indent=2, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        with replacing(folder / name) as partial:
            partial.write_text(text, encoding="utf-8")
    return list(texts)


def to_markdown(record: dict[str, Any]) -> str:
    """One line of headings, since Markdown has no more; <ins> is what GitHub shows underlined."""
    words = list(text_titles(record).values())
    titles = [plain_markdown(f"{x['group']}: {x['title']}") for x in record["columns"]]
    rows = text_rows(record, plain_markdown, "**{}**", "<ins>{}</ins>")
    notes = "".join(f"\n{plain_markdown(note)}\n" for note in (LEGEND, *record["notes"]))
    return markdown_table([*words, *titles], rows, len(words)) + notes


def to_latex(record: dict[str, Any]) -> str:
    """A table for booktabs, like the paper's."""

    def escape(text: str) -> str:
        return text.translate(LATEX)

    words = list(text_titles(record).values())
    titles = [escape(column["title"]) for column in record["columns"]]
    wide = len(titles) > UNSCALED_COLUMNS
    groups = spans(record)
    heads = [rf"\multicolumn{{{n}}}{{c}}{{{escape(name)}}}" for name, n in groups.items()]
    ends = accumulate(groups.values(), initial=len(words))
    rows = text_rows(record, escape, r"\textbf{{{}}}", r"\underline{{{}}}", r" $\pm$ ")
    lines = [
        rf"% \usepackage{{booktabs{',graphicx' if wide else ''}}}",
        r"\begin{table}[ht]",
        r"\centering",
        rf"\caption{{{' '.join(map(escape, [LEGEND, *record['notes']]))}}}",
        *([r"\resizebox{\linewidth}{!}{%"] if wide else []),
        rf"\begin{{tabular}}{{{'l' * len(words)}{'r' * len(titles)}}}",
        r"\toprule",
        " & ".join([""] * len(words) + heads) + r" \\",
        " ".join(rf"\cmidrule(lr){{{a + 1}-{b}}}" for a, b in pairwise(ends)),
        *(" & ".join([*words, *titles]) + r" \\", r"\midrule"),
        *(" & ".join(row) + r" \\" for row in rows),
        *(r"\bottomrule", r"\end{tabular}", *(["}"] if wide else []), r"\end{table}"),
    ]
    return "\n".join(lines).replace(MISSING, "--") + "\n"


def to_html(record: dict[str, Any]) -> str:
    """One file, light or dark by the reader's setting; on a phone every row is a list."""
    from jinja2 import Environment
    from markupsafe import Markup, escape

    source = Path(__file__).with_name("table.html").read_text(encoding="utf-8")
    page = Environment(autoescape=True, keep_trailing_newline=True).from_string(source)
    words, notes = list(text_titles(record).values()), [LEGEND, *record["notes"]]
    rows = text_rows(record, escape, "<strong>{}</strong>", "<u>{}</u>")
    cells = [list(map(Markup, row)) for row in rows]
    columns, groups = record["columns"], spans(record)
    return page.render(words=words, columns=columns, groups=groups, rows=cells, notes=notes)


def print_record(record: dict[str, Any], console: "Console | None" = None) -> None:
    """One table if it is narrow enough, else one per protocol without the facts."""
    from rich.markup import escape
    from rich.text import Text

    console = console or table_console()
    words = list(text_titles(record).values())
    rows = text_rows(record, escape, "[bold]{}[/]", "[underline]{}[/]")
    texts = [[Text.from_markup(text, emoji=False) for text in row] for row in rows]

    def table(group: str | None, shown: int) -> Any:
        columns = enumerate(record["columns"], len(words))
        titles = {
            n: f"{x['group']}\n{x['title']}" for n, x in columns if group in (None, x["group"])
        }
        rows = [[row[n] for n in (*range(shown), *titles)] for row in texts]
        return terminal_table([*words[:shown], *titles.values()], rows, shown)

    tables = [table(None, len(words))]
    if least_width(tables[0]) > console.width:
        tables = [table(group, 1) for group in spans(record)]
    # Wider than the terminal, which then breaks lines: no score is lost.
    console.width = max(console.width, *map(least_width, tables))
    for each in tables:
        console.print(each)
    for note in (*[LEGEND] * console.is_terminal, *record["notes"]):  # only terminals show marks
        console.print(note, soft_wrap=True)
