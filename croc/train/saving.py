"""Checkpoints on disks that fill up, refuse or vanish: said, tried again, and nothing spoiled."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric

from croc.config import RunConfig
from croc.method.distributed import any_process, union_over_processes
from croc.train.checkpoint import TrainState, checkpoints, drop_oldest, save_checkpoint
from croc.train.run_folder import PAGE

LAST_TRIES, PAUSE_S, LAST_S = 5, 4.0, 16.0
"""At the end of a run: within the half minute that a scheduler leaves, however long one takes."""


class Saver:
    """The first process writes; all of them know whether it could."""

    def __init__(
        self, fabric: Fabric, folder: Path, run: RunConfig, say: Callable[[str], None]
    ) -> None:
        self._fabric, self._folder, self._run, self._say = fabric, folder, run, say
        self.owes = False
        """Whether the last try failed, so that the next logged step is to try again."""

    def save(self, state: TrainState, *, last: bool) -> str:
        """What went wrong, if something did: said while the run goes on, which tries again later;
        at its end there is no later, and all tries are made at once."""
        problem, content, end = "", state.state_dict(), time.monotonic() + LAST_S
        for attempt in range(LAST_TRIES if last else 1):
            if attempt and not any_process(time.monotonic() < end, self._fabric.device):
                break
            time.sleep(PAUSE_S if attempt else 0)
            problem = self._try(content)
            self._tell(state.step, problem, last)
            self.owes = bool(problem)
            if not problem:
                break
        return problem and f"the checkpoint of step {state.step} cannot be written: {problem}"

    def _try(self, content: dict[str, Any]) -> str:
        """What went wrong, if something did, on every process alike."""
        problem = ""
        if self._fabric.is_global_zero:
            try:
                self._write(content)
            except Exception as error:  # whatever it is, the others wait to hear of it
                problem = str(error).strip().partition("\n")[0] or type(error).__name__
        return next(filter(None, union_over_processes([problem])), "")

    def _write(self, content: dict[str, Any]) -> None:
        if not (self._folder / PAGE).exists():
            raise OSError(f"{self._folder} has vanished")  # not to be made anew elsewhere
        keep_every = self._run.keep_every_steps
        try:
            save_checkpoint(self._folder, content, keep_every)
        except (OSError, RuntimeError):
            if not (_is_full(self._folder) and drop_oldest(self._folder, keep_every)):
                raise
            save_checkpoint(self._folder, content, keep_every)

    def _tell(self, step: int, problem: str, last: bool) -> None:
        if problem and not self.owes:
            then = "it is tried again" if last else "training continues and tries again"
            self._say(
                f"the checkpoint of step {step} cannot be written ({problem}); {then}, "
                f"{self._left()}"
            )
        elif self.owes and not problem:
            self._say(f"checkpoints can be written again: saved step {step}")

    def _left(self) -> str:
        try:
            found = checkpoints(self._folder)
        except OSError:
            return "the last good one cannot be seen"
        return f"the last good one is {found[-1].name}" if found else "there is none yet"


def _is_full(folder: Path) -> bool:
    """Whether another checkpoint like the last would not fit."""
    found = checkpoints(folder)
    return bool(found) and shutil.disk_usage(folder).free < 1.1 * found[-1].stat().st_size
