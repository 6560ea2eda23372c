"""Signals, which a loop checks in a list; and the number and the exit of a process.

Signal handlers raise nothing: an exception could occur at any line, and is lost in a finalizer.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""SLURM sends SIGUSR1 before the time limit if configured to (--signal)."""


@contextlib.contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Yield a list that receives the first signal; a second one acts as it would without this."""
    received: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, _: object) -> None:
        received.append(number)
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    if threading.current_thread() is threading.main_thread():  # only it may set handlers
        before |= {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield received
    finally:
        restore()


def process_number() -> str:
    """By the launcher's environment variables, without torch or a process group."""
    if "RANK" in os.environ:  # torchrun
        return os.environ["RANK"]
    if "SLURM_PROCID" in os.environ and "LOCAL_RANK" not in os.environ:  # srun
        return os.environ["SLURM_PROCID"]
    # Lightning's own launcher, perhaps in an interactive SLURM shell.
    node, local = (os.environ.get(name, "0") for name in ("NODE_RANK", "LOCAL_RANK"))
    return local if node == "0" else f"{node}.{local}"


def is_first_process() -> bool:
    return process_number() == "0"


def exit_process(code: int) -> NoReturn:
    """If there are several processes, skip the interpreter's shutdown, which gloo's threads can
    abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    if int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", 1))) > 1:
        os._exit(code)
    sys.exit(code)
