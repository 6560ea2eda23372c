"""Exceptions that end a command with a one-line message: user errors and stop requests."""

import signal


class UserError(Exception):
    """Invalid input; the message says what to do. Exit code 2."""


class LostPeerError(Exception):
    """Another process of the run has ended or does not respond. Exit code 1."""


class Interrupted(Exception):  # noqa: N818
    """Raised after a signal, once everything needed to resume has been saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C; otherwise 75 (EX_TEMPFAIL), which tells a scheduler to requeue."""
        return 128 + signal.SIGINT if self.number == signal.SIGINT else 75
