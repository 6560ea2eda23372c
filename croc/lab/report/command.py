"""`croc show report`: the command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from croc.arguments import parse
from croc.errors import UserError
from croc.lab.report import FILE


@dataclass(frozen=True)
class ShowReport:
    """Write curves, clusters, scores and settings of runs as one self-contained HTML page."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Run folders; several are compared."""
    to: str | None = None
    """The page to write; by default report.html, in the run's folder or, for several runs, here."""
    scores: tuple[str, ...] = ()
    """Further results.jsonl files of croc evaluate; those in the run folders are always read."""


def run_command(arguments: list[str]) -> Path:
    """Write the page and return its path."""
    options = parse(ShowReport, arguments, "croc show report")
    if not options.runs:
        raise UserError("name a run's folder: croc show report RUN")
    folders = [Path(run) for run in options.runs]
    to = Path(options.to or (folders[0] / FILE if len(folders) == 1 else FILE))
    if to.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--to {to}: the page's name must end in .html")
    if options.to and not to.parent.is_dir():
        raise UserError(f"--to {to}: there is no folder {to.parent}; create it first")
    from croc.lab.report.build import write_report

    return write_report(folders, to, [Path(file) for file in options.scores])
