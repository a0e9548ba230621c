"""Read the bytes of a file that may be a gzip, once from start to end."""

import os
import stat
import zlib
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from gigatile.errors import UserError
from gigatile.stores.addresses import is_remote
from gigatile.stores.errors import StoreError

if TYPE_CHECKING:
    from gigatile.stores.stream import RemoteStream

GZIP = b"\x1f\x8b"
# Compressed bytes that are read at a time, and uncompressed bytes that are skipped at a time.
CHUNK_BYTES = 1 << 18
# Largest compression ratio of gzip: https://zlib.net/zlib_tech.html
MAX_RATIO = 1032
# `wbits` of zlib for gzip: https://zlib.net/manual.html
_GZIP_WBITS = 31


class VolumeError(Exception):
    """A volume cannot be used; the message is the reason in the case's state."""


class ByteStream:
    """The uncompressed bytes of a file. Its content decides whether it is a gzip, not its name.

    Raises:
        VolumeError: the file is missing, cannot be read, or is empty.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Its size in bytes; None: unknown, as of a pipe.
        self._size: int | None = None
        self._handle = self._open()
        start = self._read_file(2)
        if not start:
            self._handle.close()
            raise VolumeError("the file is empty (0 bytes)")
        self._gzip = zlib.decompressobj(_GZIP_WBITS) if start == GZIP else None
        self._buffer = start  # bytes that were read from the file but not returned
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
        """Return up to `size` bytes, fewer at the end of the file."""
        data = bytearray()
        while len(data) < size and (chunk := self._read_chunk(size - len(data))):
            data += chunk
        return bytes(data)

    def read(self, size: int, expected: int) -> bytearray:
        """Return the next `size` bytes.

        Args:
            size: in bytes.
            expected: size of the whole file according to its header, for the message.

        Raises:
            VolumeError: the file is truncated or damaged.
        """
        data = bytearray(size)
        filled = 0
        while filled < size:
            chunk = self._read_chunk(size - filled)
            if not chunk:
                raise _truncated(expected, f"it has {self._position:,}")
            data[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        return data

    def skip(self, size: int, expected: int) -> None:
        """Skip the next `size` bytes with little memory; `expected` as in `read`."""
        while size:
            size -= len(self.read(min(size, CHUNK_BYTES), expected))

    def check_size(self, expected: int) -> None:
        """Refuse a file that is too short for `expected` bytes, without reading it.

        Raises:
            VolumeError: it is too short, even at the largest compression ratio of gzip.
        """
        size = self._size
        if size is None:
            return
        if self._gzip is None and size < expected:
            raise _truncated(expected, f"it has {size:,}")
        if self._gzip is not None and size * MAX_RATIO < expected:
            limit = f"its gzip of {size:,} can contain at most {size * MAX_RATIO:,}"
            raise _truncated(expected, limit)

    def drain(self) -> None:
        """Read a gzip to its end, which verifies its checksum; trailing bytes are ignored."""
        if self._gzip is not None:
            while self._read_chunk(CHUNK_BYTES):
                pass

    def _read_chunk(self, limit: int) -> bytes:
        """Return up to `limit` of the next bytes; none at the end."""
        data = self._read_plain(limit) if self._gzip is None else self._inflate(limit)
        self._position += len(data)
        return data

    def _read_plain(self, limit: int) -> bytes:
        if not self._buffer:
            return self._read_file(min(limit, CHUNK_BYTES))
        data, self._buffer = self._buffer[:limit], self._buffer[limit:]
        return data

    def _inflate(self, limit: int) -> bytes:
        assert self._gzip is not None
        while True:
            if self._gzip.eof:
                # A file may consist of several gzips; other bytes after the last are ignored.
                self._buffer = self._gzip.unused_data
                if len(self._buffer) < 2:
                    self._buffer += self._read_file(CHUNK_BYTES)
                if self._buffer[:2] != GZIP:
                    return b""
                self._gzip = zlib.decompressobj(_GZIP_WBITS)
            if not self._buffer:
                self._buffer = self._read_file(CHUNK_BYTES)
                if not self._buffer:
                    raise VolumeError(
                        f"its gzip is truncated after {self._position:,} bytes of data"
                    )
            try:
                data = self._gzip.decompress(self._buffer, limit)
            except zlib.error as error:
                fault = str(error).split(":")[-1].strip()
                raise VolumeError(
                    f"its gzip is damaged after {self._position:,} bytes of data ({fault})"
                ) from None
            self._buffer = self._gzip.unconsumed_tail
            if data:
                return data

    def _open(self) -> "BinaryIO | RemoteStream":
        if is_remote(self._path):
            # Starts a library that takes a while to import.
            from gigatile.stores.stream import RemoteStream

            try:
                stream = RemoteStream(self._path)
            except StoreError as error:
                raise _of_store(error) from None
            self._size = stream.size
            return stream
        if self._path.is_dir():
            raise VolumeError("it is a folder, not a file")
        try:
            handle = self._path.open("rb")
        except FileNotFoundError:
            raise VolumeError("the file does not exist") from None
        except OSError as error:
            raise VolumeError(f"it cannot be opened: {error.strerror or error}") from None
        status = os.fstat(handle.fileno())
        self._size = status.st_size if stat.S_ISREG(status.st_mode) else None
        return handle

    def _read_file(self, size: int) -> bytes:
        try:
            return self._handle.read(size)
        except StoreError as error:
            raise _of_store(error) from None
        except OSError as error:
            raise VolumeError(f"it cannot be read: {error.strerror or error}") from None


def _of_store(error: StoreError) -> VolumeError | UserError:
    """Return the error of a file in a store.

    If the file is not the reason, the job fails and can be tried again.
    """
    if error.is_of_file:
        return VolumeError(f"it cannot be read from its store: {error.strerror}")
    return UserError(str(error))


def _truncated(expected: int, actual: str) -> VolumeError:
    return VolumeError(f"it is truncated: its header implies {expected:,} bytes, {actual}")
