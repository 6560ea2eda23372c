"""A million file names in two arrays: light in memory and never copied by forked workers."""

from collections.abc import Iterable

import numpy as np


class PackedNames:
    """Byte strings laid end to end; as separate objects they would take four times the room,
    and each forked worker's counting of references would copy them."""

    def __init__(self, names: Iterable[bytes]) -> None:
        listed = list(names)
        self._bytes = np.frombuffer(b"".join(listed), np.uint8)
        lengths = np.fromiter((len(name) for name in listed), np.int64, len(listed))
        self._ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes:
        return self._bytes[self._ends[index] : self._ends[index + 1]].tobytes()


def printable(name: bytes) -> str:
    """For people and logs, on one line: new lines, other signs that do not print and bytes that
    are not UTF-8 are escaped. No two names become one, so backslashes are doubled."""
    text = name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in text)


def _escaped(sign: str) -> str:
    if sign.isascii():
        return sign.encode("unicode_escape").decode()
    return "".join(f"\\x{byte:02x}" for byte in sign.encode())
