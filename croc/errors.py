"""What the user can mend: the command line prints such an error as one line and exits with 2."""


class UserError(Exception):
    """A mistake in what was asked for; the message says what to do."""
