"""Open a slide on a disk or in a store."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from gigatile.errors import UserError
from gigatile.slides.reader import Slide, SlideError, open_slide
from gigatile.stores.addresses import address_of, is_remote
from gigatile.stores.errors import StoreError


@contextlib.contextmanager
def open_source(
    source: Path,
    scratch: Path | None = None,
    report_progress: Callable[[], None] = lambda: None,
    log: Callable[[str], None] = lambda text: None,
) -> Iterator[Slide]:
    """Open a slide; of one in a store, a partial copy, which is deleted at the end.

    Args:
        source: the slide's file, or the path that represents its address.
        scratch: a folder on a local disk for the partial copy; None: a temporary one.
        report_progress: called while much is fetched.
        log: takes how much was fetched, at the end.

    Raises:
        SlideError: the slide cannot be used.
        UserError: the store does not answer or denies access.
    """
    if not is_remote(source):
        with open_slide(source) as slide:
            yield slide
        return
    # These start obstore, which takes a while to import.
    from gigatile.slides.partial_slide import PartialSlide
    from gigatile.stores.partial_copy import PartialCopy
    from gigatile.stores.remote_file import open_remote

    with contextlib.ExitStack() as close:
        folder = scratch or Path(close.enter_context(tempfile.TemporaryDirectory()))
        try:
            copy = PartialCopy(open_remote(source), folder)
            close.callback(copy.close)
            parts = PartialSlide(copy, report_progress)
            try:
                slide = close.enter_context(open_slide(copy.path, parts))
            except SlideError:
                # Perhaps for want of a part that was not fetched.
                parts.fetch_whole()
                slide = close.enter_context(open_slide(copy.path, parts))
            try:
                yield slide
            finally:
                log(f"fetched {copy.fetched:,} of {copy.remote.size:,} bytes")
        except StoreError as error:
            if error.is_of_file:
                raise SlideError(f"it cannot be read from its store: {error.strerror}") from None
            # The slide may be in order: the job fails, and can be tried again.
            raise UserError(f"{address_of(source)}: {error.strerror}") from None
