"""One run after the other: trained if it is not, scored if it is not, and what came of it."""

import gc
import json
import sys
import traceback
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from croc.errors import AskedToEnd, UserError
from croc.eval.table.layout import one_line
from croc.lab.sweep.scoring import Scored, Scorer
from croc.lab.sweep.settings import Run
from croc.train.checkpoint import checkpoints, step_of
from croc.train.log import TIMINGS, read_metrics
from croc.train.loop import pretrain

EXPECTED = (UserError, MemoryError, torch.OutOfMemoryError)
"""Failures that their message explains; of others the traceback is printed, too."""


@dataclass(frozen=True)
class Outcome:
    """What a run's folder and its cells tell."""

    run: Run
    failed: str | None
    """Why, if it did."""
    steps: int = 0
    training_s: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    """Means over the last tenth of the lines of metrics.jsonl."""
    scored: Scored = field(default_factory=Scored)
    untrained: Scored = field(default_factory=Scored)

    @property
    def images(self) -> int:
        """That were seen, repeated ones counted again."""
        return self.steps * self.run.config.optim.batch


def carry_out(
    run: Run, last_step: int, scorer: Scorer, alone: AbstractContextManager[None]
) -> Outcome:
    """One run's failure must not cost the others, whatever it is."""
    scored, untrained, failed = Scored(), Scored(), None
    try:
        train_once(run, last_step)
        _let_go()
        scored, untrained, failed = scorer.score(run.folder, run.name, alone)
    except Exception as error:
        failed = _reason(error)
        say(f"failed: {run.name}: {failed}")
    finally:
        _let_go()
    lines = _lines(run.folder)
    return Outcome(
        run,
        failed,
        steps=int(lines[-1]["step"]) if lines else 0,
        training_s=seconds_of(lines),
        metrics=last_metrics(lines),
        scored=scored,
        untrained=untrained,
    )


def train_once(run: Run, last_step: int) -> None:
    """Nothing if it is finished; pretrain itself goes on with what was interrupted."""
    if steps_done(run.folder) >= last_step:
        return
    try:
        pretrain(run.config, run.setting.recipe)
    except AskedToEnd:
        raise KeyboardInterrupt from None  # no failure of this run, and the end of the sweep


def steps_done(folder: Path) -> int:
    found = checkpoints(folder)
    return step_of(found[-1]) if found else 0


def seconds_of(lines: list[dict[str, Any]]) -> float:
    """Of all parts of a run: the clock begins anew with each, so it falls where one begins."""
    clock = [float(line["seconds"]) for line in lines]
    ends = [now for now, after in pairwise(clock) if after < now]
    return sum(ends) + (clock[-1] if clock else 0.0)


def last_metrics(lines: list[dict[str, Any]]) -> dict[str, float]:
    """What a single line says is one batch's."""
    last = lines[-max(1, len(lines) // 10) :]
    names = [name for name in (last[-1] if last else {}) if name not in {"step", "epoch", *TIMINGS}]
    told = {name: [line[name] for line in last if line.get(name) is not None] for name in names}
    return {name: fmean(values) for name, values in told.items() if values}


def _reason(error: Exception) -> str:
    if not isinstance(error, EXPECTED):
        traceback.print_exception(error)
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return one_line(kind + str(error))[:300]


def _let_go() -> None:
    """Runs share compiled code, but no memory."""
    gc.collect()
    torch.cuda.empty_cache()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _lines(folder: Path) -> list[dict[str, Any]]:
    """None for a run that failed before its first."""
    try:
        return read_metrics(folder)
    except (OSError, json.JSONDecodeError):
        return []
