"""The report during training: pictures and page after each checkpoint, in a small share of time."""

import time
from pathlib import Path

from torch import Tensor

from croc.config import CrocConfig, PretrainConfig
from croc.data import ImageSource
from croc.lab.report import FILE

SHARE = 0.02
"""Of the run's time that drawing may take; a checkpoint that would exceed it is left out, except
the last."""


class ReportHook:
    """`pretrain`'s on_save: draws the clusters (of CrOC) and writes report.html."""

    def __init__(
        self, config: PretrainConfig, source: ImageSource, folder: Path, first_step: int
    ) -> None:
        self._folder, self._first_step = folder, first_step
        self._started, self._spent, self._pictures = time.perf_counter(), 0.0, None
        if isinstance(config, CrocConfig):
            from croc.lab.report.drawing import ClusterPictures

            self._pictures = ClusterPictures(config, source, folder)
            self._pictures.forget_after(first_step)

    def __call__(self, weights: dict[str, Tensor], step: int, last: bool) -> None:
        """At the start of a run only the untrained teacher is drawn."""
        now = time.perf_counter()
        starts = step == self._first_step
        if (starts and step > 0) or not (last or self._spent <= SHARE * (now - self._started)):
            return
        try:
            if self._pictures:
                self._pictures.draw(weights, step)
        finally:  # a page without pictures is better than none
            if not starts:
                from croc.lab.report.build import write_report

                write_report([self._folder], self._folder / FILE)
            self._spent += time.perf_counter() - now
