"""Fill a table's cells, each kept as soon as it is finished, and write the table down."""

import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from croc.errors import UserError
from croc.eval.evaluate import (
    Job,
    Machine,
    Weights,
    carry_out,
    check_folder,
    find_machine,
    open_weights,
)
from croc.eval.results import versions
from croc.eval.table.cells import FinishedCells, config_page
from croc.eval.table.command import TableOptions, Wanted
from croc.eval.table.layout import Row, Table, make_cells, make_columns, one_line, with_marks
from croc.eval.table.page import to_html
from croc.eval.table.plan import Entry, Planned, plan_tasks, plan_weights
from croc.eval.table.screen import print_table
from croc.eval.table.text_formats import to_latex, to_markdown


@dataclass(frozen=True)
class Failure:
    """A cell that could not be filled, and why."""

    key: str
    label: str
    protocol: str
    data: str
    reason: str

    @property
    def name(self) -> str:
        return f"{self.label}, {self.protocol} on {self.data}"


def make_table(options: TableOptions, weights: dict[str, str], wanted: Sequence[Wanted]) -> bool:
    """Compute what is missing, write and print the table; whether every cell was filled.

    What can be wrong with weights, data or options is found before the first cell starts.
    """
    folder = Path(options.to)
    check_folder(folder)
    machine = find_machine(options)
    tasks = plan_tasks(wanted, folder)
    entries = [plan_weights(label, spec, tasks, machine) for label, spec in weights.items()]
    cells = FinishedCells(folder)
    failures = Filling(folder, machine, cells, entries).fill()
    table = lay_out(entries, wanted, options.average, cells, failures)
    page = _page(table, entries, wanted, failures)
    write_whole(
        folder,
        {
            "table.md": to_markdown(table),
            "table.tex": to_latex(table),
            "table.html": to_html(table),
            "table.json": json.dumps(page, indent=2, allow_nan=False) + "\n",
        },
    )
    print_table(table)
    print(f"written to {folder}: table.md, table.tex, table.html, table.json")
    if failures:
        names = "; ".join(f"{each.name} ({each.reason})" for each in failures)
        count = f"{len(failures)} of {len(entries) * len(tasks)} cells"
        _say(f"croc: {count} failed, the same command computes only these again: {names}")
    return not failures


class Filling:
    """The cells that are still missing, row by row: one backbone is in memory at a time."""

    def __init__(
        self, folder: Path, machine: Machine, cells: FinishedCells, entries: Sequence[Entry]
    ) -> None:
        self._folder, self._machine, self._cells, self._entries = folder, machine, cells, entries
        keys = [each.key for entry in entries for each in entry.planned]
        missing = {key for key in keys if cells.get(key) is None}
        self._total, self._done = len(missing), 0
        kept = len(set(keys)) - len(missing)
        _say(f"{len(set(keys))} cells, {kept} of them finished before")

    def fill(self) -> list[Failure]:
        failures: list[Failure] = []
        try:
            for entry in self._entries:
                failures += self._fill_row(entry)
        except KeyboardInterrupt:
            _say("stopped; what is finished is kept, the same command resumes from here")
            raise
        # The same weights under another label may have had more luck.
        return [failure for failure in failures if self._cells.get(failure.key) is None]

    def _fill_row(self, entry: Entry) -> list[Failure]:
        missing = [each for each in entry.planned if self._cells.get(each.key) is None]
        if not missing:
            return []
        try:
            weights = open_weights(entry.spec)
            if weights.hash != entry.hash:
                raise UserError(f"{entry.spec} changed while the table was made")
            weights.backbone.to(self._machine.device, self._machine.precision)
        except Exception as error:
            return [self._failure(entry, each, error) for each in missing]
        return [failure for each in missing if (failure := self._fill_cell(entry, each, weights))]

    def _fill_cell(self, entry: Entry, planned: Planned, weights: Weights) -> Failure | None:
        """One cell's failure must not cost the others, whatever it is."""
        self._done += 1
        counter = f"cell {self._done} of {self._total}: "
        _say(f"{counter}{entry.label}, {planned.task.wanted.column} on {planned.request.data}")
        task = planned.task
        job = Job(planned.request, weights, task.parts, task.data_hash, self._machine, counter)
        try:
            result = carry_out(job, self._folder)
            if result is None:
                raise UserError("there was nothing to score")
        except Exception as error:
            failure = self._failure(entry, planned, error)
        else:
            self._cells.put(planned.key, {**asdict(result), "versions": versions()})
            return None
        gc.collect()  # what ran out of memory may still hold some
        torch.cuda.empty_cache()
        return failure

    def _failure(self, entry: Entry, planned: Planned, error: Exception) -> Failure:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        reason = one_line(kind + str(error))[:300]
        failure = Failure(planned.key, entry.label, *planned.task.place, reason)
        _say(f"failed: {failure.name}: {reason}")
        return failure


def lay_out(
    entries: Sequence[Entry],
    wanted: Sequence[Wanted],
    average: bool,
    cells: FinishedCells,
    failures: Sequence[Failure] = (),
) -> Table:
    """The finished cells in their places."""
    columns = make_columns([(each.column, each.data) for each in wanted], average)
    rows, croc_versions = [], set()
    for entry in entries:
        lines = {each.task.place: cells.get(each.key) for each in entry.planned}
        there = {place: line for place, line in lines.items() if line is not None}
        croc_versions |= {str(line.get("versions", {}).get("croc")) for line in there.values()}
        scores = {place: line["scores"] for place, line in there.items()}
        rows.append(Row(entry.label, entry.known, make_cells(columns, scores)))
    notes = [note for entry in entries for note in entry.notes]
    if len(croc_versions) > 1:
        notes.append(f"Scored with different versions of croc: {', '.join(sorted(croc_versions))}.")
    shares = {each.hold_out for each in wanted if each.hold_out}
    notes += [f"Scored on {100 * share:g}% of the training parts, held out." for share in shares]
    notes += [one_line(f"Could not be computed: {failure.name}.") for failure in failures]
    return with_marks(Table(columns, tuple(rows), tuple(notes)))


def _page(
    table: Table, entries: Sequence[Entry], wanted: Sequence[Wanted], failures: Sequence[Failure]
) -> dict[str, Any]:
    """All digits, and what the other formats leave out."""
    return {
        "columns": [{**asdict(column), "group": column.group} for column in table.columns],
        "rows": [
            {
                "label": row.label,
                "weights": entry.spec,
                "weights_hash": entry.hash,
                **{name.lower(): fact or None for name, fact in row.known.items()},
                "cells": [asdict(cell) for cell in row.cells],
            }
            for row, entry in zip(table.rows, entries)
        ],
        "settings": [
            {
                "protocol": each.protocol,
                "data": each.data,
                "config": config_page(each.config),
                "hold_out": each.hold_out,
            }
            for each in wanted
        ],
        "notes": list(table.notes),
        "failed": [
            {
                "label": each.label,
                "protocol": each.protocol,
                "data": each.data,
                "reason": each.reason,
            }
            for each in failures
        ],
    }


def write_whole(folder: Path, texts: dict[str, str]) -> None:
    """All are written beside their places before the first is renamed."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = {name: folder / f"{name}.partial" for name in texts}
    try:
        for name, text in texts.items():
            partial[name].write_text(text, encoding="utf-8")
        for name, path in partial.items():
            path.replace(folder / name)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
