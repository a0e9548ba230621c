"""The windows of a slide in which the model runs: which ones show tissue, and their pixels."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np

from gigatile.instances.slide_input import SlideInput
from gigatile.instances.window_grid import WindowGrid
from gigatile.slides.overview import Overview
from gigatile.slides.reader import RegionError, Slide
from gigatile.slides.reader_selection import choose_reader
from gigatile.slides.regions import (
    Region,
    TiffRegions,
    openslide_reader,
    openslide_regions,
    with_openslide_fallback,
)
from gigatile.slides.state import ReaderChoice
from gigatile.slides.tile_extraction import map_in_order
from gigatile.slides.tissue import Tissue

# Windows that are read before the model needs them, per thread.
AHEAD = 4


def windows_with_tissue(
    grid: WindowGrid, source: SlideInput, overview: Overview, tissue: Tissue
) -> np.ndarray:
    """Return which windows show tissue, or a part of the overview that cannot be read: (n,) bool.

    Args:
        grid: the windows, in pixels of the input.
        source: the scale of these pixels.
        overview: of the slide.
        tissue: on the overview.
    """
    mask = tissue.mask | overview.unreadable
    integral = cv2.integral(mask.view(np.uint8), sdepth=cv2.CV_32S)
    height, width = mask.shape
    scale = np.array([source.down, source.across] * 2) / np.array(overview.downsample[::-1] * 2)
    y1, x1, y2, x2 = (grid.boxes * scale).T
    top, left = (
        np.clip(np.floor(low), 0, limit - 1).astype(int)
        for low, limit in ((y1, height), (x1, width))
    )
    bottom, right = (
        np.clip(np.ceil(high), 1, limit).astype(int) for high, limit in ((y2, height), (x2, width))
    )
    bottom, right = np.maximum(bottom, top + 1), np.maximum(right, left + 1)
    counts = integral[bottom, right] - integral[top, right]
    return np.asarray(counts - integral[bottom, left] + integral[top, left] > 0)


@contextlib.contextmanager
def open_windows(
    path: Path, slide: Slide, source: SlideInput, windows: np.ndarray, cores: int
) -> Iterator[tuple[ReaderChoice, Iterator[np.ndarray | RegionError]]]:
    """Yield the reader of windows, and an iterator over their pixels, or why they cannot be read.

    Args:
        path: the slide's file.
        slide: the same, open.
        source: how it is read.
        windows: y1, x1, y2, x2 in pixels of the input, row by row: (n, 4) int64, n at least 1.
        cores: threads that read and decode.
    """
    boxes, spans = source.boxes(windows)
    with contextlib.ExitStack() as close:
        choice, level = choose_reader(path, slide, source.level, boxes)
        if level is not None:
            close.callback(level.close)
        # Entered before the pool, so that the files are closed after all threads have ended.
        handles = close.enter_context(contextlib.ExitStack())
        pool = close.enter_context(ThreadPoolExecutor(cores)) if cores > 1 else None
        read = openslide_reader(path, source.level, handles, slide.parts)
        regions: Iterator[Region]
        if level is None:
            regions = openslide_regions(read, boxes)
        else:
            regions = with_openslide_fallback(TiffRegions(level, boxes, pool), read, boxes)

        def pixels(item: tuple[Region, np.ndarray, np.ndarray]) -> np.ndarray | RegionError:
            region, span, (y1, x1, y2, x2) = item
            try:
                return source.resize(region(), span, int(y2 - y1), int(x2 - x1))
            except RegionError as error:
                return error

        items = zip(regions, spans, windows, strict=True)
        yield choice, map_in_order(pixels, items, pool, AHEAD * cores)
