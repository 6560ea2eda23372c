"""Progress on screen: a bar with the time left on a terminal, a line a stage elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")


class Bars:
    """`Bars("linear on voc12").track` is a Track."""

    def __init__(self, title: str) -> None:
        self._title = title

    def track(self, items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
        text = f"{self._title}: {what}"
        return _bar(items, text, total) if sys.stderr.isatty() else _line(items, text, total)


def _bar(items: Iterable[Item], text: str, total: int) -> Iterator[Item]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(
        TextColumn("{task.description}"), *columns, console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task(text, total=total)
        for item in items:
            yield item
            progress.advance(task)


def _line(items: Iterable[Item], text: str, total: int) -> Iterator[Item]:
    """For logs: once when it ends, and every half minute what is left."""
    started = said = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - said > 30 and done < total:
            left = (now - started) / done * (total - done)
            print(f"{text} {done}/{total}, about {left:.0f} s left", file=sys.stderr, flush=True)
            said = now
    print(f"{text} done in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
