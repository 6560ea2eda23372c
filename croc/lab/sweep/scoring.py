"""A sweep's scores, by the machinery of `croc evaluate table`: each cell is computed once."""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from croc.config import PretrainConfig
from croc.errors import UserError
from croc.eval.evaluate import Machine, check_folder, find_machine
from croc.eval.table.cells import FinishedCells
from croc.eval.table.command import Wanted, read_flags
from croc.eval.table.make import Failure, Filling
from croc.eval.table.plan import Entry, Task, plan_tasks, plan_weights
from croc.lab.sweep.options import SweepConfig
from croc.train.run_folder import write_config


@dataclass(frozen=True)
class Scored:
    """What was found for weights, by protocol and data."""

    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Scorer:
    """The data, opened, and the cells that are finished."""

    folder: Path
    wanted: tuple[Wanted, ...]
    tasks: tuple[Task, ...]
    machine: Machine
    cells: FinishedCells
    untrained: bool

    def check(self, config: PretrainConfig, recipe: str) -> None:
        """Whether a network suits the protocols, asked before it is trained."""
        with TemporaryDirectory() as folder:
            network = Path(folder) / "network"  # messages name it so
            write_config(network, config, recipe)
            spec = f"random:{network}"
            plan_weights(spec, spec, self.tasks, self.machine)

    def score(
        self, run: Path, name: str, alone: AbstractContextManager[None]
    ) -> tuple[Scored, Scored, str | None]:
        """The run, its network before the first step, and what failed.

        Runs that differ in no weight before training, such as two λ_pos, share those cells, which
        is why one process `alone` computes them.
        """
        trained = plan_weights(name, str(run), self.tasks, self.machine)
        failures = self._fill(trained)
        untrained = Scored()
        if self.untrained:
            label = f"{name}, untrained"
            before = plan_weights(label, f"random:{run}", self.tasks, self.machine)
            with alone:
                failures += self._fill(before)
            untrained = self._collect(before)
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in failures)
        return self._collect(trained), untrained, reasons or None

    def _fill(self, entry: Entry) -> list[Failure]:
        self.cells.read()  # another process may have filled some
        return Filling(self.folder, self.machine, self.cells, [entry]).fill()

    def _collect(self, entry: Entry) -> Scored:
        found = {place_name(*each.task.place): self.cells.get(each.key) for each in entry.planned}
        lines = {place: line for place, line in found.items() if line is not None}
        scores = {place: line["scores"] for place, line in lines.items()}
        return Scored(scores, sum(line["seconds"] for line in lines.values()))


def open_scorer(sweep: SweepConfig, words: Sequence[str], accelerator: str) -> Scorer:
    """Read what is asked of the evaluations, and open all data."""
    to = Path(sweep.to)
    try:
        options, wanted = read_flags(_table_words(sweep, words, accelerator))
        check_folder(to)
        tasks = plan_tasks(wanted, to)
    except UserError as error:
        # Some of the options have other names there.
        said = re.sub(r"--(data|protocols|hold-out|to)\b", r"--sweep.\1", str(error))
        raise UserError(said) from None
    machine, folder = find_machine(options), to / "evaluations"
    cells = FinishedCells(folder)
    return Scorer(folder, tuple(wanted), tuple(tasks), machine, cells, sweep.untrained)


def _table_words(sweep: SweepConfig, words: Sequence[str], accelerator: str) -> list[str]:
    """What `croc evaluate table` would be given; it scores where the runs train, unless asked."""
    given = {word.partition("=")[0] for word in words}
    return [
        *("--weights", "run", "--data", *sweep.data, "--protocols", *sweep.protocols),
        *("--hold-out", str(sweep.hold_out)),
        *(() if "--device" in given else ("--device", accelerator)),
        *words,
    ]


def place_name(protocol: str, data: str) -> str:
    return f"{protocol} on {data}"
