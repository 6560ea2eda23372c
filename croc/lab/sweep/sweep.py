"""The whole of a sweep: check, train and score run by run, write after each, draw at the end."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from croc.errors import UserError
from croc.eval.table.make import write_whole
from croc.lab.sweep.check import check_runs
from croc.lab.sweep.claims import FILE as LOCK
from croc.lab.sweep.claims import PAGE, UNTRAINED, Claims
from croc.lab.sweep.options import SweepConfig
from croc.lab.sweep.page import differences, identify, make_page, run_page, runs_of, to_json
from croc.lab.sweep.picture import draw_page
from croc.lab.sweep.run import carry_out, say, steps_done
from croc.lab.sweep.scoring import Scorer, open_scorer
from croc.lab.sweep.settings import Run, Setting
from croc.lab.sweep.tables import print_page, to_markdown

FILE = "sweep.json"
TABLE = "sweep.md"
PICTURE = "sweep.png"


@dataclass(frozen=True)
class Sweep:
    """What was asked for."""

    recipe: str
    config: SweepConfig
    options: Sequence[str]
    """The recipe's, for all settings."""
    evaluation: Sequence[str]
    """Those of the evaluations."""
    settings: Sequence[Setting]
    runs: Sequence[Run]

    @property
    def folder(self) -> Path:
        return Path(self.config.to)


def run_sweep(sweep: Sweep) -> bool:
    """Whether every run succeeded; what can be wrong is found before the first of them."""
    scorer = open_scorer(sweep.config, sweep.evaluation, sweep.settings[0].config.run.accelerator)
    fixed = identify(sweep.recipe, sweep.config, sweep.settings, scorer.wanted)
    open_sweep_folder(sweep.folder, fixed)
    steps = check_runs(sweep.runs, scorer)
    sweep.folder.mkdir(parents=True, exist_ok=True)
    with Claims(sweep.folder, [run.name for run in sweep.runs]) as claims:
        return _run_in_turn(sweep, fixed, scorer, steps, claims)


def _run_in_turn(
    sweep: Sweep, fixed: dict[str, Any], scorer: Scorer, steps: dict[str, int], claims: Claims
) -> bool:
    """All runs, those that other processes are at after the others."""
    found: dict[str, dict[str, Any]] = {}
    with claims.alone(PAGE):
        open_sweep_folder(sweep.folder, fixed)  # another process may have made it meanwhile
        page = _write(sweep, fixed, scorer, steps, found)
    try:
        for place in claims.in_turn():
            run = sweep.runs[place]
            say(f"run {place + 1} of {len(sweep.runs)}: {run.name}{_state(run, steps)}")
            scoring = claims.alone(UNTRAINED)
            outcome = carry_out(run, steps[run.setting.name], scorer, scoring)
            found[run.name] = run_page(outcome)
            with claims.alone(PAGE):
                page = _write(sweep, fixed, scorer, steps, found)
    except KeyboardInterrupt:
        say("stopped; what is finished is kept, the same command resumes from here")
        raise
    finally:
        if any(run["scores"] for run in runs_of(page).values()):
            with claims.alone(PAGE):
                draw_page(page, sweep.folder / PICTURE)
    return _finish(sweep, page)


def open_sweep_folder(folder: Path, fixed: dict[str, Any]) -> None:
    """Make sure the folder is this sweep's own, or free."""
    others = folder.exists() and any(map(_is_foreign, folder.iterdir()))
    if not (folder / FILE).exists():  # after the others, if another process makes it just now
        if others:
            raise UserError(f"{folder} exists and holds no sweep: choose another --sweep.to")
        return
    try:
        found = dict(json.loads((folder / FILE).read_text())["configuration"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{folder / FILE} is no sweep's: choose another --sweep.to") from None
    changes = list(differences(found, fixed))
    if changes:
        raise UserError(
            f"{folder} holds another sweep ({'; '.join(changes[:3])}): choose another --sweep.to, "
            "or give the same settings to continue it"
        )


def _is_foreign(path: Path) -> bool:
    """Not left by a sweep that was ended before its first page."""
    return path.suffix != ".partial" and path.name != LOCK


def _state(run: Run, steps: dict[str, int]) -> str:
    return " (trained before)" if _is_trained(run, steps) else ""


def _is_trained(run: Run, steps: dict[str, int]) -> bool:
    return steps_done(run.folder) >= steps[run.setting.name]


def _write(
    sweep: Sweep,
    fixed: dict[str, Any],
    scorer: Scorer,
    steps: dict[str, int],
    found: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Whole as far as it goes: a later run may end the process."""
    before = _finished_before(sweep, steps)
    # What failed here may have had more luck elsewhere.
    ours = {name: run for name, run in found.items() if not run["failed"] or name not in before}
    command = {
        "recipe": sweep.recipe,
        "options": [*sweep.options, *sweep.evaluation],
        "sweep": sweep.config,
    }
    page = make_page(command, fixed, sweep.runs, before | ours, scorer)
    write_whole(sweep.folder, {FILE: to_json(page), TABLE: to_markdown(page)})
    return page


def _finished_before(sweep: Sweep, steps: dict[str, int]) -> dict[str, dict[str, Any]]:
    """What the page says of runs that are still there: of this process, another, or an earlier."""
    try:
        told = runs_of(json.loads((sweep.folder / FILE).read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    whole = {run.name for run in sweep.runs if _is_trained(run, steps)}
    return {name: run for name, run in told.items() if name in whole and not run["failed"]}


def _finish(sweep: Sweep, page: dict[str, Any]) -> bool:
    print_page(page)
    drawn = f", {PICTURE}" if (sweep.folder / PICTURE).exists() else ""
    print(f"written to {sweep.folder}: {FILE}, {TABLE}{drawn}; the runs in runs/")
    runs = runs_of(page)
    failed = [f"{name} ({run['failed']})" for name, run in runs.items() if run["failed"]]
    if failed:
        count = f"{len(failed)} of {len(runs)} runs"
        names = "; ".join(failed)
        say(f"croc: {count} failed, the same command tries only these again: {names}")
    return not failed
