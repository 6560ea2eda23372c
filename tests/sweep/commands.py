"""`croc sweep` called small: runs of two steps, scored on four scenes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from croc.cli import main
from tests.evals.commands import SMALL
from tests.tiny import FLAGS

WITHOUT_CLUSTERS = [
    word
    for flag, value in zip(FLAGS[::2], FLAGS[1::2])
    for word in (flag, value)
    if "cluster" not in flag
]
"""Those that DINO takes, too."""
LAMBDA = ("--sweep.vary", "cluster.position-weight", "--sweep.values")


def sweep(to: Path, *more: str, flags: Sequence[str] = FLAGS, recipe: str = "demo") -> Any:
    given = [
        *("sweep", recipe, *flags, "--run.stop-after-steps", "2", *SMALL["linear"]),
        *("--workers", "0", "--sweep.to", str(to), "--sweep.data", "scenes:4"),
        *(() if "--sweep.protocols" in more else ("--sweep.protocols", "linear")),
        *more,
    ]
    try:
        return main(given)
    except SystemExit as end:
        return end.code


def read_page(to: Path) -> dict[str, Any]:
    """As strict JSON: no NaN, no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads((to / "sweep.json").read_text(), parse_constant=refuse)
