"""One slide into tiles: its records, their table, its state and two pictures of it."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from gigatile.errors import UserError, record_unexpected_error
from gigatile.files import remove_half_written, sha256_of, write_json
from gigatile.parallel.supervision import Crashed, Stalled, run_supervised
from gigatile.records import Tile, encode_tile, write_records
from gigatile.settings.tiles import TileSettings
from gigatile.slides.areas import seen_areas
from gigatile.slides.choosing import check_lossless, choose_reading
from gigatile.slides.cutting import Cutter, Outcome, in_order, own_tiles
from gigatile.slides.grid import Grid, plan_grid
from gigatile.slides.index import MEASURES, TileIndex, write_empty_index
from gigatile.slides.overview import read_overview
from gigatile.slides.pictures import picture_of, write_picture
from gigatile.slides.reader import Slide, SlideError, open_slide
from gigatile.slides.regions import (
    Region,
    TiffRegions,
    reader_by_openslide,
    regions_by_openslide,
    with_second_try,
)
from gigatile.slides.scale import scale_of
from gigatile.slides.sorting import Rules, counted
from gigatile.slides.source import copy_to, fingerprint_of, size_and_time_of
from gigatile.slides.staining import find_staining
from gigatile.slides.tiff import check_directories
from gigatile.slides.tissue import (
    MASK_LONGEST,
    MASK_PIXELS_PER_TILE,
    find_tissue,
    region_sizes,
)

SCHEMA = 3
# Where the overview cannot be read, tissue is taken for granted; not on more of a slide than this.
MAX_UNSEEN = 0.25
OVERVIEW_QUALITY = 80
SOURCE_FACTS = ("bytes", "fingerprint", "vendor", "width", "height", "levels", "objective_power")
# Unreadable tiles of which the state tells the reason; the table names all.
UNREADABLE_TOLD = 10
# Tiles whose pixels may be in memory at once, for each core.
AHEAD_PER_CORE = 4
# No more than these either, and a region of no more than these.
AHEAD_BYTES = 128 << 20
MOST_REGION_BYTES = 400 << 20
# Signals that a codec brings on itself.
CODECS_DOING = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP")
# How often the work says that it goes on, in seconds.
SIGN_OF_LIFE = 1.0

Tell = Callable[[Any], None]


@dataclass(frozen=True)
class TilingFiles:
    """The files that a slide's tiling writes."""

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
) -> dict[str, Any]:
    """Cut a slide into tiles; write its records, their table, its pictures and, last, its state.

    A slide that cannot be used gets empty records and a state with the reason. So does one that
    makes no progress for `settings.stall_minutes`, or that crashes a codec: the work is done in a
    fork of this process. So does one with an unexpected error, unless it is the system's
    (`gigatile.errors.is_resource_error`); its traceback goes to stderr.

    Args:
        source: the slide's file.
        slide_id: whose tiles these are.
        sheet_mpp: micrometres per pixel of level 0 from the sample sheet, before the file's own.
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
        # Here, as whoever does the work may not come to tidy up.
        copies = None
        if scratch is not None:
            copies = Path(close.enter_context(tempfile.TemporaryDirectory(dir=scratch)))
        work = _Cutting(source, slide_id, sheet_mpp, settings, files, copies)
        return _supervised(work, source, slide_id, settings, files)


def _supervised(
    work: "_Cutting", source: Path, slide_id: str, settings: TileSettings, files: TilingFiles
) -> dict[str, Any]:
    """Do the work on one slide in a supervised process; see `tile_slide`."""
    try:
        return run_supervised(work.run, settings.stall_minutes)
    except Stalled as stalled:
        remove_half_written(*vars(files).values())
        reason = f"nothing came of it for {settings.stall_minutes:g} minutes"
        return work.give_up(reason, stalled.last, settings.stall_minutes)
    except Crashed as crash:
        remove_half_written(*vars(files).values())
        if crash.by not in CODECS_DOING:  # but the system's: out of memory or time, mostly
            raise UserError(
                f"slide {slide_id} ({source}): the process that cut it was ended by {crash.by}; it "
                "may need more memory, or time"
            ) from None
        return work.give_up(f"reading it crashed ({crash.by})", crash.last)


class _Cutting:
    """The work on one slide, and what is known of it so far."""

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
        self._forget()

    def _forget(self) -> None:
        """Begin with nothing known of the slide."""
        self._picture = Image.new("RGB", (1, 1), (255, 255, 255))
        self._mask = Image.new("1", (1, 1))
        self._index: TileIndex | None = None
        self._facts: dict[str, Any] = {
            "schema": SCHEMA,
            "slide": self._slide_id,
            "state": "failed",
            "reason": None,
            "source": {"name": self._source.name} | dict.fromkeys(SOURCE_FACTS),
            "mpp": self._sheet_mpp,
            "mpp_from": "sheet" if self._sheet_mpp is not None else None,
            "mpp_told": {},
            "contradictions": [],
            "grid": None,
            "light": None,
            "tissue_threshold": None,
            "overview": None,
            "reading": None,
            "stain": None,
            "tiles": {"kept": 0, "dropped": {"background": 0}, "marked": {}},
            "unreadable": [],
        }

    def run(self, tell: Tell) -> dict[str, Any]:
        """Do it, in the process that is supervised; `tell` takes the facts as they become known."""
        cv2.setNumThreads(1)  # the cores are given out here
        try:
            path = self._copied(tell)
            with open_slide(path) as slide:
                self._cut(path, slide, tell)
            self._facts["state"] = "tiled"
            return self._finish()
        except SlideError as error:
            return self.give_up(str(error))
        except Exception as error:
            return record_unexpected_error(error, self.give_up, self._clean_up, self._forget)

    def _clean_up(self) -> None:
        remove_half_written(*vars(self._files).values())

    def _copied(self, tell: Tell) -> Path:
        """Return the file to read: the slide's own, or that of its copy."""
        if self._copies is None or not self._source.is_file():
            return self._source
        try:
            return copy_to(self._source, self._copies, lambda: tell(None))
        except OSError as error:
            if Path(error.filename or "").is_relative_to(self._copies) or error.filename is None:
                raise  # the local disk's fault, not the slide's
            raise SlideError(f"it cannot be opened: {error.strerror}") from None

    def give_up(
        self, reason: str, facts: dict[str, Any] | None = None, stalled: float | None = None
    ) -> dict[str, Any]:
        """Write what a slide leaves that cannot be used.

        Args:
            reason: for people.
            facts: what is known of it; None: what this process knows.
            stalled: the limit in minutes, where it stalled: with a higher one it is tried again.
        """
        self._facts = facts or self._facts
        if stalled is not None:
            self._facts["stalled_minutes"] = stalled
        self._facts |= {"state": "failed", "reason": " ".join(reason.split())}
        if self._index is not None:
            self._facts["tiles"] |= counted(self._index.dropped, self._index.marks)
        self._facts["tiles"]["kept"] = 0
        if self._settings.on_error == "stop":
            raise UserError(
                f"slide {self._slide_id} ({self._source}): {self._facts['reason']}\n"
                "To go on without such slides, set tiles.on_error: record"
            ) from None
        write_records(self._files.records, ())
        return self._finish()

    def _finish(self) -> dict[str, Any]:
        """Write what stands beside the records, the state last."""
        if self._index is None:
            write_empty_index(self._files.index)
        else:
            self._index.write(self._files.index)
        write_picture(self._files.overview, self._picture, "JPEG", quality=OVERVIEW_QUALITY)
        write_picture(self._files.mask, self._mask, "PNG")
        records = self._files.records
        self._facts["records"] = {"bytes": records.stat().st_size, "sha256": sha256_of(records)}
        # So that the state changes when any of its files does.
        beside = {"index": self._files.index, "overview": self._files.overview}
        beside["mask"] = self._files.mask
        self._facts["files"] = {name: {"sha256": sha256_of(path)} for name, path in beside.items()}
        self._facts["settings"] = self._settings.model_dump(exclude=set(self._settings.EXECUTION))
        write_json(self._files.state, self._facts)
        return self._facts

    def _cut(self, path: Path, slide: Slide, tell: Tell) -> None:
        facts, settings = self._facts, self._settings
        try:
            facts["source"] |= _source_facts(self._source, slide)
        except OSError as error:  # a file beside the one that the sheet names
            name = Path(error.filename or "").name
            raise SlideError(f"{name} cannot be opened: {error.strerror}") from None
        check_directories(path, slide)
        scale = scale_of(slide, self._sheet_mpp, settings.objectives)
        facts |= {"mpp": scale.mpp, "mpp_from": scale.source, "mpp_told": scale.told}
        facts["contradictions"] = scale.contradictions
        grid = plan_grid(slide, scale.mpp, settings)
        facts["grid"] = asdict(grid)
        tell(facts)
        wanted_downsample = max(1.0, grid.extent / MASK_PIXELS_PER_TILE)
        low = read_overview(
            path, slide, wanted_downsample, MASK_LONGEST, lambda: tell(None), MAX_UNSEEN
        )
        facts["overview"] = asdict(low.reading)
        self._picture = picture_of(low.pixels, low.downsample, slide)
        tell(None)
        tissue = find_tissue(low.pixels, *region_sizes(settings, scale.mpp, low.downsample))
        self._mask = picture_of(tissue.mask, low.downsample, slide)
        facts |= {"light": tissue.light, "tissue_threshold": tissue.threshold}
        index = self._index = TileIndex(grid.corners(), seen_areas(low, tissue, grid))
        rules = Rules(settings, tissue.light)
        early = rules.of_areas(index.areas)
        for tile, verdict in early.items():
            index.note(tile, verdict)
        wanted = index.kept()
        facts["tiles"] |= {"kept": len(wanted)} | counted(index.dropped, index.marks)
        tell(facts)
        if not len(wanted):
            raise SlideError(_nothing_left(index, settings))
        with contextlib.ExitStack() as close:
            self._read(path, slide, wanted, grid, rules, close, tell)

    def _read(
        self,
        path: Path,
        slide: Slide,
        wanted: np.ndarray,
        grid: Grid,
        rules: Rules,
        close: contextlib.ExitStack,
        tell: Tell,
    ) -> None:
        """Read the tiles that are wanted, measure them, and write the records of those kept."""
        facts, settings, index = self._facts, self._settings, self._index
        assert index is not None
        boxes, spans = grid.boxes(index.corners[wanted])
        region_bytes = 3 * int(boxes[0, 2:].prod())
        if region_bytes > MOST_REGION_BYTES:
            raise SlideError(
                f"a tile spans {boxes[0, 2]}×{boxes[0, 3]} px of level {grid.level}, more than fit "
                "in memory; it lacks a level that is nearer to tiles.mpp"
            )
        reading, level = choose_reading(path, slide, grid.level, boxes)
        if level is not None:
            close.callback(level.close)
        facts["reading"] = asdict(reading)
        lossless = settings.encoding == "lossless"
        if lossless:
            check_lossless(grid, level, reading)
        cores = settings.cores
        # Before the pool, so that they are closed when all its threads have ended.
        handles = close.enter_context(contextlib.ExitStack())
        pool = close.enter_context(ThreadPoolExecutor(cores)) if cores > 1 else None
        read = reader_by_openslide(path, grid.level, handles)

        def regions(boxes: np.ndarray) -> Iterator[Region]:
            if level is None:
                return regions_by_openslide(read, boxes)
            return with_second_try(TiffRegions(level, boxes, pool), read, boxes)

        staining = find_staining(
            settings, facts["light"], grid, regions, boxes, spans, lambda: tell(None)
        )
        facts["stain"] = staining and staining.as_dict()
        tell(facts)
        normaliser = None if staining is None else staining.normaliser
        cutter = Cutter(grid, settings.quality, rules, normaliser)
        ahead = max(cores, min(AHEAD_PER_CORE * cores, AHEAD_BYTES // region_bytes))
        outcomes = (
            in_order(own_tiles(level, boxes), cutter.keep, pool, ahead)
            if level is not None and lossless
            else in_order(zip(regions(boxes), spans, strict=True), cutter.encode, pool, ahead)
        )
        write_records(self._files.records, self._records(wanted, grid, outcomes, tell))
        facts["tiles"] = {"kept": len(index.corners) - len(index.dropped)}
        facts["tiles"] |= counted(index.dropped, index.marks)
        if not facts["tiles"]["kept"]:
            raise SlideError(_nothing_left(index, settings))

    def _records(
        self, wanted: np.ndarray, grid: Grid, outcomes: Iterable[Outcome], tell: Tell
    ) -> Iterator[bytes]:
        index = self._index
        assert index is not None
        most_unreadable = self._settings.max_unreadable * len(wanted)
        unreadable = 0
        told = time.monotonic()
        for tile, outcome in zip(wanted.tolist(), outcomes, strict=True):
            if time.monotonic() - told > SIGN_OF_LIFE:
                told = time.monotonic()
                tell(None)
            x, y = index.corners[tile].tolist()
            index.note(tile, outcome.verdict)
            if outcome.measured is not None:
                for name in MEASURES:
                    index.measures[name][tile] = getattr(outcome.measured, name)
            if outcome.unreadable:
                unreadable += 1
                if len(self._facts["unreadable"]) < UNREADABLE_TOLD:
                    self._facts["unreadable"].append({"x": x, "y": y, "reason": outcome.unreadable})
                if unreadable > most_unreadable:
                    raise SlideError(
                        f"{unreadable} of its tiles cannot be read, more than "
                        f"{self._settings.max_unreadable:.0%} of the {len(wanted)} with tissue; "
                        f"at ({x}, {y}): {outcome.unreadable}"
                    )
            if outcome.image is not None:
                share = float(index.areas["tissue"][tile])
                yield encode_tile(
                    Tile(outcome.image, self._slide_id, x, y, grid.extent, grid.mpp, share)
                )


def _nothing_left(index: TileIndex, settings: TileSettings) -> str:
    """Say why a slide keeps no tile."""
    count = len(index.corners)
    others = {name: n for name, n in counted(index.dropped, {})["dropped"].items() if n}
    if set(others) == {"background"}:
        best = 1 - index.areas["tissue"].max()
        return (
            f"none of its {count} tiles has at most {settings.max_background:.0%} background; the "
            f"best has {best:.1%}"
        )
    why = ", ".join(f"{n} as {name}" for name, n in others.items())
    return f"none of its {count} tiles is kept; dropped: {why}"


def _source_facts(source: Path, slide: Slide) -> dict[str, Any]:
    levels = [
        {"width": width, "height": height, "downsample": down}
        for (width, height), down in zip(slide.level_sizes, slide.downsamples, strict=True)
    ]
    values = (
        size_and_time_of(source)[0],
        fingerprint_of(source),
        slide.vendor,
        slide.width,
        slide.height,
        levels,
        slide.objective_power,
    )
    return dict(zip(SOURCE_FACTS, values, strict=True))
