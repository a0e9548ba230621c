"""Tile one slide: write its records, its tile table, an overview and its state."""

import contextlib
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

from PIL import Image

from gigatile.errors import UserError, record_unexpected_error
from gigatile.files import remove_half_written, write_json
from gigatile.parallel.supervision import Crashed, Stalled, run_supervised
from gigatile.records import write_records
from gigatile.settings.tiles import TileSettings
from gigatile.slides.index import TileIndex, write_empty_index
from gigatile.slides.pictures import write_picture
from gigatile.slides.reader import SlideError
from gigatile.slides.slide_files import copy_to
from gigatile.slides.slide_tiles import ReportProgress, SlideTiles
from gigatile.slides.state import (
    SlideFacts,
    SlideState,
    TileCounts,
)
from gigatile.slides.tile_filter import count_tiles
from gigatile.states import OtherFile, RecordsFile
from gigatile.stores.addresses import address_of

OVERVIEW_QUALITY = 80


@dataclass(frozen=True)
class TilingFiles:
    """The files that tiling a slide writes."""

    records: Path
    state: Path
    overview: Path
    index: Path


class TilesOfSource(Protocol):
    """The tiles of a file; see `SlideTiles` for the attributes."""

    facts: SlideFacts
    picture: Image.Image
    mask: Image.Image
    index: TileIndex | None

    def encoded(self, path: Path, scratch: Path | None) -> Generator[bytes]:
        """Yield the records of the tiles; the attributes are complete after the last."""


def tile_slide(
    source: Path,
    slide_id: str,
    sheet_mpp: float | None,
    settings: TileSettings,
    files: TilingFiles,
    scratch: Path | None = None,
    tiles_of: Callable[..., TilesOfSource] = SlideTiles,
) -> SlideState:
    """Tile a slide; write its records, tile table and overview and, last, its state.

    A slide that cannot be used gets empty records and a state with the reason. So does a slide that
    makes no progress for `settings.stall_minutes`, or on which a decoder crashes: the work is done
    in a fork of this process. So does one with an unexpected error, unless it is a resource error
    (`gigatile.errors.is_resource_error`); the traceback goes to stderr.

    Args:
        source: the slide's file.
        slide_id: the slide's id.
        sheet_mpp: micrometres per pixel of level 0 from the sample sheet; overrides the file's.
        settings: size, scale and quality of the tiles, and which of them are kept.
        files: to write.
        scratch: a folder on a local disk, for `settings.copy_first` and for slides in a store.
        tiles_of: makes the tiles of a file; takes the arguments of `SlideTiles`.

    Returns:
        The state, as written.

    Raises:
        UserError: the slide cannot be used, and `settings.on_error` is `stop`.
    """
    remove_half_written(*vars(files).values())  # of a job that was killed
    with contextlib.ExitStack() as close:
        # Created here, because the supervised process may be killed before it cleans up.
        copies = None
        if scratch is not None:
            copies = Path(close.enter_context(tempfile.TemporaryDirectory(dir=scratch)))
        tiling = _SlideTiling(source, slide_id, sheet_mpp, settings, files, copies, tiles_of)
        return _run_supervised(tiling, source, slide_id, settings, files)


def _run_supervised(
    tiling: "_SlideTiling", source: Path, slide_id: str, settings: TileSettings, files: TilingFiles
) -> SlideState:
    """Tile a slide in a supervised process; see `tile_slide`."""
    try:
        return run_supervised(tiling.run, settings.stall_minutes)
    except Stalled as stalled:
        remove_half_written(*vars(files).values())
        reason = f"no progress for {settings.stall_minutes:g} minutes"
        return tiling.give_up(reason, stalled.last, settings.stall_minutes)
    except Crashed as crash:
        remove_half_written(*vars(files).values())
        if crash.killed:
            raise UserError(
                f"slide {slide_id} ({address_of(source)}): the tiling process was killed by "
                f"{crash.by}; it may need more memory or time"
            ) from None
        return tiling.give_up(f"the process that read it crashed ({crash.by})", crash.last)


class _SlideTiling:
    """The tiling of one slide, and what is known about the slide so far."""

    def __init__(
        self,
        source: Path,
        slide_id: str,
        sheet_mpp: float | None,
        settings: TileSettings,
        files: TilingFiles,
        copies: Path | None,
        tiles_of: Callable[..., TilesOfSource],
    ) -> None:
        self._tiles_of = tiles_of
        self._source = source
        self._slide_id = slide_id
        self._sheet_mpp = sheet_mpp
        self._settings = settings
        self._files = files
        self._copies = copies
        self._reset()

    def _reset(self) -> None:
        """Discard all results."""
        self._tiles = self._tiles_of(
            self._source, self._slide_id, self._sheet_mpp, self._settings, lambda facts: None
        )

    def run(self, report_progress: ReportProgress) -> SlideState:
        """Tile the slide; called in the supervised process."""
        try:
            path = self._local_copy(report_progress)
            self._tiles = self._tiles_of(
                self._source, self._slide_id, self._sheet_mpp, self._settings, report_progress
            )
            with contextlib.closing(self._tiles.encoded(path, self._copies)) as records:
                # Before the file is opened for writing, so that a failure is not reported as its.
                first = list(islice(records, 1))
                write_records(self._files.records, chain(first, records))
            self._tiles.facts.state = "tiled"
            return self._finish()
        except SlideError as error:
            return self.give_up(str(error))
        except Exception as error:
            return record_unexpected_error(error, self.give_up, self._clean_up, self._reset)

    def _clean_up(self) -> None:
        remove_half_written(*vars(self._files).values())

    def _local_copy(self, report_progress: ReportProgress) -> Path:
        """Return the file to read: the original, or the copy with `settings.copy_first`."""
        if self._copies is None or not self._source.is_file():
            return self._source
        try:
            return copy_to(self._source, self._copies, lambda: report_progress(None))
        except OSError as error:
            if Path(error.filename or "").is_relative_to(self._copies) or error.filename is None:
                raise  # a fault of the local disk, not of the slide
            raise SlideError(f"it cannot be opened: {error.strerror}") from None

    def give_up(
        self, reason: str, facts: SlideFacts | None = None, stalled: float | None = None
    ) -> SlideState:
        """Write the output files of a slide that cannot be used.

        Args:
            reason: for the user.
            facts: what is known about the slide; None: what this process knows.
            stalled: the limit in minutes that it exceeded; with a higher limit it is tried again.
        """
        self._tiles.facts = facts = facts or self._tiles.facts
        facts.stalled_minutes = stalled
        facts.state, facts.reason = "failed", " ".join(reason.split())
        if self._tiles.index is not None:
            facts.tiles = TileCounts(
                kept=0, **count_tiles(self._tiles.index.dropped, self._tiles.index.marks)
            )
        facts.tiles.kept = 0
        if self._settings.on_error == "stop":
            raise UserError(
                f"slide {self._slide_id} ({address_of(self._source)}): {facts.reason}\n"
                "To continue without such slides, set tiles.on_error: record"
            ) from None
        write_records(self._files.records, ())
        return self._finish()

    def _finish(self) -> SlideState:
        """Write all files but the records; the state last."""
        if self._tiles.index is None:
            write_empty_index(self._files.index, self._tiles.mask)
        else:
            self._tiles.index.write(self._files.index, self._tiles.mask)
        write_picture(self._files.overview, self._tiles.picture, "JPEG", quality=OVERVIEW_QUALITY)
        others = ("index", "overview")
        state = SlideState(
            **dict(self._tiles.facts),
            records=RecordsFile.from_path(self._files.records),
            files={name: OtherFile.from_path(getattr(self._files, name)) for name in others},
            settings=self._settings.model_dump(mode="json", exclude=set(self._settings.EXECUTION)),
        )
        write_json(self._files.state, state.to_json())
        return state
