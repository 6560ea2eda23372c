"""`croc evaluate table`: weights × data × protocols in one table.

Every finished cell is a line of results.jsonl, as `croc evaluate` writes it, and is not computed
again. Nothing here imports torch before the options are read.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from croc.config import parse
from croc.errors import UserError
from croc.eval.protocols import (
    DEFAULTS,
    PROTOCOLS,
    EvaluateOptions,
    FewLabelConfig,
    InContextConfig,
    KmeansConfig,
    LinearConfig,
    Request,
    VideoConfig,
    WithinConfig,
    allows,
    by_epochs_or_steps,
    data_kind,
)
from croc.eval.table_formats import (
    data_titles,
    failure_name,
    fill_cells,
    layout,
    make_record,
    to_markdown,
    write_record,
)
from croc.io import versions
from croc.tables import one_line

if TYPE_CHECKING:
    from croc.eval.evaluate import OpenData

STOPPED = "stopped; finished results are kept, the same command resumes from here"


@dataclass(frozen=True)
class TableOptions(EvaluateOptions):
    """Compare sets of weights on several datasets in one table. Finished cells are reused."""

    weights: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    """LABEL=WEIGHTS, or just WEIGHTS, as for the individual protocols: bundled weights, a run
    folder or checkpoint, a weights file, timm:NAME, timm:NAME@FILE, random:NAME, random:RUN,
    colors; one row each."""
    data: tuple[str, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    """KIND:PATH (a folder or a .tar) as for the individual protocols, or scenes; one column per
    protocol and dataset."""
    protocols: tuple[
        Literal["linear", "kmeans", "within", "incontext", "fewlabel", "video"], ...
    ] = PROTOCOLS
    """Protocols to run, each on the datasets that support it."""
    average: bool = True
    """Add a column with the mean over a protocol's datasets, if there are several."""
    to: str = "tables"
    """Output folder for table.md, .tex and .json, results.jsonl (finished cells are
    appended) and pictures."""
    linear: LinearConfig = field(default_factory=LinearConfig)
    kmeans: KmeansConfig = field(default_factory=KmeansConfig)
    within: WithinConfig = field(default_factory=WithinConfig)
    incontext: InContextConfig = field(default_factory=InContextConfig)
    fewlabel: FewLabelConfig = field(default_factory=FewLabelConfig)
    video: VideoConfig = field(default_factory=VideoConfig)


@dataclass(frozen=True)
class Row:
    """Weights that were opened and checked; not kept open, since there may be many."""

    label: str
    spec: str
    weights_hash: str
    notes: list[str]
    cells: list[tuple[Request, Request, str]]
    """Each column, the same with a size that fits the patches, and its key."""


def run_command(arguments: list[str]) -> bool:
    """Make the table; return whether every cell was computed."""
    options, columns = read_options(arguments)
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


def read_options(
    arguments: list[str],
    kind: type[TableOptions] = TableOptions,
    program: str = "croc evaluate table",
    **defaults: Any,
) -> tuple[TableOptions, list[Request]]:
    """The options, and the columns with each dataset's own defaults.

    `defaults` are for options that the caller sets itself.
    """
    flags = {word.partition("=")[0].replace("_", "-") for word in arguments}

    def read(data: str) -> TableOptions:
        configs: dict[str, Any] = {name: x(data.partition(":")[0]) for name, x in DEFAULTS.items()}
        configs["linear"] = by_epochs_or_steps(configs["linear"], flags)
        required: dict[str, Any] = {"weights": (), "data": ()}  # refused below if they stay empty
        return parse(kind, arguments, program, kind(**required | configs | defaults))

    options = read(data_kind(arguments) or defaults.get("data", ("",))[0])
    for flag in ("weights", "data", "protocols"):
        values = getattr(options, flag)
        if not values or len(set(values)) < len(values):
            raise UserError(f"--{flag} is empty or names one twice: {' '.join(values)}")
    columns, share = [], options.hold_out
    by_data = {data: read(data) for data in options.data}
    for protocol in options.protocols:
        for data in (x for x in options.data if allows(x, protocol, share)):
            columns.append(
                Request(protocol, data, getattr(by_data[data], protocol), hold_out=share)
            )
    used = {name for column in columns for name in (column.protocol, column.data)}
    chosen = () if options.protocols == PROTOCOLS else options.protocols
    for name in (*options.data, *chosen):
        if name not in used:
            with_data = f"{' '.join(options.protocols)} with --data {' '.join(options.data)}"
            raise UserError(f"--protocols {with_data}: nothing can be scored for {name}")
    return options, columns


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

    folder = Path(options.to)
    data = open_data(columns, folder)
    rows = [plan_row(label, spec, columns, data, options) for label, spec in weights.items()]
    try:
        finished, failures = compute(rows, data, options, folder)
    except KeyboardInterrupt:
        log(STOPPED)
        raise
    few = {each.data: each.config.metrics for each in columns if each.protocol == "fewlabel"}
    shown = layout([(column.name, column.data) for column in columns], options.average, few)
    records, croc_versions = [], set()
    for row in rows:
        lines = {(x.name, x.data): finished[key] for x, _, key in row.cells if key in finished}
        croc_versions |= {str(line.get("versions", {}).get("croc")) for line in lines.values()}
        cells = fill_cells(shown, {place: line["scores"] for place, line in lines.items()})
        names = {"label": row.label, "weights": row.spec, "weights_hash": row.weights_hash}
        records.append({**names, "cells": cells})
    notes = [note for row in rows for note in row.notes]
    if len(croc_versions) > 1:
        notes.append(f"Scored with different versions of croc: {', '.join(sorted(croc_versions))}.")
    record = make_record(shown, records, columns, notes, failures)
    written = write_record(record, folder)
    if any(column.protocol == "fewlabel" for column in columns):
        from croc.eval.pictures import few_label_figure

        titles = data_titles(column.data for column in columns)
        few_lines: dict[str, Any] = {}
        for row in rows:
            for column, _, key in row.cells:
                if column.protocol == "fewlabel" and key in finished:
                    own = few_lines.setdefault(titles[column.data], {})
                    own[row.label] = finished[key]["scores"]
        if few_lines:
            few_label_figure(few_lines, folder / "fewlabel.png")
            written.append("fewlabel.png")
    print(to_markdown(record, str))
    print(f"written to {folder}: {', '.join(written)}")
    if failures:
        names = "; ".join(f"{failure_name(each)} ({each['reason']})" for each in failures)
        count = f"{len(failures)} of {len(rows) * len(columns)} cells"
        log(f"croc: {count} failed, the same command computes only these again: {names}")
    return not failures


def plan_row(
    label: str, spec: str, columns: Iterable[Request], data: "OpenData", options: TableOptions
) -> Row:
    """Open the weights and check that they suit every column."""
    from croc.eval.evaluate import find_machine, fit_image_size, open_weights

    cells, notes = [], []
    precision = find_machine(options).precision_name
    try:
        weights = open_weights(spec)
        for column in columns:
            request, note = fit_image_size(column, weights.backbone)
            notes += [f"{label}: {note}"] * bool(note)
            hashes = (data[column.protocol, column.data][1], weights.hash, weights.network_hash)
            config = asdict(request.config)
            key = cell_key(column.protocol, config, *hashes, precision, column.hold_out)
            cells.append((column, request, key))
    except UserError as error:
        raise UserError(str(error) if label == spec else f"{label}: {error}") from None
    return Row(label, spec, weights.hash, list(dict.fromkeys(notes)), cells)


def cell_key(*parts: Any) -> str:
    """Everything that determines a score: protocol, config, the hashes of data, weights and
    network, precision and hold-out; not the paths of data and weights, nor the device."""
    return json.dumps(parts, sort_keys=True)


def line_key(line: dict[str, Any]) -> str:
    """The key of a line of results.jsonl, which may be older than some of its fields."""
    names = ("protocol", "config", "data_hash", "weights_hash", "network_hash")
    renamed = {"standardise": "standardize", "neighbours": "neighbors"}
    renamed |= {"reading": "on", "best": "top_k"}
    config = {renamed.get(name, name): value for name, value in line["config"].items()}
    values = [(line | {"config": config}).get(name) for name in names]
    return cell_key(*values, line["machine"].get("precision"), line.get("hold_out", 0.0))


def compute(
    rows: Sequence[Row], data: "OpenData", options: TableOptions, folder: Path
) -> tuple[dict[str, dict[str, Any]], list[dict[str, str]]]:
    """Compute the cells that are missing in the folder; all finished cells, and what failed."""
    import torch

    from croc.eval import evaluate
    from croc.eval.results import FILE, read_results

    lines = read_results(folder) if (folder / FILE).exists() else []
    finished = {line_key(line): line for line in lines}  # those of `croc evaluate` count, too
    keys = {key for row in rows for _, _, key in row.cells}
    missing = len(keys - finished.keys())
    log(f"{len(keys)} cells, {len(keys) - missing} already finished")
    machine, failures, number = evaluate.find_machine(options), {}, 0
    for row in rows:
        weights = None
        for column, request, key in row.cells:
            if key in finished:
                continue
            number += 1
            log(f"cell {number} of {missing}: {row.label}, {column.label}")
            try:
                weights = weights or evaluate.open_weights(row.spec)
                result = evaluate.run_protocol(request, weights, data, machine, folder)
                if result is None:
                    raise UserError("there was nothing to score")
                finished[key] = {**asdict(result), "versions": versions()}
            except Exception as error:  # the other cells may still succeed
                names = {"label": row.label, "protocol": column.name, "data": column.data}
                failures[key] = {**names, "reason": describe(error)}
                log(f"failed: {failure_name(failures[key])}: {failures[key]['reason']}")
            torch.cuda.empty_cache()
    return finished, list(failures.values())


def describe(error: Exception) -> str:
    """An error in one line of a table or a log."""
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return one_line(kind + str(error))[:300]


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
