"""Windows of a picture from which an encoder computes the same embeddings as from the whole.

A window contains the receptive field of its outputs, as far as it is inside the picture. Layers pad
a window with zeros at its edges, so outputs near an edge that is not one of the picture are wrong;
these are cropped. The remaining ones are exact if each layer pads the window by the same number of
pixels as the picture. `same` pads by the size modulo the stride, so the start of a window is a
multiple of the total stride, and its size equals the picture's modulo the total stride.
"""

from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from gigatile.whole_slides.receptive_field import Field, Fields


@dataclass(frozen=True)
class Span:
    """A window along an axis.

    Attributes:
        outputs: the outputs [start, stop) that the window computes.
        pixels: the pixels [start, stop) that it reads.
        offset: the index of its first output among those that the encoder returns.
    """

    outputs: tuple[int, int]
    pixels: tuple[int, int]
    offset: int


@dataclass(frozen=True)
class Window:
    """A window of a picture."""

    rows: Span
    columns: Span

    @property
    def area(self) -> int:
        """The number of pixels."""
        (top, bottom), (left, right) = self.rows.pixels, self.columns.pixels
        return (bottom - top) * (right - left)


def divide(fields: Fields, height: int, width: int, side: int) -> list[Window]:
    """Return windows that compute each output once, row by row.

    Args:
        fields: the receptive field for this picture.
        height, width: of the picture, in pixels.
        side: outputs of a window along each axis, at most.
    """
    sizes = (height, width)
    axes = [divide_axis(field, size, side) for field, size in zip(fields, sizes, strict=True)]
    return [Window(rows, columns) for rows, columns in product(*axes)]


def around(window: Window, fields: Fields, height: int, width: int, needed: np.ndarray) -> Window:
    """Return the smallest window around the needed outputs of a window.

    Args:
        window: of the picture.
        fields, height, width: as for `divide`.
        needed: (rows, columns) bool of the window's outputs; at least one.
    """
    rows, columns = (
        span(field, size, part.outputs[0] + int(some[0]), part.outputs[0] + int(some[-1]) + 1)
        for field, size, part, some in zip(
            fields,
            (height, width),
            (window.rows, window.columns),
            (np.flatnonzero(needed.any(axis=axis)) for axis in (1, 0)),
            strict=True,
        )
    )
    return Window(rows, columns)


def window_side(fields: Fields, side: int) -> int:
    """Return how many outputs along each axis a window of `side` pixels computes; at least 1."""
    sizes = ((side - (field.last - field.first + 1)) // field.stride + 1 for field in fields)
    return max(1, min(sizes))


def divide_axis(field: Field, size: int, side: int) -> list[Span]:
    """Return spans of at most `side` outputs each, of even size: so ranks get even shares."""
    spans = -(-field.size // side)
    bounds = [number * field.size // spans for number in range(spans + 1)]
    return [span(field, size, start, stop) for start, stop in pairwise(bounds)]


def span(field: Field, size: int, start: int, stop: int) -> Span:
    """Return the span that computes the outputs [start, stop) of a picture of `size` pixels."""
    first, end = field.pixels(start, stop)
    # A field may lie outside the picture: the padding of a large kernel. Then any pixels will do,
    # as long as each layer gets as many as it needs.
    extent = field.last - field.first + 1
    first = min(max(first, 0), max(size - extent, 0)) // field.stride * field.stride
    end = min(max(end, first + extent), size)
    end = size - (size - end) // field.stride * field.stride
    return Span((start, stop), (first, end), start - first // field.stride)
