"""Finished cells, looked up in results.jsonl by what they are scores of."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from croc.eval.results import FILE, read_results


def cell_key(
    *,
    protocol: str,
    config: Any,
    data_hash: str,
    weights_hash: str,
    network_hash: str,
    precision: str,
    hold_out: float = 0.0,
) -> str:
    """What decides a score. Not the data's or the weights' path, nor the device."""
    parts = (protocol, config, data_hash, weights_hash, network_hash, precision)
    parts += (hold_out,) * bool(hold_out)  # without one, a cell is what it was before there were
    return json.dumps(parts, sort_keys=True)


def config_page(config: Any) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists there."""
    return json.loads(json.dumps(asdict(config)))


class FinishedCells:
    """The lines of a folder's results.jsonl, those of `croc evaluate` among them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: dict[str, dict[str, Any]] = {}
        self.read()

    def read(self) -> None:
        """Again, if another process writes to the folder, too."""
        if (self._folder / FILE).exists():
            for line in read_results(self._folder, pass_over_bad=True):
                self._add(line)

    def _add(self, line: Any) -> None:
        """A later line counts more than an earlier one; what is no result is passed over."""
        try:
            names = ("protocol", "config", "data_hash", "weights_hash", "network_hash")
            parts = {name: line[name] for name in names}
            precision, hold_out = line["machine"]["precision"], line.get("hold_out", 0.0)
            key = cell_key(**parts, precision=precision, hold_out=hold_out)
            scores = list(line["scores"].values())
        except (KeyError, TypeError, AttributeError):
            return
        if scores and isinstance(scores[0], int | float) and math.isfinite(scores[0]):
            self._lines[key] = line

    def get(self, key: str) -> dict[str, Any] | None:
        return self._lines.get(key)

    def put(self, key: str, line: dict[str, Any]) -> None:
        self._lines[key] = line
