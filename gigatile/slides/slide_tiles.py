"""The tiles of one slide, in memory: which tiles are kept, their pixels, and facts about both."""

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from gigatile.records import Tile, encode_tile
from gigatile.settings.tiles import TileSettings
from gigatile.slides.appearance import AppearanceSum
from gigatile.slides.areas import area_fractions
from gigatile.slides.grid import Grid, plan_grid
from gigatile.slides.index import MEASURES, TileIndex
from gigatile.slides.opening import open_source
from gigatile.slides.overview import read_overview
from gigatile.slides.pictures import render_overview
from gigatile.slides.reader import Slide, SlideError
from gigatile.slides.reader_selection import check_lossless, choose_reader
from gigatile.slides.regions import (
    Region,
    TiffRegions,
    openslide_reader,
    openslide_regions,
    with_openslide_fallback,
)
from gigatile.slides.scale import find_scale
from gigatile.slides.slide_source import describe_source
from gigatile.slides.stain_reference import plan_normalisation
from gigatile.slides.state import (
    SlideFacts,
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

# Unreadable parts of the overview are assumed to be tissue, up to this share of the slide.
MAX_UNREADABLE_OVERVIEW = 0.25
# Unreadable tiles that the state lists with their reasons; the tile table has all of them.
MAX_UNREADABLE_LISTED = 10
# Decoded tiles that may be in memory per core, and the limit in bytes for all cores.
AHEAD_PER_CORE = 4
AHEAD_BYTES = 128 << 20
# The largest region that is read for one tile.
MAX_REGION_BYTES = 400 << 20
# Seconds between progress reports.
REPORT_INTERVAL = 1.0

# Takes the facts known so far; None: no new facts.
ReportProgress = Callable[[SlideFacts | None], None]


class SlideTiles:
    """The tiles of one slide. Use it once: find the candidates, then iterate over the tiles.

    Attributes:
        facts: what is known about the slide so far.
        picture: overview of the slide.
        mask: its tissue.
        index: the table of all tiles of the grid; None until the tissue is known.
    """

    def __init__(
        self,
        source: Path,
        slide_id: str,
        sheet_mpp: float | None,
        settings: TileSettings,
        report_progress: ReportProgress = lambda facts: None,
    ) -> None:
        """Set up the tiling; no file is opened yet.

        Args:
            source: the slide's file.
            slide_id: the slide's id.
            sheet_mpp: micrometres per pixel of level 0; None: that of the file.
            settings: size, scale and quality of the tiles, and which of them are kept.
            report_progress: is called at least every few seconds of work.
        """
        # Ends OpenCV's threads: threads are started here, one per core, and a fork of a process
        # with OpenCV's threads hangs.
        cv2.setNumThreads(1)
        self._source, self._slide_id, self._sheet_mpp = source, slide_id, sheet_mpp
        self._settings, self._report_progress = settings, report_progress
        self.picture = Image.new("RGB", (1, 1), (255, 255, 255))
        self.mask = Image.new("1", (1, 1))
        self.index: TileIndex | None = None
        self.facts = SlideFacts.unopened(slide_id, source.name, sheet_mpp)

    def encoded(self, path: Path, scratch: Path | None) -> Generator[bytes]:
        """Yield the records of the tiles that are kept.

        Args:
            path: of the file that is read: the slide's, or a local copy.
            scratch: a folder on a local disk, for a slide in a store.

        Raises:
            SlideError: the slide cannot be used, or no tile is kept.
        """
        with open_source(path, scratch, lambda: self._report_progress(None), print) as slide:
            yield from map(encode_tile, self.tiles(slide.path, slide))

    def tiles(self, path: Path, slide: Slide) -> Iterator[Tile]:
        """Yield the tiles that are kept.

        Args:
            path: of the file that is read: the slide's, or a local copy.
            slide: the open file.

        Raises:
            SlideError: the slide cannot be used, or no tile is kept.
        """
        facts, settings, report_progress = self.facts, self._settings, self._report_progress
        facts.source = describe_source(self._source, slide)
        check_directories(path, slide)
        scale = find_scale(slide, self._sheet_mpp, settings.objectives)
        facts.mpp, facts.mpp_from = scale.mpp, scale.source
        facts.mpp_by_source = dict(scale.by_source)
        facts.contradictions = list(scale.contradictions)
        grid = plan_grid(slide, scale.mpp, settings)
        facts.grid = TileGrid(**asdict(grid))
        report_progress(facts)
        downsample = max(1.0, grid.extent / MASK_PIXELS_PER_TILE)
        overview = read_overview(
            path,
            slide,
            downsample,
            MASK_LONGEST,
            lambda: report_progress(None),
            MAX_UNREADABLE_OVERVIEW,
        )
        facts.overview = overview.reader
        self.picture = render_overview(overview.pixels, overview.downsample, slide)
        report_progress(None)
        sizes = region_sizes(settings, scale.mpp, overview.downsample)
        tissue = find_tissue(overview.pixels, *sizes)
        self.mask = render_overview(tissue.mask, overview.downsample, slide)
        facts.illumination, facts.tissue_threshold = tissue.illumination, tissue.threshold
        index = self.index = TileIndex(grid.corners(), area_fractions(overview, tissue, grid))
        rules = FilterRules(settings, tissue.illumination)
        for tile, verdict in rules.judge_areas(index.areas).items():
            index.add_verdict(tile, verdict)
        candidates = index.kept()
        facts.tiles = TileCounts(kept=len(candidates), **count_tiles(index.dropped, index.marks))
        report_progress(facts)
        if not len(candidates):
            raise SlideError(
                no_tiles_reason(index.dropped, index.areas["tissue"], settings.max_background)
            )
        with contextlib.ExitStack() as close:
            yield from self._extract(path, slide, candidates, grid, rules, close)

    def _extract(
        self,
        path: Path,
        slide: Slide,
        candidates: np.ndarray,
        grid: Grid,
        rules: FilterRules,
        close: contextlib.ExitStack,
    ) -> Iterator[Tile]:
        """Read and measure the candidate tiles; yield those that are kept."""
        facts, settings, index = self.facts, self._settings, self.index
        report_progress = self._report_progress
        assert index is not None
        assert facts.illumination is not None
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
        read = openslide_reader(path, grid.level, handles, slide.parts)

        def regions(boxes: np.ndarray) -> Iterator[Region]:
            if level is None:
                return openslide_regions(read, boxes)
            return with_openslide_fallback(TiffRegions(level, boxes, pool), read, boxes)

        normalisation = plan_normalisation(
            settings, facts.illumination, grid, regions, boxes, spans, lambda: report_progress(None)
        )
        facts.stain = None if normalisation is None else normalisation.to_state()
        report_progress(facts)
        normaliser = None if normalisation is None else normalisation.normaliser
        encoder = TileEncoder(grid, settings.quality, rules, normaliser)
        ahead = max(cores, min(AHEAD_PER_CORE * cores, AHEAD_BYTES // region_bytes))
        results = (
            map_in_order(encoder.keep_native, read_native_tiles(level, boxes), pool, ahead)
            if level is not None and lossless
            else map_in_order(encoder.encode, zip(regions(boxes), spans, strict=True), pool, ahead)
        )
        yield from self._kept(candidates, grid, results)
        kept = len(index.corners) - len(index.dropped)
        facts.tiles = TileCounts(kept=kept, **count_tiles(index.dropped, index.marks))
        if not kept:
            raise SlideError(
                no_tiles_reason(index.dropped, index.areas["tissue"], settings.max_background)
            )

    def _kept(
        self, candidates: np.ndarray, grid: Grid, results: Iterable[TileResult]
    ) -> Iterator[Tile]:
        index = self.index
        assert index is not None
        max_unreadable = self._settings.max_unreadable * len(candidates)
        unreadable, appearance = 0, AppearanceSum()
        last_report = time.monotonic()
        for tile, result in zip(candidates.tolist(), results, strict=True):
            if time.monotonic() - last_report > REPORT_INTERVAL:
                last_report = time.monotonic()
                self._report_progress(None)
            x, y = index.corners[tile].tolist()
            index.add_verdict(tile, result.verdict)
            if result.measures is not None:
                for name in MEASURES:
                    index.measures[name][tile] = getattr(result.measures, name)
            if result.unreadable:
                unreadable += 1
                if len(self.facts.unreadable) < MAX_UNREADABLE_LISTED:
                    listed = UnreadableTile(x=x, y=y, reason=result.unreadable)
                    self.facts.unreadable.append(listed)
                if unreadable > max_unreadable:
                    raise SlideError(
                        f"{unreadable} of its tiles cannot be read, more than "
                        f"{self._settings.max_unreadable:.0%} of the {len(candidates)} with "
                        f"tissue; at ({x}, {y}): {result.unreadable}"
                    )
            if result.image is not None:
                if result.measures is not None and result.colour is not None:
                    appearance.add(result.colour, result.measures)
                tissue = float(index.areas["tissue"][tile])
                yield Tile(result.image, self._slide_id, x, y, grid.extent, grid.mpp, tissue)
        self.facts.appearance = appearance.figures()
