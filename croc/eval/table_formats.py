"""The record of table.json, and its formats: Markdown, LaTeX, HTML and the terminal.

Labels come from the command line and may contain anything.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Dense features compared</title>
<style>
:root { color-scheme: light dark; --line: #d0d4da; --strong: #14171c; --soft: #5b6470;
  --ground: #ffffff; --lit: #f3f6fa; }
@media (prefers-color-scheme: dark) { :root { --line: #3a414b; --strong: #eceff3;
  --soft: #a3adba; --ground: #15181d; --lit: #1f242b; } }
body { margin: 0 auto; padding: 1.5rem 1rem; max-width: max-content; background: var(--ground);
  color: var(--strong); font: 16px/1.45 system-ui, sans-serif; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
thead { border-top: 2px solid; border-bottom: 1px solid; }
tbody { border-bottom: 2px solid; }
th, td { padding: .35rem .7rem; text-align: left; font-weight: normal; }
thead th { color: var(--soft); }
thead tr:first-child th[colspan] { text-align: center; border-bottom: 1px solid var(--line); }
tbody tr:hover { background: var(--lit); }
.score { text-align: right; white-space: nowrap; }
.spread { color: var(--soft); font-size: .85em; }
u { text-underline-offset: .2em; }
p { color: var(--soft); font-size: .9rem; max-width: 42rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  body { max-width: none; }
  thead { display: none; }
  table, tbody, tr, th, td { display: block; }
  tbody { border: 0; }
  tr { border-top: 2px solid; padding: .4rem 0 1rem; }
  tbody th { font-size: 1.1rem; font-weight: 600; padding: .2rem 0; overflow-wrap: anywhere; }
  td, td.score { display: flex; justify-content: space-between; gap: 1rem; padding: .2rem 0;
    border-top: 1px solid var(--line); overflow-wrap: anywhere; }
  td::before { content: attr(data-title); color: var(--soft); white-space: normal; }
}
</style>
</head>
<body>
<div class="scroll">
<table>
<thead>
<tr>
{%- for name in ["Weights"] + facts %}<th scope="col" rowspan="2">{{ name }}</th>{% endfor %}
{%- for name, span in groups.items() -%}
<th scope="colgroup" colspan="{{ span }}">{{ name }}</th>
{%- endfor %}</tr>
<tr>
{%- for column in columns %}<th scope="col" class="score">{{ column.title }}</th>{% endfor %}</tr>
</thead>
<tbody>
{%- for words, cells in rows %}
<tr><th scope="row">{{ words[0] }}</th>
{%- for fact in facts %}
<td data-title="{{ fact }}"><span>{{ words[loop.index] }}</span></td>
{%- endfor %}
{%- for mark, number, spread in cells %}
{%- set tag = {"best": "strong", "second": "u"}.get(mark, "span") %}
<td class="score" data-title="{{ columns[loop.index0].group }}, {{ columns[loop.index0].title }}">
{#- -#}
<span><{{ tag }}>{{ number }}</{{ tag }}>
{%- if spread %} <span class="spread">± {{ spread }}</span>{% endif %}</span></td>
{%- endfor %}</tr>
{%- endfor %}
</tbody>
</table>
</div>
{%- for note in notes %}
<p>{{ note }}</p>
{%- endfor %}
</body>
</html>
"""


def make_record(
    rows: "Sequence[Row]",
    columns: "Sequence[Request]",
    average: bool,
    finished: dict[str, dict[str, Any]],
    failures: Sequence[dict[str, str]] = (),
) -> dict[str, Any]:
    """The content of table.json, from which the other formats are written."""
    shown = layout([(column.name, column.data) for column in columns], average)
    records, croc_versions = [], set()
    for row in rows:
        scores = {}
        for column, _, key in row.cells:
            if key in finished:
                scores[column.name, column.data] = finished[key]["scores"]
                croc_versions.add(str(finished[key].get("versions", {}).get("croc")))
        weights = {"label": row.label, "weights": row.spec, "weights_hash": row.weights_hash}
        records.append({**weights, **row.facts, "cells": fill_cells(shown, scores)})
    mark_best([record["cells"] for record in records])
    notes = [note for row in rows for note in row.notes]
    if len(croc_versions) > 1:
        notes.append(f"Scored with different versions of croc: {', '.join(sorted(croc_versions))}.")
    shares = {column.hold_out for column in columns if column.hold_out}
    notes += [f"Scored on {100 * share:g}% of the training parts, held out." for share in shares]
    notes += [one_line(f"Could not be computed: {failure_name(each)}.") for each in failures]
    return {
        "columns": shown,
        "rows": records,
        "settings": [
            {name: asdict(column)[name] for name in ("protocol", "data", "config", "hold_out")}
            for column in columns
        ],
        "notes": notes,
        "failed": list(failures),
    }


def layout(places: Sequence[tuple[str, str]], average: bool) -> list[dict[str, Any]]:
    """The columns of the (protocol, data) pairs, grouped by protocol; the mean has data None."""
    titles = data_titles(data for _, data in places)
    shown = []
    for protocol, group in GROUPS.items():
        metrics = METRICS.get(protocol, ("mIoU",))
        sets: list[str | None] = [data for name, data in places if name == protocol]
        shown_metrics = [(data, metric) for data in sets for metric in metrics]
        if average and len(sets) > 1:
            shown_metrics.append((None, metrics[0]))
        for data, metric in shown_metrics:
            title = "Avg." if data is None else titles[data]
            title = f"{title} {metric}" if len(metrics) > 1 else title
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
    return {
        spec: one_line(title if names.count(title) == 1 else spec) for spec, title in titles.items()
    }


def fill_cells(
    shown: Sequence[dict[str, Any]], scores: dict[Any, dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row's cells from the scores of each (protocol, data); a mean needs all its data sets."""
    cells: list[dict[str, Any]] = []
    for column in shown:
        values = scores.get((column["protocol"], column["data"]), {})
        value, deviation = values.get(column["metric"]), values.get("deviation")
        if column["data"] is None:  # after all columns that it is the mean of
            same = column["protocol"], column["metric"]
            before = zip(cells, shown)
            sets = [x["value"] for x, each in before if (each["protocol"], each["metric"]) == same]
            value = None if None in sets else sum(sets) / len(sets)
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


def to_markdown(record: dict[str, Any]) -> str:
    """One line of headings, since Markdown has no more; <ins> is what GitHub shows underlined."""
    marks = {"best": "**{}**", "second": "<ins>{}</ins>"}
    titles = [f"{column['group']}: {column['title']}" for column in record["columns"]]
    facts, _, shown = _shown(record)
    rows = [
        [*map(plain_markdown, words), *(_marked(cell, marks, " ± ") for cell in cells)]
        for words, cells in shown
    ]
    notes = "".join(f"\n{plain_markdown(note)}\n" for note in (LEGEND, *record["notes"]))
    headings = ["Weights", *facts, *map(plain_markdown, titles)]
    return markdown_table(headings, rows, 1 + len(facts)) + notes


def to_latex(record: dict[str, Any]) -> str:
    """A table for booktabs, like the paper's."""

    def line(cells: list[str]) -> str:
        return " & ".join(cells) + r" \\"

    def escape(texts: list[str]) -> list[str]:
        return [text.translate(LATEX) for text in texts]

    marks = {"best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
    facts, groups, rows = _shown(record)
    titles = ["Weights", *facts, *(column["title"] for column in record["columns"])]
    words = 1 + len(facts)
    spans = [rf"\multicolumn{{{n}}}{{c}}{{{name.translate(LATEX)}}}" for name, n in groups.items()]
    ends = accumulate(groups.values(), initial=words)
    wide = len(record["columns"]) > UNSCALED_COLUMNS
    lines = [
        rf"% \usepackage{{booktabs{',graphicx' if wide else ''}}}",
        r"\begin{table}[ht]",
        r"\centering",
        rf"\caption{{{' '.join(escape([LEGEND, *record['notes']]))}}}",
        *([r"\resizebox{\linewidth}{!}{%"] if wide else []),
        rf"\begin{{tabular}}{{{'l' * words}{'r' * len(record['columns'])}}}",
        r"\toprule",
        line([""] * words + spans),
        " ".join(rf"\cmidrule(lr){{{a + 1}-{b}}}" for a, b in pairwise(ends)),
        line(escape(titles)),
        r"\midrule",
        *(
            line([*escape(row), *(_marked(cell, marks, r" $\pm$ ") for cell in cells)])
            for row, cells in rows
        ),
        r"\bottomrule",
        r"\end{tabular}",
        *(["}"] if wide else []),
        r"\end{table}",
    ]
    return "\n".join(lines).replace(MISSING, "--") + "\n"


def to_html(record: dict[str, Any]) -> str:
    """One file, light or dark by the reader's setting; on a phone every row is a list."""
    from jinja2 import Environment

    page = Environment(autoescape=True, keep_trailing_newline=True).from_string(PAGE)
    facts, groups, rows = _shown(record)
    notes = [LEGEND, *record["notes"]]
    return page.render(
        columns=record["columns"], facts=facts, groups=groups, rows=rows, notes=notes
    )


def print_record(record: dict[str, Any], console: "Console | None" = None) -> None:
    """One table if it is narrow enough, else one per protocol, else those without the facts."""
    from rich.text import Text

    console = console or table_console()
    styles = {"best": "bold", "second": "underline"}
    all_facts, groups, shown = _shown(record)

    def table(group: str | None, facts: list[str]) -> Any:
        places = [n for n, each in enumerate(record["columns"]) if group in (None, each["group"])]
        headings = []
        for column in (record["columns"][n] for n in places):
            # The metric goes below the data set, so that columns stay narrow.
            data = column["title"].removesuffix(f" {column['metric']}")
            lines = [column["group"], data, *[column["metric"]] * (data != column["title"])]
            headings.append("\n".join(lines))
        rows = []
        for words, cells in shown:
            texts = []
            for mark, number, spread in (cells[n] for n in places):
                end = f" ± {spread}" if spread else ""
                texts.append(Text.assemble((number, styles.get(mark or "", "")), end))
            rows.append([*words[: 1 + len(facts)], *texts])
        return terminal_table(["Weights", *facts, *headings], rows, 1 + len(facts))

    for layout in (
        [table(None, all_facts)],
        [table(group, all_facts) for group in groups],
        [table(group, []) for group in groups],
    ):
        width = max(map(least_width, layout))
        if width <= console.width:
            break
    console.width = max(console.width, width)  # let the terminal break lines: no score is lost
    for each in layout:
        console.print(each)
    for note in (*[LEGEND] * console.is_terminal, *record["notes"]):  # only terminals show marks
        console.print(note, soft_wrap=True)


def _shown(record: dict[str, Any]) -> tuple[list[str], dict[str, int], list[tuple[Any, Any]]]:
    """The known facts; titles above the columns and how many each spans; and the rows, each as its
    words and its cells, a cell as (mark, number, spread over the seeds)."""
    facts = {name: title for name, title in FACTS.items() if any(x[name] for x in record["rows"])}
    groups = [column["group"] for column in record["columns"]]
    rows = []
    for row in record["rows"]:
        cells = []
        for cell in row["cells"]:
            value, spread = cell["value"], cell["deviation"]
            number = MISSING if value is None else f"{value:.1f}"
            cells.append((cell["mark"], number, "" if spread is None else f"{spread:.1f}"))
        rows.append(([row["label"], *(row[name] or MISSING for name in facts)], cells))
    return list(facts.values()), {group: groups.count(group) for group in groups}, rows


def _marked(cell: tuple[str | None, str, str], marks: dict[str, str], plus_minus: str) -> str:
    mark, number, spread = cell
    text = marks[mark].format(number) if mark else number
    return f"{text}{plus_minus}{spread}" if spread else text
