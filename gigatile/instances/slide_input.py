"""The pixels of a slide at the scale of a detector.

Regions for training and windows for detection are cut from the same grid of pixels, so the model
sees the same pixels in both.
"""

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from gigatile.slides.grid import MAX_ENLARGEMENT
from gigatile.slides.reader import Slide, SlideError

# A level is used without resampling if its scale is within this fraction of the requested one.
SAME_SCALE = 0.01
# Pixels that Pillow's bicubic filter reads around a position, per pixel of the result.
_SUPPORT = 2


@dataclass(frozen=True)
class SlideInput:
    """A slide at the scale of a detector.

    Attributes:
        height, width: of the whole slide in pixels of the input.
        across, down: level-0 pixels per pixel of the input.
        level: the level to read.
        level_size: width and height of that level in pixels.
        resampled: whether the level's pixels are resized.
    """

    height: int
    width: int
    across: float
    down: float
    level: int
    level_size: tuple[int, int]
    resampled: bool

    def boxes(self, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the regions of the level to read for windows.

        Args:
            windows: y1, x1, y2, x2 in pixels of the input, (n, 4) int64; inside the slide.

        Returns:
            The boxes of the regions: left, top, width, height in pixels of the level, (n, 4) int64;
            and the span of the window in each region: left, top, right, bottom in pixels of the
            region, (n, 4) float64.
        """
        begin, end = windows[:, 1::-1], windows[:, :1:-1]
        if not self.resampled:
            return np.hstack([begin, end - begin]), np.hstack([begin * 0.0, (end - begin) * 1.0])
        limit = np.array(self.level_size)
        step = limit / (self.width, self.height)
        begin, end = begin * step, end * step
        # With a margin for the filter, a pixel is the same in all windows that show it.
        margin = np.ceil(_SUPPORT * np.maximum(step, 1)) + 1
        first = np.clip(np.floor(begin - margin), 0, None).astype(np.int64)
        last = np.minimum(np.ceil(end + margin), limit).astype(np.int64)
        return np.hstack([first, last - first]), np.hstack([begin - first, end - first])

    def resize(self, region: np.ndarray, span: np.ndarray, height: int, width: int) -> np.ndarray:
        """Return the pixels of a window, (height, width, 3) uint8.

        Args:
            region: pixels of a box from `boxes`, (rows, columns, 3) uint8.
            span: of the window in it, from `boxes`.
            height, width: of the window.
        """
        if not self.resampled:
            return region
        box = (float(span[0]), float(span[1]), float(span[2]), float(span[3]))
        image = Image.fromarray(region).resize((width, height), Image.Resampling.BICUBIC, box=box)
        return np.asarray(image)


def plan_input(
    slide: Slide, mpp: float | None, requested: float | None, setting: str
) -> SlideInput:
    """Return how a slide is read.

    Args:
        slide: the open slide.
        mpp: micrometres per pixel of its level 0, if known.
        requested: micrometres per pixel of the input; None: those of level 0.
        setting: that requests it, for messages.

    Raises:
        SlideError: a scale is requested, and that of the slide is unknown or too coarse.
    """
    factor = 1.0
    if requested is not None:
        if mpp is None:
            raise SlideError(
                f"the slide does not say its scale, which {setting} needs; set the column mpp of "
                "the sheet"
            )
        if mpp > MAX_ENLARGEMENT * requested:
            raise SlideError(
                f"its level 0 has {mpp:g} µm per pixel, too coarse for {setting}: {requested:g}"
            )
        factor = requested / mpp
    level = max(
        (
            number
            for number, scale in enumerate(slide.scales)
            if max(scale) <= factor * (1 + SAME_SCALE)
        ),
        default=0,
    )
    size = slide.level_sizes[level]
    if all(abs(scale / factor - 1) <= SAME_SCALE for scale in slide.scales[level]):
        width, height = size
    else:
        width, height = (max(1, math.floor(side / factor + 0.5)) for side in _size(slide))
    return SlideInput(
        height=height,
        width=width,
        across=slide.width / width,
        down=slide.height / height,
        level=level,
        level_size=size,
        resampled=(width, height) != size,
    )


def _size(slide: Slide) -> tuple[int, int]:
    return slide.width, slide.height
