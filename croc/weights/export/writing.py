"""Files and folders that are whole or not there."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_files(files: dict[Path, bytes]) -> None:
    """All are written beside their places before the first is renamed."""
    partial = {path: partial_of(path) for path in files}
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        for path, content in files.items():
            partial[path].write_bytes(content)
            _sync(partial[path])
        for path in files:
            partial[path].replace(path)
    finally:
        for path in partial.values():
            path.unlink(missing_ok=True)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name once it is full; what a kill left there is replaced."""
    partial = partial_of(folder)
    if partial.is_dir() and not partial.is_symlink():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in partial.iterdir():
            _sync(path)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def partial_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial")


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
