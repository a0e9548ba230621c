"""The pixels of a slide, put together from its stored tiles.

A slide is the rectangle of its tile grid. Cells without a stored tile are glass. The centres of the
receptive fields decide which positions of the encoder are tissue, and where they are on the slide.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from gigatile.records.tile import decode_jpeg
from gigatile.views import apply_view
from gigatile.whole_slides.receptive_field import Fields
from gigatile.whole_slides.two_passes import Picture
from gigatile.whole_slides.windows import Window, around, divide, window_side

# Grey level of the glass.
GLASS = 255


@dataclass(frozen=True)
class StoredSlide:
    """A slide, read from its stored tiles.

    Attributes:
        cells: (rows, columns) int64, a number for each stored tile; -1 without a tile.
        tile_size: side of a tile in pixels.
        image: returns the JPEG of a tile, by its number.
        view: index of `gigatile.settings.view_names.VIEWS`, in which the slide is seen.
        damaged: returns the error to raise for a tile with a fault.
    """

    cells: np.ndarray
    tile_size: int
    image: Callable[[int], bytes]
    damaged: Callable[[int, str], Exception]
    view: int = 0

    def seen(self) -> np.ndarray:
        """Return `cells` in the view."""
        return apply_view(self.cells[..., None], self.view)[..., 0]

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels, in the view."""
        rows, columns = self.seen().shape
        return rows * self.tile_size, columns * self.tile_size

    def picture(self, fields: Fields, side: int) -> Picture:
        """Return the slide as a picture.

        Args:
            fields: the receptive field of the encoder, for the shape of this slide.
            side: of a window, in pixels.
        """
        cells = self.seen()
        rows, columns = (
            np.floor(field.centres() / self.tile_size).astype(np.int64) for field in fields
        )
        # A position at the border may have its centre outside the slide; it is not pooled.
        inside = ((rows >= 0) & (rows < len(cells)))[:, None] & (
            (columns >= 0) & (columns < cells.shape[1])
        )
        number = cells[np.ix_(rows.clip(0, len(cells) - 1), columns.clip(0, cells.shape[1] - 1))]
        tissue = inside & (number >= 0)

        windows = []
        for window in divide(fields, *self.shape, window_side(fields, side)):
            needed = tissue[slice(*window.rows.outputs), slice(*window.columns.outputs)]
            if needed.any():
                windows.append(around(window, fields, *self.shape, needed))
        return Picture(windows, tissue, partial(self._pixels, cells))

    def _pixels(self, cells: np.ndarray, window: Window) -> np.ndarray:
        """Return the pixels of a window, (height, width, 3) uint8."""
        size = self.tile_size
        (top, bottom), (left, right) = window.rows.pixels, window.columns.pixels
        pixels = np.full((bottom - top, right - left, 3), GLASS, np.uint8)
        for row in range(top // size, -(-bottom // size)):
            for column in range(left // size, -(-right // size)):
                if (number := int(cells[row, column])) < 0:
                    continue
                y, x = row * size - top, column * size - left
                tile = self._tile(number)[
                    max(0, -y) : bottom - top - y, max(0, -x) : right - left - x
                ]
                pixels[max(0, y) : y + size, max(0, x) : x + size] = tile
        return pixels

    def _tile(self, number: int) -> np.ndarray:
        try:
            tile = decode_jpeg(self.image(number))
            if tile.shape != (self.tile_size, self.tile_size, 3):
                side = self.tile_size
                raise ValueError(f"{tile.shape[1]}×{tile.shape[0]} px, expected {side}×{side}")
        except ValueError as error:
            raise self.damaged(number, f"its image: {error}") from None
        return apply_view(tile, self.view)
