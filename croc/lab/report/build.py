"""From folders of runs to the page, whole."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from croc.errors import UserError
from croc.lab.report.curves import GROUPS, charts, curves, points_each, references
from croc.lab.report.evaluations import find_scores
from croc.lab.report.html import COLOURS, notes, section
from croc.lab.report.options import configuration
from croc.lab.report.pictures import cluster_pictures
from croc.lab.report.reading import Run, read_run
from croc.lab.report.scores import scores_section
from croc.lab.report.speed import speed
from croc.lab.report.summary import progress, summary
from croc.lab.web.page import THEME_SWITCH, make_page, text, write_page

MOST_RUNS = 16
PICTURES_BYTES = 4_000_000
"""Of clusters, on the whole page; every run may have one."""
STYLES = ("charts.css", "report.css")
SCRIPTS = (
    "dom.js",
    "curves.js",
    "shared.js",
    "charts.js",
    "gestures.js",
    "report.js",
    "start.js",
)


def write_report(folders: Sequence[Path], to: Path, scores: Sequence[Path] = ()) -> Path:
    write_page(to, report(folders, scores))
    return to


def report(folders: Sequence[Path], scores: Sequence[Path] = ()) -> str:
    """The page of one run, or of several side by side."""
    if len(folders) > MOST_RUNS:
        raise UserError(f"{len(folders)} runs are too many for one page: give at most {MOST_RUNS}")
    runs = [read_run(folder) for folder in folders]
    _tell_apart(runs)
    drawn = [_pictures(run, PICTURES_BYTES // len(runs)) for run in runs]
    sections, remarks = _sections(runs, scores, any(drawn))
    remarks = [_remark(run, note, runs) for run in runs for note in run.notes] + remarks
    data = {
        "charts": charts(runs),
        "groups": GROUPS,
        "runs": _curves(runs, drawn),
    }
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    body = _body(title, runs, sections, remarks)
    return make_page(title, body, styles=STYLES, scripts=SCRIPTS, data=data)


def _curves(runs: Sequence[Run], drawn: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    points = points_each(runs)
    return [
        {
            "name": run.name,
            "colour": number % COLOURS,
            "dashed": number % (2 * COLOURS) >= COLOURS,
            "batch": run.whole_option("optim.batch"),
            "perEpoch": run.steps_per_epoch,
            "curves": curves(run, points),
            "references": references(run),
            "pictures": pictures,
        }
        for number, (run, pictures) in enumerate(zip(runs, drawn))
    ]


def _pictures(run: Run, most_bytes: int) -> list[dict[str, Any]]:
    shown, said = cluster_pictures(run.folder, most_bytes)
    run.notes += said
    return shown


def _tell_apart(runs: Sequence[Run]) -> None:
    """Folders of one name are called by more of their paths."""
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = str(run.folder)


def _remark(run: Run, note: str, runs: Sequence[Run]) -> str:
    return f"{run.name}: {note}" if len(runs) > 1 else note


def _sections(
    runs: Sequence[Run], given: Sequence[Path], drawn: bool
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """By anchor: title and inside; and remarks on what was left out."""
    sections: dict[str, tuple[str, str]] = {}
    scores, remarks = find_scores(runs, given)
    if any(run.metrics for run in runs):
        sections["curves"] = ("Curves", '<div data-place="curves"></div>')
    if drawn:
        sections["clusters"] = ("Clusters through training", '<div data-place="clusters"></div>')
    if scores:
        inside, said = scores_section(scores)
        sections["scores"] = ("Scores", inside)
        remarks += said
    measured = [speed(run, number) for number, run in enumerate(runs)]
    remarks += [note for _, said in measured for note in said]
    cards = "".join(inside for inside, _ in measured)
    if cards:
        sections["speed"] = ("Where a step's time goes", f'<div class="cards scores">{cards}</div>')
    sections["configuration"] = ("Configuration", configuration(runs))
    return sections, remarks


def _body(
    title: str, runs: Sequence[Run], sections: dict[str, tuple[str, str]], remarks: list[str]
) -> str:
    links = "".join(f'<li><a href="#{name}">{name.capitalize()}</a></li>' for name in sections)
    time = datetime.now(UTC)
    written = f'<time datetime="{time:%Y-%m-%dT%H:%MZ}">{time.day} {time:%B %Y, %H:%M} UTC</time>'
    state = f"{progress(runs[0])}, " if len(runs) == 1 else ""
    inside = "".join(section(name, *sections[name]) for name in sections)
    return (
        '<a class="skip" href="#main">To the content</a>\n<header class="top"><div class="wide">\n'
        f'<div class="grow"><h1>{text(title)}</h1>\n'
        f'<p class="soft small">CrOC · as of {state}{written}</p></div>\n'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n{THEME_SWITCH}\n</div></header>\n'
        f'<main id="main" tabindex="-1">\n{notes(remarks)}{summary(runs)}\n{inside}'
        "<noscript><p>The curves and the clusters need JavaScript.</p></noscript>\n</main>"
    )
