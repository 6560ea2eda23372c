"""One thread, in order; what is overtaken is dropped, and nothing ends the thread."""

import threading
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from croc.lab.app.recent import Recent
from croc.lab.app.refusal import Refusal
from croc.lab.app.worker import MOST_WAITING, Stale, Worker, thread_count


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.close()


def hold(worker: Worker) -> tuple[threading.Event, Future[Any]]:
    """A job that is in hand until the event is set."""
    started, gate = threading.Event(), threading.Event()
    held = worker.submit(None, lambda: (started.set(), gate.wait(10)))
    assert started.wait(10)
    return gate, held


def test_a_newer_request_of_the_lane_replaces_one_that_waits(worker: Worker) -> None:
    gate, _ = hold(worker)
    done: list[str] = []
    old = worker.submit("a", lambda: done.append("old"))
    other = worker.submit("b", lambda: done.append("other"))
    kept = [worker.submit(None, lambda: done.append("kept")) for _ in range(2)]
    new = worker.submit("a", lambda: done.append("new"))
    with pytest.raises(Stale):
        old.result(1)
    gate.set()
    for job in (other, *kept, new):
        job.result(5)
    assert done == ["other", "kept", "kept", "new"]


def test_what_is_in_hand_is_not_dropped(worker: Worker) -> None:
    started, gate = threading.Event(), threading.Event()
    first = worker.submit("a", lambda: (started.set(), gate.wait(10), "first")[-1])
    assert started.wait(10)
    second = worker.submit("a", lambda: "second")
    gate.set()
    assert (first.result(5), second.result(5)) == ("first", "second")


def test_a_failure_is_the_asker_s_alone(worker: Worker) -> None:
    with pytest.raises(ZeroDivisionError):
        worker.submit("a", lambda: 1 // 0).result(5)
    assert worker.submit("a", torch.is_inference_mode_enabled).result(5)


def test_too_many_are_refused(worker: Worker) -> None:
    gate, _ = hold(worker)
    for _ in range(MOST_WAITING):
        worker.submit(None, int)
    with pytest.raises(Refusal):
        worker.submit(None, int)
    gate.set()


def test_one_who_has_gone_is_not_waited_for(worker: Worker) -> None:
    gate, _ = hold(worker)
    gone = worker.submit("a", int)
    assert gone.cancel()
    new = worker.submit("a", lambda: "new")
    gate.set()
    assert new.result(5) == "new"


def test_closing_drops_what_waits() -> None:
    worker = Worker()
    gate, held = hold(worker)
    waiting = worker.submit(None, int)
    closing = threading.Thread(target=worker.close)
    closing.start()
    with pytest.raises(Stale):
        waiting.result(5)
    gate.set()
    closing.join(5)
    assert held.done()
    assert not closing.is_alive()


def test_a_core_is_left_to_others() -> None:
    assert 1 <= thread_count() <= 8


def test_the_last_few_are_held() -> None:
    held: Recent[str, int] = Recent(2)
    held.put("a", 1)
    held.put("b", 2)
    assert held.get("a") == 1
    held.put("c", 3)
    assert held.get("b") is None
    assert (held.get("a"), held.get("c"), len(held)) == (1, 3, 2)
