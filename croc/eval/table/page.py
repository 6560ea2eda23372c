"""A table as one HTML page that needs nothing else."""

from html import escape

from croc.eval.table.layout import LEGEND, Cell, Column, Row, Table

STYLE = """
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
"""


def to_html(table: Table) -> str:
    """Light or dark as the reader has it; on a telephone each row is a list."""
    notes = "".join(f"<p>{escape(note)}</p>\n" for note in (LEGEND, *table.notes))
    body = "".join(_row(table, row) for row in table.rows)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Dense features compared</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<div class="scroll">\n<table>\n<thead>\n{_heads(table)}</thead>\n'
        f"<tbody>\n{body}</tbody>\n</table>\n</div>\n{notes}</body>\n</html>\n"
    )


def _heads(table: Table) -> str:
    words = "".join(
        f'<th scope="col" rowspan="2">{escape(name)}</th>' for name in ("Weights", *table.known)
    )
    groups = "".join(
        f'<th scope="colgroup" colspan="{span}">{escape(name)}</th>' for name, span in table.groups
    )
    titles = "".join(
        f'<th scope="col" class="score">{escape(column.title)}</th>' for column in table.columns
    )
    return f"<tr>{words}{groups}</tr>\n<tr>{titles}</tr>\n"


def _row(table: Table, row: Row) -> str:
    label, *facts = map(escape, table.words(row))
    words = "".join(
        f'<td data-title="{escape(name)}"><span>{fact}</span></td>'
        for name, fact in zip(table.known, facts)
    )
    scores = "".join(_cell(column, cell) for column, cell in zip(table.columns, row.cells))
    return f'<tr><th scope="row">{label}</th>{words}{scores}</tr>\n'


def _cell(column: Column, cell: Cell) -> str:
    marked = {"best": f"<strong>{cell.number}</strong>", "second": f"<u>{cell.number}</u>"}
    number = marked.get(cell.mark or "", cell.number)
    spread = "" if cell.spread is None else f' <span class="spread">± {cell.spread}</span>'
    title = escape(f"{column.group}, {column.title}")
    return f'<td class="score" data-title="{title}"><span>{number}{spread}</span></td>'
