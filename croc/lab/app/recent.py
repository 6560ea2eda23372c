"""The few things that were used last."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """At most `most` values; the one that was not asked for the longest goes first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Key) -> Value | None:
        if key in self._held:
            self._held.move_to_end(key)
        return self._held.get(key)

    def put(self, key: Key, value: Value) -> Value:
        self._held[key] = value
        self._held.move_to_end(key)
        while len(self._held) > self.most:
            self._held.popitem(last=False)
        return value
