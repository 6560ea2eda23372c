"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Where to write what is to become `path`: beside it, renamed at the end, gone after an error.

    `shared` is for a path that several processes may write at the same time.
    """
    process = f".{os.getpid()}" if shared else ""
    partial = path.with_name(f"{path.name}{process}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
