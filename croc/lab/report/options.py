"""The configuration as a table to search; of several runs, what differs comes first."""

import json
from collections.abc import Sequence
from typing import Any

from croc.lab.report.html import swatch
from croc.lab.report.reading import Run
from croc.lab.web.page import text

LONGEST = 400
ABSENT = object()


def configuration(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(name for run in runs for name in run.options))
    rows = {name: [run.options.get(name, ABSENT) for run in runs] for name in names}
    differing = [name for name in names if not _alike(rows[name])]
    same = [name for name in names if name not in set(differing)]
    tables = ""
    if len(runs) > 1:
        title = "Differs between the runs" if differing else "The runs do not differ"
        tables += _differing(title, {name: rows[name] for name in differing}, runs)
    tables += _shared("The same in all" if differing else "", {name: rows[name] for name in same})
    return (
        '<div class="card">\n<p class="field no-print"><label for="search">Search</label>'
        '<input type="search" id="search" autocomplete="off" spellcheck="false" '
        'placeholder="an option or a value" aria-describedby="search-found">'
        '<output id="search-found" class="soft small" aria-live="polite"></output></p>\n'
        f"{tables}</div>\n"
    )


def _alike(values: Sequence[Any]) -> bool:
    return all(value == values[0] and type(value) is type(values[0]) for value in values[1:])


def _differing(title: str, rows: dict[str, list[Any]], runs: Sequence[Run]) -> str:
    if not rows:
        return f'<p class="soft">{text(title)}.</p>\n'
    heads = "".join(
        f'<th scope="col">{swatch(number)}{text(run.name)}</th>' for number, run in enumerate(runs)
    )
    body = "".join(
        f'<tr data-option><th scope="row">{_name(name)}</th>'
        + "".join(
            _cell(run.name, value, number) for number, (run, value) in enumerate(zip(runs, values))
        )
        + "</tr>\n"
        for name, values in rows.items()
    )
    return (
        f'<h3>{text(title)}</h3>\n<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{text(title)}"><table class="options stack several">\n<thead><tr>'
        f'<th scope="col">option</th>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'
    )


def _cell(run: str, value: Any, number: int) -> str:
    return f'<td data-title="{text(run)}"><span>{swatch(number)}{_value(value)}</span></td>'


def _shared(title: str, rows: dict[str, list[Any]]) -> str:
    """By section, so that a wide screen can set them side by side."""
    parts: dict[str, dict[str, Any]] = {}
    for name, values in rows.items():
        before, _, last = name.rpartition(".")
        parts.setdefault(before, {})[last] = values[0]
    inside = "".join(_part(before, values) for before, values in parts.items())
    head = f"<h3>{text(title)}</h3>\n" if title else ""
    return f'{head}<div class="parts">{inside}</div>\n'


def _part(before: str, values: dict[str, Any]) -> str:
    whole = f"{before}." if before else ""
    body = "".join(
        f'<tr data-option><th scope="row"><code><span class="visually-hidden">{text(whole)}</span>'
        f"{text(last)}</code></th><td>{_value(value)}</td></tr>\n"
        for last, value in values.items()
    )
    return (
        f'<div data-part><h4>{text(before or "run")}</h4>\n<table class="options pairs">'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def _name(name: str) -> str:
    *before, last = name.rsplit(".", 1)
    section = f'<span class="soft">{text(before[0])}.</span>' if before else ""
    return f"<code>{section}{text(last)}</code>"


def _brief(value: Any) -> Any:
    """Six digits tell apart what anyone would set."""
    if isinstance(value, list):
        return [_brief(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _value(value: Any) -> str:
    if value is ABSENT:
        return '<span class="soft">not there</span>'
    said = value if isinstance(value, str) else json.dumps(_brief(value), ensure_ascii=False)
    if len(said) > LONGEST:
        said = f"{said[:LONGEST]} …"
    return f"<code>{text(said)}</code>"
