"""Errors that a client receives."""


class RequestError(Exception):
    """A request that cannot be answered: its HTTP status, and a message for the client."""

    def __init__(self, status: int, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
