"""Write files to an object store."""

import errno
import hashlib
from pathlib import Path
from typing import Any

import obstore

from gigatile.errors import UserError
from gigatile.stores.addresses import address_of
from gigatile.stores.errors import StoreError
from gigatile.stores.remote_file import RemoteFile, store_of, try_again, version_now

# Larger files are written in parts of this size, several side by side.
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4


def upload(path: Path, content: Any) -> str:
    """Write a file, unless the store has it already; return its version.

    A file appears whole or not at all. A broken connection is tried again.

    Args:
        path: represents the address.
        content: a buffer.

    Raises:
        UserError: the store does not answer or denies access, or there is no such bucket.
    """
    address, data = address_of(path), memoryview(content)
    store, key = store_of(address)

    def write() -> Any:
        return obstore.put(store, key, data, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)

    try:
        remote = _same(address, data)
        if remote is None:
            try_again(address, write)
            remote = version_now(address)
    except StoreError as error:
        raise UserError(str(error)) from None
    if remote.size != data.nbytes:
        raise UserError(f"{address}: {remote.size} of {data.nbytes} bytes are there after writing")
    return remote.version


def _same(address: str, data: memoryview) -> RemoteFile | None:
    """Return the file in the store if it has this content; None: it must be written.

    It must not be written again then: its version would change, which other runs may have recorded.
    """
    try:
        remote = version_now(address)
    except StoreError as error:
        # Without the permission to list, S3 denies access to a file that is missing.
        if error.is_of_file or error.errno == errno.EACCES:
            return None
        raise
    if remote.size != data.nbytes:
        return None
    # With encryption by KMS, for example, the ETag is another one: compare the bytes.
    if remote.etag.strip('"') == _etag(data):
        return remote
    for begin in range(0, data.nbytes, PART_BYTES):
        end = min(begin + PART_BYTES, data.nbytes)
        if remote.read(begin, end) != data[begin:end]:
            return None
    return remote


def _etag(data: memoryview) -> str:
    """Return the ETag that most stores give this content, from its MD5 or that of its parts."""
    parts = [data[begin : begin + PART_BYTES] for begin in range(0, data.nbytes, PART_BYTES)]
    sums = [hashlib.md5(part, usedforsecurity=False) for part in parts or [data]]
    if len(sums) == 1:
        return sums[0].hexdigest()
    whole = hashlib.md5(b"".join(each.digest() for each in sums), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(sums)}"
