"""What the page is told when a request cannot be answered."""


class Refusal(Exception):  # noqa: N818, a noun reads better where it is caught
    """A short message for the page, and the HTTP status that goes with it."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.status = message, status
