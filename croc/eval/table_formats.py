"""The record of table.json, and its formats: Markdown, also on the terminal, and LaTeX.

Labels come from the command line and may contain anything.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from croc.io import replacing
from croc.results import deviation_of
from croc.tables import DATA_TITLES, MISSING, markdown_table, one_line, plain_markdown

if TYPE_CHECKING:
    from croc.eval.protocols import Request

GROUPS = {
    "linear": "Linear (mIoU)",
    "kmeans": "K-means (mIoU)",
    "kmeans (4 blocks)": "K-means, 4 blocks (mIoU)",
    "within": "Within images (mIoU)",
    "incontext": "In-context (mIoU)",
    "fewlabel": "Few labels (mIoU)",
    "video": "Video",
}
LEGEND = "Scores in percent; the best of each column in bold."

# A bracket or star at the start of a row would be an argument of the \\ before it.
LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        **{character: f"\\{character}" for character in "&%$#_{}"},
        **{character: f"{{{character}}}" for character in "[]*"},
    }
)


def make_record(
    shown: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    columns: "Sequence[Request]",
    notes: Sequence[str],
    failures: Sequence[dict[str, str]],
) -> dict[str, Any]:
    """The content of table.json, from which the other formats are written."""
    mark_best([row["cells"] for row in rows])
    shares = {column.hold_out for column in columns if column.hold_out}
    hold_outs = [f"Scored on {100 * share:g}% of the training parts, held out." for share in shares]
    failed = [one_line(f"Could not be computed: {failure_name(cell)}.") for cell in failures]
    settings = ("protocol", "data", "config", "hold_out")
    return {
        "columns": shown,
        "rows": rows,
        "settings": [{name: asdict(column)[name] for name in settings} for column in columns],
        "notes": [*notes, *hold_outs, *failed],
        "failed": list(failures),
    }


def layout(requests: "Sequence[Request]") -> list[dict[str, Any]]:
    """The columns, grouped by protocol; the mean over several datasets has data None."""
    titles = data_titles(request.data for request in requests)
    shown = []
    for protocol, group in GROUPS.items():
        same = [request for request in requests if request.name == protocol]
        columns: list[Any] = [
            (x.data, titles[x.data], metric) for x in same for metric in x.metrics
        ]
        if len(same) > 1 and protocol != "fewlabel":
            columns.append((None, "Avg.", same[0].metrics[0]))
        for data, title, metric in columns:
            names = {"protocol": protocol, "data": data, "metric": metric}
            title = f"{title} {metric}" if metric != "mIoU" else title
            shown.append({**names, "title": title, "group": group})
    return shown


def data_titles(specs: Iterable[str]) -> dict[str, str]:
    """The papers' names of datasets; two with the same name are shown as they were passed."""
    titles = {}
    for spec in specs:
        kind, _, path = spec.partition(":")
        titles[spec] = DATA_TITLES.get(kind) or Path(path).expanduser().resolve().stem or spec
    names = list(titles.values())
    return {x: one_line(title if names.count(title) == 1 else x) for x, title in titles.items()}


def fill_cells(
    shown: Sequence[dict[str, Any]], scores: dict[Any, dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row's cells from the scores of each (protocol, data); a mean needs all its datasets."""
    cells: list[dict[str, Any]] = []
    for column in shown:
        protocol, data, metric = column["protocol"], column["data"], column["metric"]
        by_metric = scores.get((protocol, data), {})
        value = by_metric.get(metric)
        if data is None:  # the mean comes after the columns that it is of
            values: Any = [
                cell["value"]
                for cell, other in zip(cells, shown)
                if (other["protocol"], other["metric"]) == (protocol, metric)
            ]
            value = None if None in values else sum(values) / len(values)
        cells.append({"value": value, "deviation": deviation_of(by_metric, metric), "best": False})
    return cells


def mark_best(rows: Sequence[list[dict[str, Any]]]) -> None:
    """Mark each column's best, by all digits; ties share the mark."""
    for cells in zip(*rows):
        values = [cell["value"] for cell in cells if cell["value"] is not None]
        for cell in cells:  # one alone is no better than any other
            cell["best"] = len(values) > 1 and cell["value"] == max(values)


def failure_name(failure: dict[str, str]) -> str:
    return f"{failure['label']}, {failure['protocol']} on {failure['data']}"


def text_rows(
    record: dict[str, Any], escape: Callable[[str], str], bold: str, plus_minus: str
) -> list[list[str]]:
    """Label and scores of each row; `bold` is like "**{}**"."""
    rows = []
    for row in record["rows"]:
        texts = [escape(row["label"])]
        for cell in row["cells"]:
            number = MISSING if cell["value"] is None else f"{cell['value']:.1f}"
            spread = cell["deviation"]
            end = "" if spread is None else f"{plus_minus}{spread:.1f}"
            texts.append((bold if cell["best"] else "{}").format(number) + end)
        rows.append(texts)
    return rows


def write_record(record: dict[str, Any], folder: Path) -> list[str]:
    """table.md, .tex and .json; their names."""
    texts = {
        "table.md": to_markdown(record),
        "table.tex": to_latex(record),
        "table.json": json.dumps(record, indent=2, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        with replacing(folder / name, shared=True) as partial:
            partial.write_text(text, encoding="utf-8")
    return list(texts)


def to_markdown(record: dict[str, Any], escape: Callable[[str], str] = plain_markdown) -> str:
    """One line of headings, since Markdown has no more; a terminal needs no escapes."""
    titles = [escape(f"{x['group']}: {x['title']}") for x in record["columns"]]
    rows = text_rows(record, escape, "**{}**", " ± ")
    notes = "".join(f"\n{escape(note)}\n" for note in (LEGEND, *record["notes"]))
    return markdown_table(["Weights", *titles], rows) + notes


def to_latex(record: dict[str, Any]) -> str:
    """A table for booktabs, like the paper's."""

    def escape(text: str) -> str:
        return text.translate(LATEX)

    titles = [escape(column["title"]) for column in record["columns"]]
    groups = [column["group"] for column in record["columns"]]
    spans = {group: groups.count(group) for group in groups}
    heads = [rf"\multicolumn{{{n}}}{{c}}{{{escape(name)}}}" for name, n in spans.items()]
    ends = accumulate(spans.values(), initial=1)
    rows = text_rows(record, escape, r"\textbf{{{}}}", r" $\pm$ ")
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}[ht]",
        r"\centering",
        rf"\caption{{{' '.join(map(escape, [LEGEND, *record['notes']]))}}}",
        rf"\begin{{tabular}}{{l{'r' * len(titles)}}}",
        r"\toprule",
        " & ".join(["", *heads]) + r" \\",
        " ".join(rf"\cmidrule(lr){{{a + 1}-{b}}}" for a, b in pairwise(ends)),
        " & ".join(["Weights", *titles]) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines).replace(MISSING, "--") + "\n"
