"""A slide as the rest of Gigatile sees it: its size, scale and levels, and RGB regions of it."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openslide
from PIL import Image

# Regions are read in blocks of at most this side, so that a slide without a pyramid
# costs time and not memory.
BLOCK = 2048
# Where a block cannot be read, its quarters are tried, down to this side.
LEAST_BLOCK = 32
# OpenSlide's renderer counts places in 1/256 of a pixel: nearer than half of that to a whole pixel,
# none is blended with its neighbours.
WHOLE = 1 / 520


class SlideError(Exception):
    """A slide cannot be used; the message is the reason that its state records."""


class RegionError(SlideError):
    """One region of a slide cannot be read; others may."""


@dataclass
class Overview:
    """A slide at low resolution.

    Attributes:
        pixels: RGB, (height, width, 3) uint8; white where the slide cannot be read. The last row
            and column may reach over the slide's edge.
        downsample: how many pixels of level 0 one of them spans, across and down.
        unseen: (height, width) bool, true where the slide cannot be read.
        error: what was told of the first such place, None where all was read.
    """

    pixels: np.ndarray
    downsample: tuple[float, float]
    unseen: np.ndarray
    error: RegionError | None = None


class Slide:
    """An open slide.

    Attributes:
        width, height: size of level 0, in pixels.
        scales: per level, the pixels of level 0 that one of its pixels spans, across and down.
        downsamples: per level, the mean of both, which is what OpenSlide reckons with.
        properties: what the file tells, as OpenSlide names it.
        vendor, objective_power: as the file tells them, or None.
    """

    def __init__(self, handle: openslide.OpenSlide, path: Path) -> None:
        self._handle: openslide.OpenSlide | None = handle
        self._path = path
        self._process = os.getpid()
        self.width, self.height = handle.dimensions
        self.level_sizes: tuple[tuple[int, int], ...] = handle.level_dimensions
        self.downsamples: tuple[float, ...] = handle.level_downsamples
        self.scales = [(self.width / wide, self.height / high) for wide, high in self.level_sizes]
        self.properties = dict(handle.properties)
        self.vendor = self.properties.get(openslide.PROPERTY_NAME_VENDOR)
        self.objective_power = self.properties.get(openslide.PROPERTY_NAME_OBJECTIVE_POWER)
        self._anchors: dict[int, np.ndarray] = {}

    def region(self, left: int, top: int, level: int, width: int, height: int) -> Image.Image:
        """Read RGB pixels of one level over white, exactly as the level holds them.

        Args:
            left, top: top-left corner in pixels of that level.
            level: the level to read.
            width, height: size in pixels of that level.

        Raises:
            RegionError: the file cannot be read there.
            RuntimeError: it was opened by another process: a handle that a fork has copied reads
                from where the other one is.
        """
        if os.getpid() != self._process:
            raise RuntimeError(f"{self._path}: opened by process {self._process}; open it anew")
        # OpenSlide takes a corner in pixels of level 0 and divides it by the mean downsample. Where
        # that is no whole number, few corners come to lie on a pixel of the level, and at others it
        # blends neighbouring pixels. So the region begins at the next corner that does.
        column, row = self._anchor(left, level), self._anchor(top, level)
        size = (left - column + width, top - row + height)
        down = self.downsamples[level]
        corner = (round(column * down), round(row * down))
        if self._handle is None:
            raise SlideError("it cannot be opened again")
        try:
            region = self._handle.read_region(corner, level, size)
        except openslide.OpenSlideError as error:
            reason = (
                f"it opens, but reading {width}×{height} px of level {level} at ({left}, {top}) "
                f"fails: {_told(error, self._path)}"
            )
            # The handle reads nothing more after an error.
            self.close()
            try:
                self._handle = openslide.OpenSlide(self._path)
            except (openslide.OpenSlideError, OSError):
                raise SlideError(f"{reason}; then it cannot be opened again") from None
            raise RegionError(reason) from None
        if size != (width, height):
            region = region.crop((left - column, top - row, *size))
        # Places that no scanner saw are transparent; they are glass to everyone downstream.
        white = Image.new("RGB", region.size, (255, 255, 255))
        white.paste(region, mask=region.getchannel("A"))
        return white

    def overview(
        self, downsample: float, longest: int = 8192, tell: Callable[[], None] = lambda: None
    ) -> Overview:
        """Read the whole slide at low resolution.

        Args:
            downsample: wanted pixels of level 0 per pixel; the result is at least as fine.
            longest: pixels that the result has at most a side, also if that is coarser.
            tell: is called each time that a part of it was read.
        """
        coarser = [max(scale) for scale in self.scales]
        level = max(i for i, down in enumerate(coarser) if i == 0 or down <= downsample)
        width, height = self.level_sizes[level]
        factor = max(1, int(downsample / coarser[level] + 1e-6), -(-max(width, height) // longest))
        block = max(1, BLOCK // factor) * factor
        shape = (-(-height // factor), -(-width // factor))
        across, down = self.scales[level]
        found = Overview(
            np.full((*shape, 3), 255, np.uint8),
            (factor * across, factor * down),
            np.zeros(shape, bool),
        )
        for top in range(0, height, block):
            for left in range(0, width, block):
                size = (min(block, width - left), min(block, height - top))
                self._read_block(found, level, factor, (left, top), size)
                tell()
        return found

    def _read_block(
        self,
        found: Overview,
        level: int,
        factor: int,
        corner: tuple[int, int],
        size: tuple[int, int],
    ) -> None:
        """Read a part of the overview; of what cannot be read, as little as can be told apart."""
        (left, top), (width, height) = corner, size
        row, column = top // factor, left // factor
        here = (
            slice(row, row + -(-height // factor)),
            slice(column, column + -(-width // factor)),
        )
        try:
            part = self.region(left, top, level, width, height)
        except RegionError as error:
            found.error = found.error or error
            # In whole pixels of the overview.
            half = -(-max(size) // (2 * factor)) * factor
            if half >= max(size) or half < LEAST_BLOCK:
                found.unseen[here] = True
                return
            for y in range(top, top + height, half):
                for x in range(left, left + width, half):
                    quarter = (min(half, left + width - x), min(half, top + height - y))
                    self._read_block(found, level, factor, (x, y), quarter)
        else:
            found.pixels[here] = np.asarray(part.reduce(factor) if factor > 1 else part)

    def close(self) -> None:
        """Close the file; twice does no harm."""
        if self._handle is not None:
            self._handle.close()
        self._handle = None

    def _anchor(self, place: int, level: int) -> int:
        """Return the last row or column up to `place` that OpenSlide can begin at exactly."""
        down = self.downsamples[level]
        if down == round(down):
            return place
        if level not in self._anchors:
            places = np.arange(max(self.level_sizes[level]) + 1)
            away = np.abs(np.rint(places * down) / down - places)
            self._anchors[level] = np.flatnonzero(away < WHOLE)
        anchors = self._anchors[level]
        return int(anchors[np.searchsorted(anchors, place, side="right") - 1])


@contextlib.contextmanager
def open_slide(path: Path) -> Iterator[Slide]:
    """Open a slide for one process; a handle is never shared over a fork.

    Raises:
        SlideError: the file is missing, is no slide, or is damaged.
    """
    path = Path(path)
    if path.is_dir():
        raise SlideError("it is a folder, not a file")
    try:
        with path.open("rb"):
            size = path.stat().st_size
        handle = openslide.OpenSlide(path)
    except FileNotFoundError:
        raise SlideError("the file does not exist") from None
    except openslide.OpenSlideUnsupportedFormatError:
        raise SlideError(f"no slide format that OpenSlide knows ({size} bytes)") from None
    except openslide.OpenSlideError as error:
        raise SlideError(f"it cannot be opened: {_told(error, path)}") from None
    except OSError as error:
        raise SlideError(f"it cannot be opened: {error.strerror or error}") from None
    slide = Slide(handle, path)
    try:
        yield slide
    finally:
        slide.close()


def _told(error: openslide.OpenSlideError, path: Path) -> str:
    """Return OpenSlide's message without folders: a reason is the same wherever slides lie."""
    return str(error).replace(f"{path.parent}{os.sep}", "").replace(str(path), path.name)
