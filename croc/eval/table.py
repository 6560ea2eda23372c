"""`croc evaluate table`: weights × data × protocols in one table.

Every finished cell is a line of results.jsonl, as `croc evaluate` writes it, and is not computed
again. Nothing here imports torch before the options are read.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from croc.errors import UserError
from croc.eval.protocols import VERSIONS, EvaluateAll, Request, read_options
from croc.eval.table_formats import (
    data_titles,
    failure_name,
    fill_cells,
    layout,
    make_record,
    to_markdown,
    write_record,
)
from croc.results import key_of, read_results
from croc.tables import one_line

if TYPE_CHECKING:
    from croc.eval.evaluate import OpenData

STOPPED = "stopped; finished results are kept, the same command resumes from here"


@dataclass(frozen=True)
class TableOptions(EvaluateAll):
    """Compare sets of weights on several datasets in one table. Finished cells are reused."""

    weights: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    """LABEL=WEIGHTS, or just WEIGHTS, as for the individual protocols: bundled weights, a run
    folder or checkpoint, a weights file, hf:USER/NAME, timm:NAME, timm:NAME@FILE, random:NAME,
    random:RUN, colors; one row each."""
    to: str = "tables"
    """Output folder for table.md, .tex and .json, results.jsonl (finished cells are
    appended) and pictures."""


@dataclass(frozen=True)
class Row:
    """Weights that were opened and checked; not kept open, since there may be many."""

    label: str
    spec: str
    weights_hash: str
    cells: list[tuple[Request, str]]
    """Each column, with a size that fits the patches, and its key."""


def run_command(arguments: list[str]) -> bool:
    """Make the table; return whether every cell was computed."""
    options, columns = read_options(arguments, TableOptions, "croc evaluate table")
    weights = dict(map(split_label, options.weights))
    if len(weights) < len(options.weights):
        raise UserError("two of the weights have the same name: give them LABEL=WEIGHTS")
    if not any(word.startswith("--kmeans.blocks") for word in arguments):
        # Papers report both; not for scenes, which are for smaller networks.
        columns += [
            replace(column, config=replace(column.config, blocks=4))
            for column in columns
            if column.protocol == "kmeans" and not column.data.startswith("scenes")
        ]
    return make_table(options, weights, columns)


def split_label(text: str) -> tuple[str, str]:
    """The parts of LABEL=WEIGHTS; a path or timm: name that contains = has no label."""
    label, equals, spec = text.partition("=")
    if not equals or re.match(r"[a-z0-9]+:\S", label) or Path(text).exists():
        label, spec = text, text
    label = one_line(label)
    if not label or not spec:
        raise UserError(f"--weights {text}: give LABEL=WEIGHTS, or just the weights")
    return label, spec


def make_table(options: TableOptions, weights: dict[str, str], columns: Sequence[Request]) -> bool:
    """Compute the missing cells, write and print the table; whether every cell was computed.

    All weights and data are opened and checked before the first cell is computed.
    """
    from croc.eval.evaluate import open_data
    from croc.eval.pictures import few_label_figure

    folder = Path(options.to)
    data = open_data(columns, folder)
    rows = [plan_row(label, spec, columns, data, options) for label, spec in weights.items()]
    try:
        scores, failures = compute(rows, data, options, folder)
    except KeyboardInterrupt:
        log(STOPPED)
        raise
    shown, titles = layout(columns), data_titles(column.data for column in columns)
    records, few = [], {}
    for row in rows:
        names = {"label": row.label, "weights": row.spec, "weights_hash": row.weights_hash}
        records.append({**names, "cells": fill_cells(shown, scores[row.label])})
        for (protocol, spec), cell_scores in scores[row.label].items():
            if protocol == "fewlabel":
                few.setdefault(titles[spec], {})[row.label] = cell_scores
    record = make_record(shown, records, columns, [], failures)
    written = write_record(record, folder)
    if few:
        few_label_figure(few, folder / "fewlabel.png")
        written.append("fewlabel.png")
    return print_table(record, folder, written)


def print_table(record: dict[str, Any], folder: Path, written: Sequence[str]) -> bool:
    """The table, and what failed; whether nothing did."""
    print(to_markdown(record, str))
    print(f"written to {folder}: {', '.join(written)}")
    failures = record["failed"]
    if failures:
        names = "; ".join(f"{failure_name(cell)} ({cell['reason']})" for cell in failures)
        log(f"croc: {len(failures)} failed, the same command runs only these again: {names}")
    return not failures


def plan_row(
    label: str, spec: str, columns: Iterable[Request], data: "OpenData", options: Any
) -> Row:
    """Open the weights and check that they suit every column."""
    from croc.eval.evaluate import fit_image_size, open_weights
    from croc.eval.machine import find_machine

    cells = []
    precision = find_machine(options).precision_name
    try:
        weights = open_weights(spec)
        for column in columns:
            request = replace(column, config=fit_image_size(column.config, weights.backbone))
            line = {
                "protocol": request.protocol,
                "config": asdict(request.config),
                "data_hash": data[request.protocol, request.data][1],
                "weights_hash": weights.hash,
                "network_hash": weights.network_hash,
                "machine": {"precision": precision},
                "hold_out": request.hold_out,
                "protocol_version": VERSIONS.get(request.protocol, 1),
            }
            cells.append((request, key_of(line)))
    except UserError as error:
        raise UserError(str(error) if label == spec else f"{label}: {error}") from None
    return Row(label, spec, weights.hash, cells)


def compute(
    rows: Sequence[Row], data: "OpenData", options: Any, folder: Path
) -> tuple[dict[str, dict[tuple[str, str], Any]], list[dict[str, str]]]:
    """Compute the cells that are missing in the folder. Returns the scores of each row's finished
    cells by protocol and data, and what failed."""
    import torch

    from croc.eval import evaluate
    from croc.eval.machine import find_machine

    # Lines of `croc evaluate` count, too.
    finished = {key_of(line): line["scores"] for line in read_results(folder)}
    keys = {key for row in rows for _, key in row.cells}
    missing = len(keys - finished.keys())
    log(f"{len(keys)} cells, {len(keys) - missing} already finished")
    machine, failures, number = find_machine(options), {}, 0
    for row in rows:
        weights = None
        for request, key in row.cells:
            if key in finished:
                continue
            number += 1
            log(f"cell {number} of {missing}: {row.label}, {request.label}")
            try:
                weights = weights or evaluate.open_weights(row.spec)
                result = evaluate.run_protocol(request, weights, data, machine, folder)
                finished[key] = result.scores
            except Exception as error:  # the other cells may still succeed
                names = {"label": row.label, "protocol": request.name, "data": request.data}
                failures[key] = {**names, "reason": error_line(error)}
                log(f"failed: {failure_name(failures[key])}: {failures[key]['reason']}")
            torch.cuda.empty_cache()
    scores = {
        row.label: {(x.name, x.data): finished[key] for x, key in row.cells if key in finished}
        for row in rows
    }
    return scores, list(failures.values())


def error_line(error: Exception) -> str:
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return one_line(kind + str(error))[:300]


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
