"""Sizes and versions of many files in a store, from listings of their folders.

A listing has a thousand objects, where a request for each would take a minute for 30,000 slides.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions

from gigatile.stores.addresses import address_of
from gigatile.stores.remote_file import RemoteFile, remember, store_of

# Files of a folder from which on it is listed, and how many objects one request lists.
LEAST_FILES, PAGE = 20, 1000


def learn_versions(paths: Sequence[Path]) -> None:
    """List the folders of files in stores, so that `open_remote` need not ask for each of them.

    A folder with many other objects is not listed to its end, and what cannot be listed is left to
    `open_remote`.

    Args:
        paths: represent addresses; see `gigatile.stores.addresses`.
    """
    folders: dict[str, set[str]] = defaultdict(set)
    for address in map(address_of, paths):
        if address.startswith("s3://") and address.count("/") > 3:
            folder, _, name = address.rpartition("/")
            folders[folder].add(name)
    for folder, names in folders.items():
        if len(names) >= LEAST_FILES:
            _list(folder, names)


def _list(folder: str, names: set[str]) -> None:
    """Learn the versions of the files of a folder, with at most half as many requests as files."""
    store, prefix = store_of(folder)
    pages = max(1, len(names) // 2)
    asked = time.monotonic()
    try:
        for objects in obstore.list(store, prefix=prefix, chunk_size=PAGE):
            for about in objects:
                _learn(folder, prefix, names, about, asked)
            pages -= 1
            if not names or not pages:
                return
    except (exceptions.BaseError, OSError, ValueError):
        return  # perhaps without the permission to list


def _learn(folder: str, prefix: str, names: set[str], about: Any, asked: float) -> None:
    name = about["path"].removeprefix(f"{prefix}/")
    if name in names and about["e_tag"]:
        names.discard(name)
        address = f"{folder}/{name}"
        remember(RemoteFile(address, about["size"], about["e_tag"], about["last_modified"]), asked)
