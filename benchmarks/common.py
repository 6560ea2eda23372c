"""Helpers of the benchmarks: exit codes, the device, and JSON files with date and hardware."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from croc.errors import UserError
from croc.io import gpu_versions, hardware
from croc.tables import one_line


def run(main: Callable[[], None]) -> None:
    """Print a user's error on one line and exit with code 2, like `croc`."""
    try:
        main()
    except UserError as error:
        print(f"{Path(sys.argv[0]).stem}: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2)


def this_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def write_json(path: Path, device: torch.device, **results: Any) -> None:
    """Write the results with the date, hardware and versions of the measurement."""
    date = datetime.now(UTC).date().isoformat()
    record = {"date": date, "hardware": hardware(device), "versions": gpu_versions()} | results
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False, default=str) + "\n")
