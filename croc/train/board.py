"""TensorBoard's file, written line by line.

torch's own writer has a thread, which ends for good, with a traceback, at the first disk that is
full for a moment.
"""

import contextlib
import errno
import io
import os
import socket
import time
from pathlib import Path
from typing import Any

import tensorboard.compat.proto.event_pb2 as events
import tensorboard.compat.proto.summary_pb2 as summaries
from tensorboard.summary.writer.record_writer import RecordWriter

MESSAGES: Any = events  # made when imported, so that no type checker knows them
SUMMARIES: Any = summaries


class Board:
    """Curves of one start of a run; what earlier starts wrote from `first_step` on is void."""

    def __init__(self, folder: Path, first_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        who = f"{socket.gethostname()}.{os.getpid()}"
        path = folder / f"events.out.tfevents.{time.time():.6f}.{who}"
        self._file = path.open("ab", buffering=0)
        start = MESSAGES.SessionLog(status=MESSAGES.SessionLog.START)
        self._write(MESSAGES.Event(step=first_step, file_version="brain.Event:2"))
        self._write(MESSAGES.Event(step=first_step, session_log=start))

    def write(self, step: int, values: dict[str, float]) -> None:
        """An OSError leaves the file as it was."""
        scalars = [
            SUMMARIES.Summary.Value(tag=name, simple_value=value) for name, value in values.items()
        ]
        self._write(MESSAGES.Event(step=step, summary=SUMMARIES.Summary(value=scalars)))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        end = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(record.getvalue()) < len(record.getvalue()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(end)  # half a record would end the reading of all later ones
            raise
