"""Open files of records. Those on a disk are read here; `gigatile.stores.cache` has the others."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

Ranges = Sequence[tuple[int, int]]


class RecordFile(Protocol):
    """A file of records, open for reading. Several threads may read it.

    Attributes:
        path: of the file, for messages; it may represent an address in a store.
        in_store: whether it is in a store, where `fetch` saves time.
    """

    path: Path
    in_store: bool

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file; fewer if it ends before."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read bytes of the file into a buffer; return their number."""

    def fetch(self, ranges: Ranges) -> None:
        """Fetch ranges from a store, each from its begin up to its end, all at the same time.

        Reading them is fast afterwards. Nothing happens for a file on a disk.
        """

    def close(self) -> None:
        """Close it."""


class DiskFile:
    """A file on a disk; see `RecordFile`. The file position is neither used nor changed.

    Attributes:
        descriptor: of the open file; -1: closed.
    """

    in_store = False
    descriptor = -1

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            OSError: it cannot be opened.
        """
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return os.fstat(self.descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file; fewer if it ends before."""
        return os.pread(self.descriptor, size, offset)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read bytes of the file into a buffer; return their number."""
        return os.preadv(self.descriptor, (buffer,), offset)

    def fetch(self, ranges: Ranges) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> "DiskFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
