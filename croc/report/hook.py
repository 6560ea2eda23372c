"""What training does for its report: pictures and page at checkpoints, cheap and never fatal."""

import time
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from croc.config import CrocConfig, PretrainConfig
from croc.data import ImageSource
from croc.methods import Method
from croc.report import FILE
from croc.sharding import whole

Weights = dict[str, Tensor]

SHARE = 0.02
"""Of the run's time that drawing may take; a checkpoint for which it would be more is passed over,
the last one never."""


class Reporter:
    """`writes` on the first process only; elsewhere, and without run.report, it does nothing."""

    def __init__(
        self,
        config: PretrainConfig,
        source: ImageSource,
        folder: Path,
        *,
        writes: bool,
        say: Callable[[str], None],
    ) -> None:
        self._active = writes and config.run.report
        self._config, self._source, self._folder, self._say = config, source, folder, say
        self._pictures = None
        self._failed = False
        self._began = time.perf_counter()
        self._spent = 0.0

    def start(self, weights: Weights, step: int) -> None:
        """The untrained teacher is the first picture; what a kill undid is forgotten."""
        if self._active:
            self._guarded(lambda: self._draw_first(weights, step))

    def refresh(self, weights: Weights, step: int, last: bool) -> None:
        """After a checkpoint."""
        passed = time.perf_counter() - self._began
        if self._active and (last or self._spent <= SHARE * passed):
            self._guarded(lambda: self._draw_and_write(weights, step))

    def _draw_first(self, weights: Weights, step: int) -> None:
        if not isinstance(self._config, CrocConfig):
            return
        from croc.report.drawing import ClusterPictures

        self._pictures = ClusterPictures(self._config, self._source, self._folder)
        self._pictures.forget_after(step)
        if step == 0:
            self._draw(weights, step)

    def _draw_and_write(self, weights: Weights, step: int) -> None:
        from croc.report.build import write_report

        try:
            self._draw(weights, step)
        finally:  # a page without pictures is better than none
            write_report([self._folder], self._folder / FILE)

    def _draw(self, weights: Weights, step: int) -> None:
        if self._pictures is not None:
            self._pictures.draw(weights, step)

    def _guarded(self, work: Callable[[], None]) -> None:
        """A picture that cannot be drawn is no reason to lose a run; it is said once."""
        began = time.perf_counter()
        try:
            work()
        except Exception as error:
            if not self._failed:
                self._say(f"the report cannot be drawn ({_first_line(error)}); the run goes on")
            self._failed = True
        self._spent += time.perf_counter() - began


def weights_to_show(method: Method, config: PretrainConfig) -> Weights:
    """Of the teacher's backbone, whole: every process must ask for them at the same time."""
    teacher = method.modules.get("teacher") if config.run.report else None
    return whole(teacher.get_submodule("backbone").state_dict()) if teacher else {}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
