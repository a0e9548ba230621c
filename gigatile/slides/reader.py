"""A slide as the rest of Gigatile sees it: its size, scale and levels, and RGB regions of it."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openslide
from PIL import Image

# Regions are read in blocks of at most this side, so that a slide without a pyramid
# costs time and not memory.
BLOCK = 2048
# A pixel counts as square where its sides differ by less than this share.
SQUARE = 0.01


class SlideError(Exception):
    """A slide cannot be used; the message is the reason that its state records."""


class Slide:
    """An open slide.

    Attributes:
        width, height: size of level 0, in pixels.
        scales: per level, the pixels of level 0 that one of its pixels spans, across and down.
        downsamples: per level, the mean of both, which is what OpenSlide reckons with.
        vendor, objective_power: as the file tells them, or None.
    """

    def __init__(self, handle: openslide.OpenSlide, path: Path) -> None:
        self._handle = handle
        self._path = path
        self.width, self.height = handle.dimensions
        self.level_sizes: tuple[tuple[int, int], ...] = handle.level_dimensions
        self.downsamples: tuple[float, ...] = handle.level_downsamples
        self.scales = [(self.width / wide, self.height / high) for wide, high in self.level_sizes]
        self.vendor = handle.properties.get(openslide.PROPERTY_NAME_VENDOR)
        self.objective_power = handle.properties.get(openslide.PROPERTY_NAME_OBJECTIVE_POWER)

    @property
    def mpp(self) -> float | None:
        """Micrometres per pixel of level 0 as the file tells it, or None.

        Raises:
            SlideError: the pixels are not square.
        """
        try:
            across = float(self._handle.properties[openslide.PROPERTY_NAME_MPP_X])
            down = float(self._handle.properties[openslide.PROPERTY_NAME_MPP_Y])
        except (KeyError, ValueError):
            return None
        if not (0 < across < math.inf and 0 < down < math.inf):
            return None
        if abs(across - down) > SQUARE * max(across, down):
            raise SlideError(f"its pixels are not square: {across} by {down} µm")
        return (across + down) / 2 if across != down else across

    def region(self, left: int, top: int, level: int, width: int, height: int) -> Image.Image:
        """Read RGB pixels of one level over white.

        Args:
            left, top: top-left corner in pixels of that level.
            level: the level to read.
            width, height: size in pixels of that level.

        Raises:
            SlideError: the file cannot be read there.
        """
        # OpenSlide takes the corner in pixels of level 0 and divides it by the mean downsample. On
        # a long slide that is far from the scale along its length, so undo just this division.
        down = self.downsamples[level]
        try:
            region = self._handle.read_region(
                (round(left * down), round(top * down)), level, (width, height)
            )
        except openslide.OpenSlideError as error:
            raise SlideError(
                f"it opens, but reading {width}×{height} px of level {level} at ({left}, {top}) "
                f"fails: {_told(error, self._path)}"
            ) from None
        # Places that no scanner saw are transparent; they are glass to everyone downstream.
        white = Image.new("RGB", region.size, (255, 255, 255))
        white.paste(region, mask=region.getchannel("A"))
        return white

    def overview(self, downsample: float) -> tuple[np.ndarray, tuple[float, float]]:
        """Read the whole slide at low resolution.

        Args:
            downsample: wanted pixels of level 0 per pixel; the result is at least as fine.

        Returns:
            RGB pixels, (height, width, 3) uint8, and how many pixels of level 0 one of them spans,
            across and down. The last row and column may reach over the slide's edge.
        """
        coarser = [max(scale) for scale in self.scales]
        level = max(i for i, down in enumerate(coarser) if i == 0 or down <= downsample)
        factor = max(1, int(downsample / coarser[level] + 1e-6))
        width, height = self.level_sizes[level]
        block = max(1, BLOCK // factor) * factor
        picture = np.empty((-(-height // factor), -(-width // factor), 3), np.uint8)
        for top in range(0, height, block):
            for left in range(0, width, block):
                part = self.region(
                    left, top, level, min(block, width - left), min(block, height - top)
                )
                pixels = np.asarray(part.reduce(factor) if factor > 1 else part)
                rows, columns = pixels.shape[:2]
                row, column = top // factor, left // factor
                picture[row : row + rows, column : column + columns] = pixels
        across, down = self.scales[level]
        return picture, (factor * across, factor * down)


@contextlib.contextmanager
def open_slide(path: Path) -> Iterator[Slide]:
    """Open a slide for one process; a handle is never shared over a fork.

    Raises:
        SlideError: the file is missing, is no slide, or is damaged.
    """
    path = Path(path)
    if not path.exists():
        raise SlideError("the file does not exist")
    if path.is_dir():
        raise SlideError("it is a folder, not a file")
    try:
        handle = openslide.OpenSlide(path)
    except openslide.OpenSlideUnsupportedFormatError:
        raise SlideError(
            f"no slide format that OpenSlide knows ({path.stat().st_size} bytes)"
        ) from None
    except openslide.OpenSlideError as error:
        raise SlideError(f"it cannot be opened: {_told(error, path)}") from None
    except OSError as error:
        raise SlideError(f"it cannot be opened: {error.strerror or error}") from None
    with handle:
        yield Slide(handle, path)


def _told(error: openslide.OpenSlideError, path: Path) -> str:
    """Return OpenSlide's message without the folder: a reason is the same wherever slides lie."""
    return str(error).replace(str(path), path.name)
