"""A slide as the rest of Gigatile sees it: its size, scale and levels, and RGB regions of it."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import openslide
from PIL import Image

from gigatile.slides.dicom import advice_on_dicom

# OpenSlide's renderer counts places in 1/256 of a pixel: nearer than half of that to a whole pixel,
# none is blended with its neighbours.
WHOLE = 1 / 520


class SlideError(Exception):
    """A slide cannot be used; the message is the reason that its state records."""


class RegionError(SlideError):
    """One region of a slide cannot be read; others may."""


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
        self.properties = _readable(handle.properties)
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
        advice = advice_on_dicom(path, None)
        raise SlideError(f"no slide format that OpenSlide knows ({size} bytes){advice}") from None
    except openslide.OpenSlideError as error:
        reason = _told(error, path)
        advice = advice_on_dicom(path, reason)
        raise SlideError(f"it cannot be opened: {reason}{advice}") from None
    except OSError as error:
        raise SlideError(f"it cannot be opened: {error.strerror or error}") from None
    slide = Slide(handle, path)
    try:
        yield slide
    finally:
        slide.close()


def _readable(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties whose names are text; of a damaged file some are not."""
    found = {}
    for name in properties:
        with contextlib.suppress(KeyError, UnicodeDecodeError):
            found[name] = properties[name]
    return found


def _told(error: openslide.OpenSlideError, path: Path) -> str:
    """Return OpenSlide's message without folders: a reason is the same wherever slides lie."""
    return str(error).replace(f"{path.parent}{os.sep}", "").replace(str(path), path.name)
