"""A file in a store, read from front to back."""

from pathlib import Path

from gigatile.stores.remote_file import open_remote

# The first request, and the largest one: a header is often all that is read.
FIRST_BYTES, LARGEST_BYTES = 256 << 10, 16 << 20


class RemoteStream:
    """Reads a file in a store from front to back. It is no `io.RawIOBase`: it cannot seek.

    Attributes:
        size: of the file in bytes.
    """

    def __init__(self, path: Path) -> None:
        """Open it; nothing is read yet.

        Args:
            path: represents the address.

        Raises:
            StoreError: there is no such file, or it cannot be read.
        """
        self._remote = open_remote(path)
        self.size = self._remote.size
        self._buffer, self._next, self._request = memoryview(b""), 0, FIRST_BYTES

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; none at the end.

        Raises:
            StoreError: they cannot be read, or the file has another version now.
        """
        if not self._buffer:
            end = min(self.size, self._next + max(size, self._request))
            self._buffer = memoryview(self._remote.read(self._next, end))
            self._next, self._request = end, min(4 * self._request, LARGEST_BYTES)
        data, self._buffer = bytes(self._buffer[:size]), self._buffer[size:]
        return data

    def close(self) -> None:
        """Forget what was read."""
        self._buffer, self._next = memoryview(b""), self.size
