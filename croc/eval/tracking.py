"""How an evaluation tells its progress: `for item in track(items, "features", total)`."""

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar, runtime_checkable

Item = TypeVar("Item")


@runtime_checkable
class Track(Protocol):
    """Hands the items on, and shows how many of `total` are done and how long the rest takes."""

    def __call__(self, items: Iterable[Item], what: str, total: int) -> Iterator[Item]: ...


def silent(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """Shows nothing."""
    yield from items
