"""What ends a command with one line: mistakes that the user can mend, and requests to end."""

import signal


class UserError(Exception):
    """A mistake in what was asked for; the message says what to do. Exit code 2."""


class LostPeerError(Exception):
    """Another process of the run has ended, or does not answer. Exit code 1."""


class AskedToEnd(Exception):  # noqa: N818
    """A signal came, and all that is needed to go on later has been saved."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number

    @property
    def exit_code(self) -> int:
        """Ctrl-C as every program answers it; else EX_TEMPFAIL, by which a scheduler knows that the
        same job is to be run again."""
        return 128 + signal.SIGINT if self.number == signal.SIGINT else 75
