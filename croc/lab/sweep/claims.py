"""Who is at which run: any number of processes may carry out one sweep.

Each byte of a file without content stands for a run, and the process at it has locked the byte.
Such locks end with their process, however it ends, and workers that it starts do not inherit them.
The first bytes are for what only one process does at a time.
"""

import fcntl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from croc.errors import UserError
from croc.lab.sweep.run import say

FILE = "sweep.lock"
PAGE, UNTRAINED = "the page", "the untrained networks"
EXTRA = (PAGE, UNTRAINED)
LOOK_AGAIN_S = 1.0


class Claims:
    """Of one process. The system lets go of all of them when the file is closed."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._path, self._names = folder / FILE, list(names)
        self._file = self._path.open("ab")

    def __enter__(self) -> "Claims":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()

    def in_turn(self) -> Iterator[int]:
        """The place of every name, once: the first that no other process is at comes next.

        It is held until the next is asked for. When only those are left that others are at, they
        are waited for: they may be ended before they are done.
        """
        left, told = list(range(len(self._names))), False
        while left:
            place = next((each for each in left if self._lock(len(EXTRA) + each)), None)
            if place is None:
                if not told:
                    names = "; ".join(self._names[each] for each in left)
                    say(f"waiting for runs that other processes are at: {names}")
                told = True
                time.sleep(LOOK_AGAIN_S)
                continue
            left.remove(place)
            try:
                yield place
            finally:
                self._unlock(len(EXTRA) + place)

    @contextmanager
    def alone(self, extra: str) -> Iterator[None]:
        """One of EXTRA, which others wait for."""
        byte = EXTRA.index(extra)
        if not self._lock(byte):
            say(f"waiting for another process, which is at {extra}")
            while not self._lock(byte):
                time.sleep(LOOK_AGAIN_S)
        try:
            yield
        finally:
            self._unlock(byte)

    def _lock(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):  # POSIX allows either for a lock that is held
            return False
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be locked ({error.strerror}): choose a --sweep.to on "
                "another file system"
            ) from None
        return True

    def _unlock(self, byte: int) -> None:
        if not self._file.closed:  # a generator that was left may end after all else
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, byte)
