"""What follows a step: its figures, what they tell of the run's health, checkpoints, the end."""

import contextlib
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from croc.config import PretrainConfig
from croc.data.sources import ImageSource
from croc.errors import AskedToEnd, UserError
from croc.lab.report.hook import Reporter, weights_to_show
from croc.method.distributed import any_process, fetch, sum_over_processes, union_over_processes
from croc.method.schedules import Settings
from croc.method.types import Canvases
from croc.train.checkpoint import TrainState, checkpoints
from croc.train.cuda_graph import Gradients
from croc.train.diagnosis import DIAGNOSIS, describe, find_spoiled, images_of, write_diagnosis
from croc.train.guard import Guard
from croc.train.health import Health
from croc.train.log import RunLog
from croc.train.saving import Saver

ASK_S, MOST_STEPS_APART = 3.0, 10
"""How often processes ask each other whether one was asked to end."""


@dataclass(frozen=True)
class Due:
    """What is to be done after a step."""

    ends: bool
    """By a signal."""
    last: bool
    logs: bool
    saves: bool


class Watch:
    """Watches one run, by all of its processes together."""

    def __init__(
        self,
        config: PretrainConfig,
        source: ImageSource,
        folder: Path,
        gradients: Gradients,
        guard: Guard,
        state: TrainState,
        log: RunLog,
        ending: list[int],
        last_step: int,
    ) -> None:
        """`ending` fills with the signals that ask for an end."""
        self._config, self._source, self._folder = config, source, folder
        self._gradients, self._guard, self._state = gradients, guard, state
        self._log, self._ending, self._last_step = log, ending, last_step
        self._fabric, self._method = gradients.fabric, gradients.method
        self._health = Health(config)
        self._saver = Saver(self._fabric, folder, config.run, log.say)
        self._reporter = Reporter(self._fabric, config, source, folder, log)
        self._reporter.start(weights_to_show(self._method, config), state.step)
        self._ask_every, self._clock = 1, (state.step, time.perf_counter())
        self._undecoded: list[str] = []
        self._late = False
        """Whether a checkpoint was put off."""

    def after_step(
        self, canvases: Canvases, settings: Settings, metrics: dict[str, Tensor]
    ) -> None:
        """Raises what ends the run before its last step."""
        self._undecoded += canvases.failed
        self._log.advance(self._state.step)
        due = self._due()
        if due.logs or due.saves:
            values = fetch(metrics)
            self._tell_undecoded()
            in_a_row = self._tell_skipped()
            if in_a_row >= self._config.run.max_skipped:
                raise self._give_up(in_a_row, canvases, settings, values)
            # Weights that give no gradient must not take the place of those that gave one.
            self._late = due.saves and in_a_row > 0 and not due.last
            if due.logs:
                self._write(settings, values)
                self._set_pace()
        problem = self._save(due) if due.saves and not self._late else ""
        if due.ends:
            raise self._end(problem)

    def _due(self) -> Due:
        run, step = self._config.run, self._state.step
        # Several processes must agree on an end, so they ask each other now and then.
        asks = self._fabric.world_size == 1 or step % self._ask_every == 0
        ends = asks and any_process(bool(self._ending), self._fabric.device)
        last = ends or step == self._last_step
        logs = last or step == 1 or step % run.log_every_steps == 0
        owes = logs and (self._saver.owes or self._late)
        return Due(ends, last, logs, last or owes or step % run.checkpoint_every_steps == 0)

    def _tell_undecoded(self) -> None:
        state, config = self._state, self._config
        for name in state.failed.add(union_over_processes(self._undecoded)):
            self._log.say(f"skipped, cannot be decoded: {name}")
        self._undecoded.clear()
        seen = state.step * config.optim.batch
        state.failed.check(seen, len(self._source), config.data.max_failed_share)

    def _tell_skipped(self) -> int:
        """How many steps in a row were skipped until now."""
        before, (self._state.skipped, in_a_row) = self._state.skipped, self._guard.counts()
        if self._state.skipped > before:
            self._log.say(f"{self._state.skipped} steps skipped so far (non-finite gradient)")
        return in_a_row

    def _give_up(
        self, in_a_row: int, canvases: Canvases, settings: Settings, values: dict[str, float]
    ) -> UserError:
        """Leave what is known, and say it in a line."""
        steps = range(self._state.step - in_a_row, self._state.step)
        first, last = steps[0] + 1, steps[-1] + 1
        batch, seed = self._config.optim.batch, self._config.run.seed
        page = describe(self._fabric.device, settings, values)
        page["skipped_steps"] = [first, last]
        page["images"] = images_of(self._source, steps, batch, seed)
        self._leave(page)  # before another try, of which one process may not come back
        self._leave(page | {"not_finite": find_spoiled(self._gradients, canvases)})
        found = checkpoints(self._folder)
        left = f"the last checkpoint is {found[-1].name}" if found else "no checkpoint was saved"
        return UserError(
            f"steps {first} to {last} had no finite gradient and were skipped; "
            f"{self._folder / DIAGNOSIS} names the images and tensors, {left}: try a lower "
            "--optim.rate or --optim.clip-gradient 3"
        )

    def _leave(self, page: dict[str, Any]) -> None:
        if self._fabric.is_global_zero:
            with contextlib.suppress(OSError):  # what is said to the user matters more
                write_diagnosis(self._folder, page)

    def _write(self, settings: Settings, values: dict[str, float]) -> None:
        values |= {"rate": settings.rate, "weight_decay": settings.weight_decay}
        self._log.write(self._state.step, settings.epoch, values, self._config.optim.batch)
        for sign in self._health.look(values):
            self._log.say(sign)

    def _set_pace(self) -> None:
        """All must ask at the same steps, but their clocks differ: hence by the mean of these."""
        step, now = self._state.step, time.perf_counter()
        (before, then), self._clock = self._clock, (step, now)
        mine = torch.tensor((now - then) / (step - before), device=self._fabric.device)
        seconds = sum_over_processes(mine).item() / self._fabric.world_size
        self._ask_every = min(max(int(ASK_S / seconds), 1), MOST_STEPS_APART)

    def _save(self, due: Due) -> str:
        """What went wrong, if something did and the run can end with it."""
        problem = self._saver.save(self._state, last=due.last)
        if problem and due.last and not (due.ends and checkpoints(self._folder)):
            raise UserError(problem)
        if not due.ends:  # then there is no time for gauges and pictures
            weights = weights_to_show(self._method, self._config)
            self._reporter.refresh(weights, self._state.step, due.last)
        return problem

    def _end(self, problem: str) -> AskedToEnd:
        self._fabric.barrier()  # Lightning kills all processes when one has ended before it
        said = f"asked to end: {problem or f'saved step {self._state.step}'}"
        # Of several processes only some may have had the signal.
        number = self._ending[0] if self._ending else signal.SIGTERM
        return AskedToEnd(f"{said}; the same command resumes from the last one", number)
