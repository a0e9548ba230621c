"""Tile one slide: write its records, its tile table, an overview, a tissue mask and its state."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from gigatile.errors import UserError, record_unexpected_error
from gigatile.files import remove_half_written, write_json
from gigatile.parallel.supervision import Crashed, Stalled, run_supervised
from gigatile.records import Tile, encode_tile, write_records
from gigatile.settings.tiles import TileSettings
from gigatile.slides.areas import area_fractions
from gigatile.slides.grid import Grid, plan_grid
from gigatile.slides.index import MEASURES, TileIndex, write_empty_index
from gigatile.slides.overview import read_overview
from gigatile.slides.pictures import render_overview, write_picture
from gigatile.slides.reader import Slide, SlideError, open_slide
from gigatile.slides.reader_selection import check_lossless, choose_reader
from gigatile.slides.regions import (
    Region,
    TiffRegions,
    openslide_reader,
    openslide_regions,
    with_openslide_fallback,
)
from gigatile.slides.scale import find_scale
from gigatile.slides.slide_files import copy_to, fingerprint_of, size_and_time_of
from gigatile.slides.stain_reference import plan_normalisation
from gigatile.slides.state import (
    Level,
    SlideFacts,
    SlideSource,
    SlideState,
    TileCounts,
    TileGrid,
    UnreadableTile,
)
from gigatile.slides.tiff import check_directories
from gigatile.slides.tile_extraction import (
    TileEncoder,
    TileResult,
    map_in_order,
    read_native_tiles,
)
from gigatile.slides.tile_filter import FilterRules, count_tiles, no_tiles_reason
from gigatile.slides.tissue import (
    MASK_LONGEST,
    MASK_PIXELS_PER_TILE,
    find_tissue,
    region_sizes,
)
from gigatile.states import OtherFile, RecordsFile

# Unreadable parts of the overview are assumed to be tissue, up to this share of the slide.
MAX_UNREADABLE_AREA = 0.25
OVERVIEW_QUALITY = 80
# Unreadable tiles that the state lists with their reasons; the tile table has all of them.
MAX_UNREADABLE_LISTED = 10
# Decoded tiles that may be in memory per core, and the limit in bytes for all cores.
AHEAD_PER_CORE = 4
AHEAD_BYTES = 128 << 20
# The largest region that is read for one tile.
MAX_REGION_BYTES = 400 << 20
# Signals with which a process ends if a decoder crashes.
DECODER_SIGNALS = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP")
# Seconds between progress reports.
REPORT_INTERVAL = 1.0

# Takes the facts known so far; None: no new facts.
ReportProgress = Callable[[SlideFacts | None], None]


@dataclass(frozen=True)
class TilingFiles:
    """The files that tiling a slide writes."""

    records: Path
    state: Path
    overview: Path
    mask: Path
    index: Path


def tile_slide(
    source: Path,
    slide_id: str,
    sheet_mpp: float | None,
    settings: TileSettings,
    files: TilingFiles,
    scratch: Path | None = None,
) -> SlideState:
    """Tile a slide; write its records, tile table and pictures and, last, its state.

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
        scratch: a folder on a local disk, for `settings.copy_first`.

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
        return _SlideTiling(source, slide_id, sheet_mpp, settings, files, copies).run_supervised()


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
    ) -> None:
        self._source = source
        self._slide_id = slide_id
        self._sheet_mpp = sheet_mpp
        self._settings = settings
        self._files = files
        self._copies = copies
        self._reset()

    def _reset(self) -> None:
        """Discard all results."""
        self._picture = Image.new("RGB", (1, 1), (255, 255, 255))
        self._mask = Image.new("1", (1, 1))
        self._index: TileIndex | None = None
        self._facts = SlideFacts.unopened(self._slide_id, self._source.name, self._sheet_mpp)

    def run_supervised(self) -> SlideState:
        """Tile the slide in a supervised process; see `tile_slide`."""
        limit = self._settings.stall_minutes
        try:
            return run_supervised(self._run, limit)
        except Stalled as stalled:
            self._clean_up()
            return self._give_up(f"no progress for {limit:g} minutes", stalled.last, limit)
        except Crashed as crash:
            self._clean_up()
            if crash.by not in DECODER_SIGNALS:  # usually the system: out of memory or time
                raise UserError(
                    f"slide {self._slide_id} ({self._source}): the tiling process was killed by "
                    f"{crash.by}; it may need more memory or time"
                ) from None
            return self._give_up(f"the process that read it crashed ({crash.by})", crash.last)

    def _run(self, report_progress: ReportProgress) -> SlideState:
        self._report_progress = report_progress
        cv2.setNumThreads(1)  # `settings.cores` threads are started below
        try:
            path = self._local_copy()
            with open_slide(path) as slide:
                self._tile(path, slide)
            self._facts.state = "tiled"
            return self._finish()
        except SlideError as error:
            return self._give_up(str(error))
        except Exception as error:
            return record_unexpected_error(error, self._give_up, self._clean_up, self._reset)

    def _report_alive(self) -> None:
        self._report_progress(None)

    def _clean_up(self) -> None:
        remove_half_written(*vars(self._files).values())

    def _local_copy(self) -> Path:
        """Return the file to read: the original, or the copy with `settings.copy_first`."""
        if self._copies is None or not self._source.is_file():
            return self._source
        try:
            return copy_to(self._source, self._copies, self._report_alive)
        except OSError as error:
            if Path(error.filename or "").is_relative_to(self._copies) or error.filename is None:
                raise  # a fault of the local disk, not of the slide
            raise SlideError(f"it cannot be opened: {error.strerror}") from None

    def _give_up(
        self, reason: str, facts: SlideFacts | None = None, stalled: float | None = None
    ) -> SlideState:
        """Write the output files of a slide that cannot be used.

        Args:
            reason: for the user.
            facts: what is known about the slide; None: what this process knows.
            stalled: the limit in minutes that it exceeded; with a higher limit it is tried again.
        """
        self._facts = facts = facts or self._facts
        facts.stalled_minutes = stalled
        facts.state, facts.reason = "failed", " ".join(reason.split())
        if self._index is not None:
            facts.tiles = TileCounts(kept=0, **count_tiles(self._index.dropped, self._index.marks))
        facts.tiles.kept = 0
        if self._settings.on_error == "stop":
            raise UserError(
                f"slide {self._slide_id} ({self._source}): {facts.reason}\n"
                "To continue without such slides, set tiles.on_error: record"
            ) from None
        write_records(self._files.records, ())
        return self._finish()

    def _finish(self) -> SlideState:
        """Write all files but the records; the state last."""
        if self._index is None:
            write_empty_index(self._files.index)
        else:
            self._index.write(self._files.index)
        write_picture(self._files.overview, self._picture, "JPEG", quality=OVERVIEW_QUALITY)
        write_picture(self._files.mask, self._mask, "PNG")
        others = ("index", "overview", "mask")
        state = SlideState(
            **dict(self._facts),
            records=RecordsFile.from_path(self._files.records),
            files={name: OtherFile.from_path(getattr(self._files, name)) for name in others},
            settings=self._settings.model_dump(mode="json", exclude=set(self._settings.EXECUTION)),
        )
        write_json(self._files.state, state.to_json())
        return state

    def _tile(self, path: Path, slide: Slide) -> None:
        facts, settings = self._facts, self._settings
        try:
            facts.source = _describe_source(self._source, slide)
        except OSError as error:  # another file of the slide than the one in the sheet
            name = Path(error.filename or "").name
            raise SlideError(f"{name} cannot be opened: {error.strerror}") from None
        check_directories(path, slide)
        scale = find_scale(slide, self._sheet_mpp, settings.objectives)
        facts.mpp, facts.mpp_from = scale.mpp, scale.source
        facts.mpp_told, facts.contradictions = dict(scale.by_source), list(scale.contradictions)
        grid = plan_grid(slide, scale.mpp, settings)
        facts.grid = TileGrid(**asdict(grid))
        self._report_progress(facts)
        downsample = max(1.0, grid.extent / MASK_PIXELS_PER_TILE)
        overview = read_overview(
            path, slide, downsample, MASK_LONGEST, self._report_alive, MAX_UNREADABLE_AREA
        )
        facts.overview = overview.reader
        self._picture = render_overview(overview.pixels, overview.downsample, slide)
        self._report_alive()
        sizes = region_sizes(settings, scale.mpp, overview.downsample)
        tissue = find_tissue(overview.pixels, *sizes)
        self._mask = render_overview(tissue.mask, overview.downsample, slide)
        facts.light, facts.tissue_threshold = tissue.illumination, tissue.threshold
        index = self._index = TileIndex(grid.corners(), area_fractions(overview, tissue, grid))
        rules = FilterRules(settings, tissue.illumination)
        for tile, verdict in rules.judge_areas(index.areas).items():
            index.add_verdict(tile, verdict)
        candidates = index.kept()
        facts.tiles = TileCounts(kept=len(candidates), **count_tiles(index.dropped, index.marks))
        self._report_progress(facts)
        if not len(candidates):
            raise SlideError(
                no_tiles_reason(index.dropped, index.areas["tissue"], settings.max_background)
            )
        with contextlib.ExitStack() as close:
            self._extract_tiles(path, slide, candidates, grid, rules, close)

    def _extract_tiles(
        self,
        path: Path,
        slide: Slide,
        candidates: np.ndarray,
        grid: Grid,
        rules: FilterRules,
        close: contextlib.ExitStack,
    ) -> None:
        """Read and measure the candidate tiles, and write the records of those that are kept."""
        facts, settings, index = self._facts, self._settings, self._index
        assert index is not None
        assert facts.light is not None
        boxes, spans = grid.boxes(index.corners[candidates])
        region_bytes = 3 * int(boxes[0, 2:].prod())
        if region_bytes > MAX_REGION_BYTES:
            raise SlideError(
                f"a tile spans {boxes[0, 2]}×{boxes[0, 3]} px of level {grid.level}, too many for "
                "memory; the slide has no level closer to tiles.mpp"
            )
        facts.reading, level = choose_reader(path, slide, grid.level, boxes)
        if level is not None:
            close.callback(level.close)
        lossless = settings.encoding == "lossless"
        if lossless:
            check_lossless(grid, level, facts.reading)
        cores = settings.cores
        # Entered before the pool, so that the files are closed after all threads have ended.
        handles = close.enter_context(contextlib.ExitStack())
        pool = close.enter_context(ThreadPoolExecutor(cores)) if cores > 1 else None
        read = openslide_reader(path, grid.level, handles)

        def regions(boxes: np.ndarray) -> Iterator[Region]:
            if level is None:
                return openslide_regions(read, boxes)
            return with_openslide_fallback(TiffRegions(level, boxes, pool), read, boxes)

        normalisation = plan_normalisation(
            settings, facts.light, grid, regions, boxes, spans, self._report_alive
        )
        facts.stain = None if normalisation is None else normalisation.to_state()
        self._report_progress(facts)
        normaliser = None if normalisation is None else normalisation.normaliser
        encoder = TileEncoder(grid, settings.quality, rules, normaliser)
        ahead = max(cores, min(AHEAD_PER_CORE * cores, AHEAD_BYTES // region_bytes))
        results = (
            map_in_order(encoder.keep_native, read_native_tiles(level, boxes), pool, ahead)
            if level is not None and lossless
            else map_in_order(encoder.encode, zip(regions(boxes), spans, strict=True), pool, ahead)
        )
        write_records(self._files.records, self._records(candidates, grid, results))
        kept = len(index.corners) - len(index.dropped)
        facts.tiles = TileCounts(kept=kept, **count_tiles(index.dropped, index.marks))
        if not kept:
            raise SlideError(
                no_tiles_reason(index.dropped, index.areas["tissue"], settings.max_background)
            )

    def _records(
        self, candidates: np.ndarray, grid: Grid, results: Iterable[TileResult]
    ) -> Iterator[bytes]:
        index = self._index
        assert index is not None
        max_unreadable = self._settings.max_unreadable * len(candidates)
        unreadable = 0
        last_report = time.monotonic()
        for tile, result in zip(candidates.tolist(), results, strict=True):
            if time.monotonic() - last_report > REPORT_INTERVAL:
                last_report = time.monotonic()
                self._report_alive()
            x, y = index.corners[tile].tolist()
            index.add_verdict(tile, result.verdict)
            if result.measures is not None:
                for name in MEASURES:
                    index.measures[name][tile] = getattr(result.measures, name)
            if result.unreadable:
                unreadable += 1
                if len(self._facts.unreadable) < MAX_UNREADABLE_LISTED:
                    listed = UnreadableTile(x=x, y=y, reason=result.unreadable)
                    self._facts.unreadable.append(listed)
                if unreadable > max_unreadable:
                    raise SlideError(
                        f"{unreadable} of its tiles cannot be read, more than "
                        f"{self._settings.max_unreadable:.0%} of the {len(candidates)} with "
                        f"tissue; at ({x}, {y}): {result.unreadable}"
                    )
            if result.image is not None:
                tissue = float(index.areas["tissue"][tile])
                yield encode_tile(
                    Tile(result.image, self._slide_id, x, y, grid.extent, grid.mpp, tissue)
                )


def _describe_source(source: Path, slide: Slide) -> SlideSource:
    return SlideSource(
        name=source.name,
        bytes=size_and_time_of(source)[0],
        fingerprint=fingerprint_of(source),
        vendor=slide.vendor,
        width=slide.width,
        height=slide.height,
        levels=[
            Level(width=width, height=height, downsample=down)
            for (width, height), down in zip(slide.level_sizes, slide.downsamples, strict=True)
        ],
        objective_power=slide.objective_power,
    )
