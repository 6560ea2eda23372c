"""The scores of these weights, out of a results.jsonl."""

import json
from pathlib import Path
from typing import Any

from croc.errors import UserError
from croc.eval.results import read_lines

TOLD_APART_BY = ("protocol", "data", "config", "hold_out", "weights_hash", "machine")


def read_scores(path: str | None, here: str, exact: str) -> list[dict[str, Any]]:
    """The latest of each protocol, data set and settings, of these weights or before rounding."""
    if path is None:
        return []
    found: dict[str, dict[str, Any]] = {}
    for line in read_lines(Path(path), pass_over_bad=True):
        if line.get("weights_hash") not in (here, exact) or not _is_result(line):
            continue
        key = json.dumps([line.get(name) for name in TOLD_APART_BY], sort_keys=True)
        found[key] = {**line, "as_here": line["weights_hash"] == here}
    if not found:
        raise UserError(f"--scores {path} holds no scores of these weights ({here})")
    return list(found.values())


def _is_result(line: dict[str, Any]) -> bool:
    try:
        first = next(iter(line["scores"].values()))
        known = isinstance(line["config"], dict) and "precision" in line["machine"]
        return known and isinstance(first, int | float) and {"protocol", "data"} <= line.keys()
    except (KeyError, TypeError, AttributeError, StopIteration):
        return False
