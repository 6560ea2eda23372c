"""`croc show report`: what may be asked, checked before anything is read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from croc.arguments import parse
from croc.errors import UserError
from croc.lab.report import FILE


@dataclass(frozen=True)
class ShowReport:
    """Write curves, clusters, scores and settings of runs as one HTML page that needs nothing."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of runs; several are compared."""
    to: str | None = None
    """The page to write; by default report.html in the run's folder, of several runs in this."""
    scores: tuple[str, ...] = ()
    """Files results.jsonl of croc evaluate, beside those that lie in the runs' folders."""


def run_command(arguments: list[str]) -> Path:
    """The page's place."""
    asked = parse(ShowReport, arguments, "croc show report")
    if not asked.runs:
        raise UserError("name a run's folder: croc show report RUN")
    folders = [Path(run) for run in asked.runs]
    to = _page_path(folders, asked.to)
    from croc.lab.report.build import write_report

    return write_report(folders, to, [Path(file) for file in asked.scores])


def _page_path(folders: list[Path], to: str | None) -> Path:
    if to is None:
        return folders[0] / FILE if len(folders) == 1 else Path(FILE)
    path = Path(to)
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--to {to}: give it the ending .html")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} to write the page in: make it first")
    return path
