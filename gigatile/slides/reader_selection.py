"""Select the reader of a slide's tiles: native JPEG tiles if they equal OpenSlide's pixels."""

from pathlib import Path

import numpy as np

from gigatile.slides.grid import Grid
from gigatile.slides.reader import RegionError, Slide, SlideError
from gigatile.slides.regions import TiffRegions
from gigatile.slides.state import ReaderChoice
from gigatile.slides.tiff import NotTiled, TiffLevel

# Number of regions in which native tiles must equal OpenSlide's pixels before they are used, or a
# fraction of all regions if that is more.
COMPARED, COMPARED_FRACTION = 4, 0.001
# Regions that are tried for each one to compare, because OpenSlide may fail to read some.
TRIED = 4


def choose_reader(
    path: Path, slide: Slide, number: int, boxes: np.ndarray
) -> tuple[ReaderChoice, TiffLevel | None]:
    """Compare both readers on some regions of a level, and choose one.

    Args:
        path: the slide's file.
        slide: the same, open.
        number: of the level.
        boxes: the regions to read: left, top, width, height in pixels of the level, (n, 4) int64;
            n at least 1.

    Returns:
        The choice and, for native tiles, the open level.
    """
    try:
        level = TiffLevel(path, slide, number)
    except NotTiled as reason:
        return ReaderChoice("openslide", str(reason), 0), None
    try:
        choice = _compare(level, slide, number, boxes)
    except BaseException:
        level.close()
        raise
    if choice.by == "openslide":
        level.close()
        return choice, None
    return choice, level


def _compare(level: TiffLevel, slide: Slide, number: int, boxes: np.ndarray) -> ReaderChoice:
    """Read some of the regions with both readers, and return the reader for the others.

    Native tiles are used only if `COMPARED` regions have equal pixels, or all if there are fewer. A
    region counts if the file has data for it and both readers can read it.
    """
    boxes = boxes[level.holds(boxes)]
    needed = min(len(boxes), max(COMPARED, int(len(boxes) * COMPARED_FRACTION)))
    if not needed:
        return ReaderChoice("openslide", "the file has no native tile in the regions to compare", 0)
    sample = boxes[_spread(len(boxes), needed)]
    first_error: RegionError | None = None
    compared = 0
    for box, region in zip(sample.tolist(), TiffRegions(level, sample), strict=True):
        left, top, width, height = box
        try:
            reference = np.asarray(slide.region(left, top, number, width, height))
            pixels = region()
        except RegionError as error:
            first_error = first_error or error
            continue
        compared += 1
        if not np.array_equal(pixels, reference):
            largest = int(np.abs(pixels.astype(int) - reference).max())
            why = (
                f"native tiles differ from OpenSlide's pixels by up to {largest} at ({left}, {top})"
            )
            return ReaderChoice("openslide", why, compared)
        if compared == needed:
            return ReaderChoice("native tiles", None, compared)
    why = (
        f"only {compared} of {needed} regions could be compared with OpenSlide; first error: "
        f"{first_error}"
    )
    return ReaderChoice("openslide", why, compared)


def _spread(count: int, needed: int) -> np.ndarray:
    """Return which of `count` regions to try: `needed` evenly spread ones, then others between."""
    first = np.linspace(0, count - 1, needed).astype(int)
    more = np.linspace(0, count - 1, min(count, TRIED * needed)).astype(int)
    return np.concatenate([first, np.setdiff1d(more, first)])


def check_lossless(grid: Grid, level: TiffLevel | None, choice: ReaderChoice) -> None:
    """Refuse a slide with native tiles that cannot be stored unchanged.

    Raises:
        SlideError: they are not aligned with the grid, or are not JPEG.
    """
    setting = "tiles.encoding: lossless stores the slide's native JPEG tiles unchanged"
    if level is None:
        raise SlideError(f"{setting}, but they cannot be read directly: {choice.why}")
    native = (level.tile_width, level.tile_height)
    steps = (grid.extent / grid.scale[0], grid.extent / grid.scale[1])
    drift = max(abs(step - grid.size) for step in steps) * max(grid.columns, grid.rows)
    if native != (grid.size, grid.size) or grid.resampled or drift >= 0.5:
        raise SlideError(
            f"{setting}; native tiles have {native[0]}×{native[1]} px, but tiles.size is "
            f"{grid.size} px, which spans {steps[0]:g}×{steps[1]:g} px of level {grid.level}"
        )
