"""The bytes of a file that may be a gzip, read once from begin to end."""

import os
import stat
import zlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

GZIP = b"\x1f\x8b"
# Compressed bytes that are read at a time, and plain ones that are thrown away at a time.
CHUNK_BYTES = 1 << 18
# Largest compression ratio of gzip: https://zlib.net/zlib_tech.html
TIGHTEST = 1032
# zlib's number for "with a gzip's header and checksum": https://zlib.net/manual.html
_WITH_GZIP_HEADER = 31


class VolumeError(Exception):
    """A volume cannot be used; the message is the reason that the case's state records."""


class ByteStream:
    """A file's plain bytes, whether it is a gzip or not; its name does not matter.

    Raises:
        VolumeError: the file is missing, cannot be read, or is empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = self._open()
        start = self._read_file(2)
        if not start:
            self._handle.close()
            raise VolumeError("the file is empty (0 bytes)")
        self._gzip = zlib.decompressobj(_WITH_GZIP_HEADER) if start == GZIP else None
        self._waiting = start  # read of the file and not given out
        self._position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handle.close()

    def peek(self, size: int) -> bytes:
        """Return up to `size` bytes, fewer where the file ends."""
        found = bytearray()
        while len(found) < size and (some := self._some(size - len(found))):
            found += some
        return bytes(found)

    def read(self, size: int, promised: int) -> bytearray:
        """Return the next `size` bytes of a file that should have `promised` in all."""
        found = bytearray(size)
        filled = 0
        while filled < size:
            some = self._some(size - filled)
            if not some:
                raise VolumeError(
                    f"it is cut short: its header promises {promised:,} bytes, it holds "
                    f"{self._position:,}"
                )
            found[filled : filled + len(some)] = some
            filled += len(some)
        return found

    def skip(self, size: int, promised: int) -> None:
        """Skip the next `size` bytes without keeping them in memory; `promised` as in `read`."""
        while size:
            size -= len(self.read(min(size, CHUNK_BYTES), promised))

    def check_size(self, promised: int) -> None:
        """Refuse a file that cannot hold the bytes that its header promises, before any is read.

        Raises:
            VolumeError: it is too short, even at the largest compression ratio of gzip.
        """
        size = os.fstat(self._handle.fileno())
        if not stat.S_ISREG(size.st_mode):
            return
        if self._gzip is None and size.st_size < promised:
            raise VolumeError(
                f"it is cut short: its header promises {promised:,} bytes, it holds "
                f"{size.st_size:,}"
            )
        if self._gzip is not None and size.st_size * TIGHTEST < promised:
            raise VolumeError(
                f"it is cut short: its header promises {promised:,} bytes, its gzip of "
                f"{size.st_size:,} can hold {size.st_size * TIGHTEST:,} at most"
            )

    def drain(self) -> None:
        """Read a gzip to its end, where its checksum stands; what comes after it is left alone."""
        if self._gzip is not None:
            while self._some(CHUNK_BYTES):
                pass

    def _some(self, most: int) -> bytes:
        """Return the next bytes, `most` at most; none at the end."""
        found = self._plain(most) if self._gzip is None else self._inflated(most)
        self._position += len(found)
        return found

    def _plain(self, most: int) -> bytes:
        if not self._waiting:
            return self._read_file(min(most, CHUNK_BYTES))
        found, self._waiting = self._waiting[:most], self._waiting[most:]
        return found

    def _inflated(self, most: int) -> bytes:
        assert self._gzip is not None
        while True:
            if self._gzip.eof:
                # Several gzips may follow each other; anything else after the last is no data.
                self._waiting = self._gzip.unused_data
                if len(self._waiting) < 2:
                    self._waiting += self._read_file(CHUNK_BYTES)
                if self._waiting[:2] != GZIP:
                    return b""
                self._gzip = zlib.decompressobj(_WITH_GZIP_HEADER)
            if not self._waiting:
                self._waiting = self._read_file(CHUNK_BYTES)
                if not self._waiting:
                    raise VolumeError(
                        f"its gzip is cut short: it ends after {self._position:,} bytes of data"
                    )
            try:
                found = self._gzip.decompress(self._waiting, most)
            except zlib.error as error:
                what = str(error).split(":")[-1].strip()
                raise VolumeError(
                    f"its gzip is damaged after {self._position:,} bytes of data ({what})"
                ) from None
            self._waiting = self._gzip.unconsumed_tail
            if found:
                return found

    def _open(self) -> BinaryIO:
        if self._path.is_dir():
            raise VolumeError("it is a folder, not a file")
        try:
            return self._path.open("rb")
        except FileNotFoundError:
            raise VolumeError("the file does not exist") from None
        except OSError as error:
            raise VolumeError(f"it cannot be opened: {error.strerror or error}") from None

    def _read_file(self, size: int) -> bytes:
        try:
            return self._handle.read(size)
        except OSError as error:
            raise VolumeError(f"it cannot be read: {error.strerror or error}") from None
