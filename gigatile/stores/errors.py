"""Why a file in a store cannot be read."""

import errno


class StoreError(OSError):
    """A file in a store cannot be read; `strerror` is the reason and `filename` the address.

    `errno` is ENOENT for a missing file, ESTALE for one that was changed, EACCES if access is
    denied, and EIO if the store does not answer.
    """

    def __init__(self, code: int, reason: str, address: str) -> None:
        super().__init__(code, reason, address)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"

    @property
    def is_of_file(self) -> bool:
        """Whether the reason is the file, not the store, the credentials or the moment."""
        return self.errno == errno.ENOENT
