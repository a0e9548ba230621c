"""How a slide's tiles are read: its own JPEG tiles as they are, where that equals OpenSlide."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gigatile.slides.grid import Grid
from gigatile.slides.reader import RegionError, Slide, SlideError
from gigatile.slides.regions import TiffRegions
from gigatile.slides.tiff import NotTiled, TiffLevel

# Before own tiles are used, this many places, and one of a thousand, must equal OpenSlide's pixels.
COMPARED, COMPARED_SHARE = 4, 0.001
# Places that are tried for each place that has to be compared: OpenSlide cannot read all of them.
TRIED = 4


@dataclass(frozen=True)
class Reading:
    """How the tiles of a slide, or its overview, are read.

    Attributes:
        by: `own tiles`, the file's own tiles decoded once each, or `openslide`.
        why: why it has to be OpenSlide, else None.
        compared: tiles or places that were compared, pixel by pixel; at least `COMPARED`, or all of
            fewer, where `by` is `own tiles`.
    """

    by: str
    why: str | None
    compared: int


def choose_reading(
    path: Path, slide: Slide, number: int, boxes: np.ndarray
) -> tuple[Reading, TiffLevel | None]:
    """Compare both ways on some regions of a level, and return the one to go.

    Args:
        path: the slide's file.
        slide: the same, open.
        number: of the level.
        boxes: what is to be read: left, top, width, height in pixels of the level, (n, 4) int64;
            n at least 1.

    Returns:
        How to read, and for its own tiles the level, open.
    """
    try:
        level = TiffLevel(path, slide, number)
    except NotTiled as reason:
        return Reading("openslide", str(reason), 0), None
    try:
        reading = _compared(level, slide, number, boxes)
    except BaseException:
        level.close()
        raise
    if reading.by == "openslide":
        level.close()
        return reading, None
    return reading, level


def _compared(level: TiffLevel, slide: Slide, number: int, boxes: np.ndarray) -> Reading:
    """Read some of the boxes both ways, and return which way to read the rest.

    Own tiles are used only if `COMPARED` places have equal pixels, or all of fewer boxes. A place
    counts where the file holds pixels and both ways can read it.
    """
    boxes = boxes[level.holds(boxes)]
    needed = min(len(boxes), max(COMPARED, int(len(boxes) * COMPARED_SHARE)))
    if not needed:
        return Reading("openslide", "the file holds no own tile of the places to compare", 0)
    sample = boxes[_spread(len(boxes), needed)]
    fault: RegionError | None = None
    compared = 0
    for box, region in zip(sample.tolist(), TiffRegions(level, sample), strict=True):
        left, top, width, height = box
        try:
            reference = np.asarray(slide.region(left, top, number, width, height))
            pixels = region()
        except RegionError as error:
            fault = fault or error
            continue
        compared += 1
        if not np.array_equal(pixels, reference):
            most = int(np.abs(pixels.astype(int) - reference).max())
            why = f"its own tiles differ from OpenSlide's by up to {most} at ({left}, {top})"
            return Reading("openslide", why, compared)
        if compared == needed:
            return Reading("own tiles", None, compared)
    why = (
        f"only {compared} of {needed} places could be compared with OpenSlide; first error: {fault}"
    )
    return Reading("openslide", why, compared)


def _spread(count: int, needed: int) -> np.ndarray:
    """Return which of `count` places to try: `needed` evenly spread ones, then others between."""
    first = np.linspace(0, count - 1, needed).astype(int)
    more = np.linspace(0, count - 1, min(count, TRIED * needed)).astype(int)
    return np.concatenate([first, np.setdiff1d(more, first)])


def check_lossless(grid: Grid, level: TiffLevel | None, reading: Reading) -> None:
    """Refuse a slide whose own tiles cannot be stored as they are.

    Raises:
        SlideError: they do not line up with the grid, or are no JPEG tiles.
    """
    wish = "tiles.encoding: lossless takes a slide's own JPEG tiles as they are"
    if level is None:
        raise SlideError(f"{wish}, and these cannot be read so: {reading.why}")
    own = (level.tile_width, level.tile_height)
    steps = (grid.extent / grid.scale[0], grid.extent / grid.scale[1])
    drift = max(abs(step - grid.size) for step in steps) * max(grid.columns, grid.rows)
    if own != (grid.size, grid.size) or grid.resampled or drift >= 0.5:
        raise SlideError(
            f"{wish}; its own have {own[0]}×{own[1]} px, where a tile has {grid.size} px and spans "
            f"{steps[0]:g}×{steps[1]:g} px of level {grid.level}"
        )
