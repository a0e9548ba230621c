"""A local file with the size of a file in a store, of which only the parts that are read are there.

Libraries that open a file by its name, such as OpenSlide, read it in place of the original, if the
parts that they need were fetched. The others are holes, which read as zeros.
"""

import bisect
import io
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from gigatile.stores.remote_file import RemoteFile

# Begin and end of each, in bytes.
Ranges = Sequence[tuple[int, int]]
# `PartialReader` fetches multiples of this.
BLOCK_BYTES = 16 << 10


class PartialCopy:
    """A partial copy of a file; threads may share it.

    Attributes:
        path: the local file.
        remote: the original.
    """

    def __init__(self, remote: RemoteFile, folder: Path) -> None:
        """Create the file, all of it a hole.

        Args:
            remote: the original.
            folder: on a local disk.

        Raises:
            OSError: the file cannot be written.
        """
        self.path = folder / remote.address.rpartition("/")[2]
        self.remote = remote
        # Guards what follows; notified at the end of each request.
        self._changed = threading.Condition()
        # The extents that are there: begins and ends, in order, without common or adjacent bytes.
        self._begins: list[int] = []
        self._ends: list[int] = []
        # The extents that some thread is fetching.
        self._requested: set[tuple[int, int]] = set()
        # The number of requests that failed, and the error of the last one.
        self._failures, self._failure = 0, OSError()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.truncate(self._file, remote.size)

    @property
    def fetched(self) -> int:
        """The number of bytes that are there."""
        with self._changed:
            return sum(self._ends) - sum(self._begins)

    @property
    def extents(self) -> list[tuple[int, int]]:
        """Begin and end of each part that is there, in order."""
        with self._changed:
            return list(zip(self._begins, self._ends, strict=True))

    def has(self, begin: int, end: int) -> bool:
        """Return whether all bytes of a range are there; what is beyond the file is left out."""
        with self._changed:
            return not self._missing([(begin, end)])

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read bytes into a buffer, zeros for those that are not there; return their number."""
        return os.preadv(self._file, [buffer], offset)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch the parts of ranges that are not there; what is beyond the file is left out.

        Parts that another thread is fetching are awaited, not fetched twice.

        Args:
            ranges: begin and end of each.

        Raises:
            StoreError: they cannot be read.
            OSError: the local file cannot be written.
        """
        while True:
            with self._changed:
                missing = self._missing(ranges)
                own = [part for each in missing for part in self._not_requested(each)]
                if not own:
                    if not missing:
                        return
                    # If the other thread fails, so does this one: each would try for two minutes,
                    # one after the other.
                    failures = self._failures
                    self._changed.wait()
                    if self._failures > failures:
                        raise self._failure
                    continue
                self._requested.update(own)
            fetched: list[tuple[int, int]] = []
            try:
                parts = self.remote.read_ranges(own)
                for (begin, end), data in zip(own, parts, strict=True):
                    self._write(data, begin)
                    fetched.append((begin, end))
            except OSError as error:
                with self._changed:
                    self._failures, self._failure = self._failures + 1, error
                raise
            finally:
                with self._changed:
                    self._requested.difference_update(own)
                    for begin, end in fetched:
                        self._add(begin, end)
                    self._changed.notify_all()

    def close(self) -> None:
        """Delete the local file."""
        os.close(self._file)
        self.path.unlink(missing_ok=True)

    def _write(self, data: bytes, begin: int) -> None:
        """Write all of `data`: a full disk may take a part of it without an error."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, begin)
            view, begin = view[written:], begin + written

    def _missing(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the parts of ranges that are not there, in order, without overlaps."""
        size, missing = self.remote.size, []
        last = 0
        for begin, end in sorted(ranges):
            if begin >= end:
                continue
            begin, end = max(last, begin), min(size, end)
            index = bisect.bisect_right(self._ends, begin)
            while begin < end:
                # The next extent that ends after `begin`.
                there = index < len(self._begins)
                gap_end = min(end, self._begins[index]) if there else end
                if begin < gap_end:
                    missing.append((begin, gap_end))
                begin = self._ends[index] if there else end
                index += 1
            last = max(last, end)
        return missing

    def _not_requested(self, extent: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the parts of an extent that no thread is fetching, in order."""
        begin, end = extent
        parts = []
        for first, last in sorted(self._requested):
            if last <= begin or first >= end:
                continue
            if begin < first:
                parts.append((begin, first))
            begin = max(begin, last)
        return [*parts, (begin, end)] if begin < end else parts

    def _add(self, begin: int, end: int) -> None:
        """Add an extent, joined with those that it touches."""
        first = bisect.bisect_left(self._ends, begin)
        last = bisect.bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]


class PartialReader(io.RawIOBase):
    """Reads a partial copy like a file; each part is fetched before it is read."""

    def __init__(self, copy: PartialCopy) -> None:
        super().__init__()
        self._copy = copy
        self._position = 0
        self._file = os.open(copy.path, os.O_RDONLY)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, as of a file."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._copy.remote.size}
        self._position = max(0, start[whence] + offset)
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read into a buffer; return the number of bytes."""
        begin = self._position
        end = begin + len(buffer)
        blocks = begin // BLOCK_BYTES * BLOCK_BYTES, -(-end // BLOCK_BYTES) * BLOCK_BYTES
        self._copy.fetch([blocks])
        count = os.preadv(self._file, [buffer], begin)
        self._position += count
        return count

    def close(self) -> None:
        """Close it; the copy stays."""
        if not self.closed:
            os.close(self._file)
        super().close()
