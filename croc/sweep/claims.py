"""Who is at which run: any number of processes may carry out one sweep.

Each byte of a file without content stands for a run, and the process at it has locked the byte.
Such locks end with their process, however it ends, and workers that it starts do not inherit them.
"""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from croc.errors import UserError
from croc.sweep.run import say

FILE = "sweep.lock"


class Claims:
    """Of one process. The system lets go of all of them when the file is closed."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._path, self._names = folder / FILE, list(names)
        self._file = self._path.open("ab")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()

    def in_turn(self) -> Iterator[int]:
        """The place of every name, once: the first that no other process is at comes next.

        It is held until the next is asked for. When only those are left that others are at, they
        are waited for: they may be ended before they are done.
        """
        left = list(range(len(self._names)))
        while left:
            place = next((each for each in left if self._lock(each, wait=False)), None)
            if place is None:
                place = left[0]
                say(f"waiting for another process, which is at {self._names[place]}")
                self._lock(place, wait=True)
            left.remove(place)
            try:
                yield place
            finally:
                self._unlock(place)

    @contextmanager
    def alone(self, extra: int) -> Iterator[None]:
        """What only one process does at a time, and others wait for."""
        place = len(self._names) + extra
        self._lock(place, wait=True)
        try:
            yield
        finally:
            self._unlock(place)

    def _lock(self, place: int, wait: bool) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, place)
        except (BlockingIOError, PermissionError):  # POSIX allows either for a lock that is held
            return False
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be locked ({error.strerror}): choose a --sweep.to on "
                "another file system"
            ) from None
        return True

    def _unlock(self, place: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)
