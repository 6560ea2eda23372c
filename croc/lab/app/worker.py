"""One thread that answers in order. What a newer request has overtaken is not computed at all."""

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from croc.lab.app.refusal import Refusal

MOST_WAITING = 64
MOST_THREADS = 8


class Stale(Exception):  # noqa: N818, a noun reads better where it is caught
    """A newer request of the same lane is waiting."""


@dataclass(frozen=True)
class _Job:
    lane: Hashable
    """Requests of one lane replace each other while they wait; None for one that must be done."""
    work: Callable[[], Any]
    answer: Future[Any]


class Worker:
    """torch's threads belong to it, so one request at a time has all of them."""

    def __init__(self) -> None:
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._run, name="croc explorer", daemon=True)
        self._thread.start()

    def submit(self, lane: Hashable, work: Callable[[], Any]) -> Future[Any]:
        job = _Job(lane, work, Future())
        with self._changed:
            overtaken = [old for old in self._jobs if lane is not None and old.lane == lane]
            for old in overtaken:
                self._jobs.remove(old)
            if len(self._jobs) >= MOST_WAITING:
                raise Refusal("Too many requests are waiting: try again in a moment.", 503)
            self._jobs.append(job)
            self._changed.notify()
        for old in overtaken:
            _end(old.answer, error=Stale())
        return job.answer

    def close(self) -> None:
        """Ends the thread after the job in hand; those that wait are dropped."""
        with self._changed:
            self._open = False
            waiting, self._jobs = list(self._jobs), deque()
            self._changed.notify()
        for job in waiting:
            _end(job.answer, error=Stale())
        self._thread.join(timeout=5)

    def _run(self) -> None:
        torch.set_num_threads(thread_count())
        with torch.inference_mode():
            while (job := self._next()) is not None:
                if job.answer.set_running_or_notify_cancel():
                    _do(job)

    def _next(self) -> _Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or not self._open)
            return self._jobs.popleft() if self._jobs else None


def thread_count() -> int:
    """One core is left to the browser and the server: where torch's threads have to wait for a
    core, each of its operations does, and an answer takes several times as long."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(MOST_THREADS, (cores or 1) - 1))


def _do(job: _Job) -> None:
    try:
        answer = job.work()
    except Exception as error:  # whoever asked is told; the thread lives on
        job.answer.set_exception(error)
    else:
        job.answer.set_result(answer)


def _end(answer: Future[Any], error: Exception) -> None:
    """Unless the one who asked has already gone."""
    if answer.set_running_or_notify_cancel():
        answer.set_exception(error)
