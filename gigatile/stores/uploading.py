"""Write files to an object store."""

import hashlib
from pathlib import Path
from typing import Any

import obstore

from gigatile.errors import UserError
from gigatile.stores.addresses import address_of
from gigatile.stores.errors import StoreError
from gigatile.stores.remote_file import store_of, try_again, version_now

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
        remote = version_now(address)
        if (remote.size, remote.etag.strip('"')) == (data.nbytes, _etag(data)):
            return remote.version
    except StoreError as error:
        if not error.is_of_file:
            raise UserError(f"{address}: {error.strerror}") from None
    try:
        try_again(address, write)
        remote = version_now(address)
    except StoreError as error:
        raise UserError(f"{address}: {error.strerror}") from None
    if remote.size != data.nbytes:
        raise UserError(f"{address}: {remote.size} of {data.nbytes} bytes are there after writing")
    return remote.version


def _etag(data: memoryview) -> str:
    """Return the ETag that most stores give this content, from its MD5 or that of its parts.

    A store that gives another one gets the content again.
    """
    parts = [data[begin : begin + PART_BYTES] for begin in range(0, data.nbytes, PART_BYTES)]
    sums = [hashlib.md5(part, usedforsecurity=False) for part in parts or [data]]
    if len(sums) == 1:
        return sums[0].hexdigest()
    whole = hashlib.md5(b"".join(each.digest() for each in sums), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(sums)}"
