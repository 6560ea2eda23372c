"""What training does for its report at checkpoints: gauges, pictures and page, cheap and never
fatal."""

import time
from collections.abc import Callable
from pathlib import Path

from lightning.fabric import Fabric
from torch import Tensor

from croc.config import CrocConfig, PretrainConfig
from croc.data import ImageSource
from croc.lab.report import FILE
from croc.method.build import Method
from croc.method.sharding import whole
from croc.train.gauges import Gauges
from croc.train.log import RunLog, read_gauges

Weights = dict[str, Tensor]

SHARE = 0.02
"""Of the run's time that drawing may take; a checkpoint for which it would be more is passed over,
the last one never."""


class Reporter:
    """Works on the first process only; elsewhere, and without run.report, it does nothing."""

    def __init__(
        self,
        fabric: Fabric,
        config: PretrainConfig,
        source: ImageSource,
        folder: Path,
        log: RunLog,
    ) -> None:
        self._active = fabric.is_global_zero and config.run.report
        self._fabric, self._config, self._source = fabric, config, source
        self._folder, self._log = folder, log
        self._gauges: Gauges | None = None
        self._pictures = None
        self._failed: set[str] = set()
        self._began = time.perf_counter()
        self._spent = 0.0
        """On pictures and page."""

    def start(self, weights: Weights, step: int) -> None:
        """The untrained teacher is the first picture; what a kill undid is forgotten. A checkpoint
        that has no gauges yet, such as one saved on a signal, gets them here."""
        if self._active:
            self._measure(weights, step)
            self._drawing(lambda: self._draw_first(weights, step))

    def refresh(self, weights: Weights, step: int, last: bool) -> None:
        """After a checkpoint. Gauges are measured at every one, so that runs can be compared."""
        if not self._active:
            return
        self._measure(weights, step)
        passed = time.perf_counter() - self._began
        if last or self._spent <= SHARE * passed:
            self._drawing(lambda: self._draw_and_write(weights, step))

    def _measure(self, weights: Weights, step: int) -> None:
        def work() -> None:
            if any(line["step"] == step for line in read_gauges(self._folder)):
                return
            if self._gauges is None:
                self._gauges = Gauges(self._fabric, self._config, self._source)
            self._log.write_gauges(step, self._gauges.measure(weights))

        self._guarded(work, "the gauges cannot be measured")

    def _draw_first(self, weights: Weights, step: int) -> None:
        if not isinstance(self._config, CrocConfig):
            return
        from croc.lab.report.drawing import ClusterPictures

        self._pictures = ClusterPictures(self._config, self._source, self._folder)
        self._pictures.forget_after(step)
        if step == 0:
            self._draw(weights, step)

    def _draw_and_write(self, weights: Weights, step: int) -> None:
        from croc.lab.report.build import write_report

        try:
            self._draw(weights, step)
        finally:  # a page without pictures is better than none
            write_report([self._folder], self._folder / FILE)

    def _draw(self, weights: Weights, step: int) -> None:
        if self._pictures is not None:
            self._pictures.draw(weights, step)

    def _drawing(self, work: Callable[[], None]) -> None:
        began = time.perf_counter()
        self._guarded(work, "the report cannot be drawn")
        self._spent += time.perf_counter() - began

    def _guarded(self, work: Callable[[], None], failure: str) -> None:
        """Neither a gauge nor a picture is a reason to lose a run; a failure is reported once."""
        try:
            work()
        except Exception as error:
            if failure not in self._failed:
                self._log.say(f"{failure} ({_first_line(error)}); the run continues")
            self._failed.add(failure)


def weights_to_show(method: Method, config: PretrainConfig) -> Weights:
    """Of the teacher's backbone (the student's where there is no teacher), whole: every process
    must ask for them at the same time."""
    if not config.run.report:
        return {}
    network = method.modules.get("teacher", method.student)
    return whole(network.get_submodule("backbone").state_dict())


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
