"""A whole copy of a file in a store, for libraries that open a file by its name."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gigatile.stores.addresses import is_remote

# Fetched at once, in bytes.
PART_BYTES = 32 << 20


@contextlib.contextmanager
def local_file(
    path: Path,
    report_progress: Callable[[None], None] = lambda _: None,
    scratch: Path | None = None,
) -> Iterator[Path]:
    """Give the block a file's path on the disk; of one in a store, that of a temporary copy.

    Args:
        path: of the file, or represents its address.
        report_progress: called after each part that was fetched.
        scratch: a folder for the copy; None: the temporary one.

    Raises:
        StoreError: it cannot be read, or was changed while it was read.
    """
    if not is_remote(path):
        yield path
        return
    # These start obstore, which takes a while to import.
    from gigatile.stores.partial_copy import PartialCopy
    from gigatile.stores.remote_file import open_remote

    with tempfile.TemporaryDirectory(prefix="gigatile-", dir=scratch) as folder:
        copy = PartialCopy(open_remote(path), Path(folder))
        with contextlib.closing(copy):
            for begin in range(0, copy.remote.size, PART_BYTES):
                copy.fetch([(begin, begin + PART_BYTES)])
                report_progress(None)
            yield copy.path
