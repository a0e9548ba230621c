"""A file in an object store or on a web server: its size, its version, and ranges of its bytes.

Credentials, region and endpoint are those of AWS's tools: from the environment, a profile or the
machine's role. Without any, requests are not signed, which public buckets allow.
"""

import errno
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import HTTPStore, S3Store

from gigatile.stores.addresses import address_of
from gigatile.stores.errors import StoreError

# The largest request, the largest gap that is read over, and how many requests run side by side.
REQUEST_BYTES = 4 << 20
GAP_BYTES = 64 << 10
REQUESTS = 8
# A request that takes longer than this is given up; one that fails is tried again for so long.
TIMEOUT = timedelta(seconds=60)
CONNECT_TIMEOUT = timedelta(seconds=10)
RETRY = timedelta(seconds=120)
# A plan asks several times for the versions of all slides.
KNOWN_SECONDS = 600.0
_KNOWN: dict[str, tuple[float, "RemoteFile"]] = {}
# Seconds before a request is tried again: doubled each time, up to the second.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0


@dataclass(frozen=True)
class RemoteFile:
    """A version of a file in a store.

    Attributes:
        address: of the file.
        size: in bytes.
        etag: changes with the content; empty: the server gives none.
        modified: time of the last change.
    """

    address: str
    size: int
    etag: str
    modified: datetime

    @property
    def version(self) -> str:
        """What changes with the content: the ETag, or the time if there is none."""
        return self.etag or self.modified.isoformat()

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` up to, not including, `end`.

        Raises:
            StoreError: they cannot be read, or the file has another version now.
        """
        return b"".join(self.read_ranges([(begin, end)]))

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of ranges; those that are close are read together.

        Args:
            ranges: begin and end of each, within the file.

        Raises:
            StoreError: they cannot be read, or the file has another version now.
        """
        requests = _requests(ranges)
        if len(requests) < 2:
            parts = [self._read(*request) for request in requests]
        else:
            with ThreadPoolExecutor(min(REQUESTS, len(requests))) as pool:
                parts = list(pool.map(lambda request: self._read(*request), requests))
        return _cut(ranges, requests, parts)

    def _read(self, begin: int, end: int) -> bytes:
        """Return the answer to one request."""
        store, key = store_of(self.address)
        options: Any = {"range": (begin, end)}
        if self.etag:
            options["if_match"] = self.etag
        else:
            options["if_unmodified_since"] = self.modified

        def request() -> bytes:
            data = obstore.get(store, key, options=options).bytes().to_bytes()
            if len(data) != end - begin:
                raise exceptions.GenericError(f"{len(data)} of {end - begin} bytes were sent")
            return data

        return try_again(self.address, request)


def open_remote(path: Path) -> RemoteFile:
    """Return the current version of a file, or that of up to `KNOWN_SECONDS` ago.

    If the file is replaced meanwhile, reading it fails.

    Args:
        path: represents an address; see `gigatile.stores.addresses`.

    Raises:
        StoreError: there is no such file, or it cannot be read.
    """
    address = address_of(path)
    known = _KNOWN.get(address)
    if known and time.monotonic() - known[0] < KNOWN_SECONDS:
        return known[1]
    return version_now(address)


def version_now(address: str) -> RemoteFile:
    """Return the current version of a file.

    Raises:
        StoreError: there is no such file, or it cannot be read.
    """
    store, key = store_of(address)
    asked = time.monotonic()
    about = try_again(address, lambda: obstore.head(store, key))
    remote = RemoteFile(address, about["size"], about["e_tag"] or "", about["last_modified"])
    remember(remote, asked)
    return remote


def remember(remote: RemoteFile, asked: float) -> None:
    """Let `open_remote` return this version for a while; `asked`: when the store was asked."""
    _KNOWN[remote.address] = asked, remote


def _requests(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the requests that read some ranges: close ones together, large ones in parts."""
    joined: list[list[int]] = []
    for begin, end in sorted(ranges):
        if begin >= end:
            continue
        if joined and begin <= joined[-1][1] + GAP_BYTES:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    return [
        (start, min(start + REQUEST_BYTES, end))
        for begin, end in joined
        for start in range(begin, end, REQUEST_BYTES)
    ]


def _cut(
    ranges: Sequence[tuple[int, int]], requests: Sequence[tuple[int, int]], parts: Sequence[bytes]
) -> list[bytes]:
    """Return the bytes of ranges from the answers to the requests, which are in order."""
    cut = []
    for begin, end in ranges:
        pieces = [
            part[max(begin - first, 0) : end - first]
            for (first, last), part in zip(requests, parts, strict=True)
            if first < end and last > begin
        ]
        cut.append(b"".join(pieces))
    return cut


def try_again(address: str, request: Any) -> Any:
    """Return the answer to a request that is tried again if another try can help.

    Raises:
        StoreError: it cannot, or the time is over.
    """
    until, pause = time.monotonic() + RETRY.total_seconds(), FIRST_PAUSE
    while True:
        try:
            return request()
        except (exceptions.NotFoundError, FileNotFoundError):
            in_store = address.startswith("s3:")
            reason = "no such object, or no such bucket" if in_store else "no such file"
            raise StoreError(errno.ENOENT, reason, address) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
            raise StoreError(
                errno.EACCES,
                "access denied; check the credentials in the environment or the profile (without "
                "credentials, requests are not signed)",
                address,
            ) from None
        except exceptions.PreconditionError:
            _KNOWN.pop(address, None)
            raise StoreError(errno.ESTALE, "it was changed while it was read", address) from None
        except exceptions.NotSupportedError as error:
            reason = f"the server does not support it: {_short(error)}"
            raise StoreError(errno.EIO, reason, address) from None
        except exceptions.BaseError as error:
            if time.monotonic() + pause > until:
                raise StoreError(
                    errno.EIO,
                    f"no answer in {RETRY.total_seconds():g} seconds of tries: {_short(error)}",
                    address,
                ) from None
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _short(error: Exception) -> str:
    """Return the first line of a message; the others are a debugging aid for its library."""
    return str(error).strip().splitlines()[0]


_OPENING = threading.Lock()
# The process that opened a store first. In a fork of it, obstore's threads are missing, and a
# request would wait for them for ever.
_OPENED_BY: list[int] = []


def store_of(address: str) -> tuple[Any, str]:
    """Return the store of an address, and the key in it."""
    scheme, _, rest = address.partition("://")
    first, _, key = rest.partition("/")
    with _OPENING:
        if not _OPENED_BY:
            _OPENED_BY.append(os.getpid())
        if [os.getpid()] != _OPENED_BY:
            # The job fails, and the slide is not recorded as a bad one.
            reason = "a store was opened before this process was forked; please report"
            raise StoreError(errno.EIO, reason, address)
        return _store(scheme, first), key


@cache
def _store(scheme: str, name: str) -> Any:
    client: Any = {"timeout": TIMEOUT, "connect_timeout": CONNECT_TIMEOUT}
    # Failures are tried again here, where broken and short answers count, too.
    retry: Any = {"max_retries": 0}
    if scheme != "s3":
        client["allow_http"] = scheme == "http"
        return HTTPStore.from_url(f"{scheme}://{name}/", client_options=client, retry_config=retry)
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.Session()
    region = session.region_name or "us-east-1"
    endpoint = session.client("s3", region_name=region).meta.endpoint_url
    options: dict[str, Any] = {"region": region}
    if not endpoint.endswith(".amazonaws.com"):
        client["allow_http"] = endpoint.startswith("http://")
        options["endpoint"] = endpoint
    if session.get_credentials() is None:
        options["skip_signature"] = True
    else:
        options["credential_provider"] = Boto3CredentialProvider(session)
    return S3Store(name, client_options=client, retry_config=retry, **options)
