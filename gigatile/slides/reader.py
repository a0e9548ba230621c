"""Open a slide with OpenSlide: its size, levels and properties, and RGB regions of it."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import openslide
from PIL import Image

from gigatile.slides.dicom import advice_on_dicom

# OpenSlide's renderer works in 1/256 of a pixel. Within less than half of that from a whole pixel,
# it does not interpolate between neighbouring pixels.
WHOLE_PIXEL = 1 / 520


class SlideError(Exception):
    """A slide cannot be used; the message is the reason in its state."""


class RegionError(SlideError):
    """One region of a slide cannot be read; others may be readable."""


class Parts(Protocol):
    """The parts of a slide's file that are on this machine.

    Attributes:
        is_whole: whether all of it is there.
    """

    is_whole: bool

    def fetch_region(
        self, size: tuple[int, int], left: int, top: int, width: int, height: int
    ) -> None:
        """Fetch what a region needs of the level with a size in pixels."""

    def fetch_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch ranges of the file: begin and end of each."""

    def fetch_whole(self) -> None:
        """Fetch all of it."""


class Slide:
    """An open slide.

    Attributes:
        path: of the file that is read: the slide's, or a local copy.
        width: of level 0, in pixels.
        height: of level 0, in pixels.
        level_sizes: width and height of each level, in pixels.
        scales: level-0 pixels per pixel of each level, across and down.
        downsamples: OpenSlide's downsample of each level, the mean of both scales.
        properties: of the file, by OpenSlide's names.
        vendor, objective_power: from the properties, or None.
        parts: of a slide in a store, which are fetched before they are read; None: a local file.
    """

    def __init__(self, handle: openslide.OpenSlide, path: Path, parts: Parts | None = None) -> None:
        self._handle: openslide.OpenSlide | None = handle
        self.path = path
        self.parts = parts
        self._process = os.getpid()
        self.width, self.height = handle.dimensions
        self.level_sizes: tuple[tuple[int, int], ...] = handle.level_dimensions
        self.downsamples: tuple[float, ...] = handle.level_downsamples
        self.scales = [(self.width / wide, self.height / high) for wide, high in self.level_sizes]
        self.properties = _readable(handle.properties)
        self.vendor = self.properties.get(openslide.PROPERTY_NAME_VENDOR)
        self.objective_power = self.properties.get(openslide.PROPERTY_NAME_OBJECTIVE_POWER)
        self._anchors: dict[int, np.ndarray] = {}

    def region(self, left: int, top: int, level: int, width: int, height: int) -> Image.Image:
        """Return the RGB pixels of a region of one level on white, without interpolation.

        Args:
            left: the left edge of the region, in pixels of that level.
            top: the top edge, in pixels of that level.
            level: the level to read.
            width: in pixels of that level.
            height: in pixels of that level.

        Raises:
            RegionError: the region cannot be read.
            RuntimeError: the slide was opened by another process. After a fork, both processes
                would share the file position.
        """
        if os.getpid() != self._process:
            raise RuntimeError(f"{self.path}: opened by process {self._process}; open it again")
        # OpenSlide expects the corner in level-0 pixels and divides it by the downsample. If it is
        # fractional, most corners fall between pixels of the level, and OpenSlide interpolates. So
        # the region is read from the last corner before it that falls on a pixel.
        column, row = self._anchor(left, level), self._anchor(top, level)
        size = (left - column + width, top - row + height)
        down = self.downsamples[level]
        corner = (round(column * down), round(row * down))
        if self._handle is None:
            raise SlideError("it cannot be opened again")
        if self.parts is not None:
            self.parts.fetch_region(self.level_sizes[level], column, row, *size)
        try:
            region = self._handle.read_region(corner, level, size)
        except openslide.OpenSlideError as error:
            if self.parts is not None and not self.parts.is_whole:
                # Perhaps for want of a part that was not fetched.
                self.parts.fetch_whole()
                self._reopen("it opens, but reading fails")
                return self.region(left, top, level, width, height)
            reason = (
                f"it opens, but reading {width}×{height} px of level {level} at ({left}, {top}) "
                f"fails: {_message(error, self.path)}"
            )
            self._reopen(reason)
            raise RegionError(reason) from None
        if size != (width, height):
            region = region.crop((left - column, top - row, *size))
        # Areas that were not scanned are transparent; they become white, like glass.
        white = Image.new("RGB", region.size, (255, 255, 255))
        white.paste(region, mask=region.getchannel("A"))
        return white

    def _reopen(self, reason: str) -> None:
        """Open the file again: after an error, the handle cannot be used any more."""
        self.close()
        try:
            self._handle = openslide.OpenSlide(self.path)
        except (openslide.OpenSlideError, OSError):
            raise SlideError(f"{reason}; then it cannot be opened again") from None

    def close(self) -> None:
        """Close the file; it may be called twice."""
        if self._handle is not None:
            self._handle.close()
        self._handle = None

    def _anchor(self, position: int, level: int) -> int:
        """Return the last row or column up to `position` that OpenSlide reads exactly."""
        down = self.downsamples[level]
        if down == round(down):
            return position
        if level not in self._anchors:
            positions = np.arange(max(self.level_sizes[level]) + 1)
            error = np.abs(np.rint(positions * down) / down - positions)
            self._anchors[level] = np.flatnonzero(error < WHOLE_PIXEL)
        anchors = self._anchors[level]
        return int(anchors[np.searchsorted(anchors, position, side="right") - 1])


@contextlib.contextmanager
def open_slide(path: Path, parts: Parts | None = None) -> Iterator[Slide]:
    """Open a slide; it must not be used in a forked process.

    Args:
        path: the file; of a slide in a store, its partial copy.
        parts: see `Slide`.

    Raises:
        SlideError: the file is missing, is not a slide, or is damaged.
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
        advice = advice_on_dicom(path, None)
        reason = f"not a slide format that OpenSlide supports ({size} bytes)"
        raise SlideError(f"{reason}{advice}") from None
    except openslide.OpenSlideError as error:
        reason = _message(error, path)
        advice = advice_on_dicom(path, reason)
        raise SlideError(f"it cannot be opened: {reason}{advice}") from None
    except OSError as error:
        raise SlideError(f"it cannot be opened: {error.strerror or error}") from None
    slide = Slide(handle, path, parts)
    try:
        yield slide
    finally:
        slide.close()


def _readable(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that are text; in a damaged file, some may not be."""
    readable = {}
    for name in properties:
        with contextlib.suppress(KeyError, UnicodeDecodeError):
            readable[name] = properties[name]
    return readable


def _message(error: openslide.OpenSlideError, path: Path) -> str:
    """Return OpenSlide's message without folders, so that reasons don't depend on them."""
    return str(error).replace(f"{path.parent}{os.sep}", "").replace(str(path), path.name)
