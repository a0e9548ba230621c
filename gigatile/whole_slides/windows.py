"""Windows of a picture from which an encoder computes the same embeddings as from the whole.

A window contains the receptive field of its outputs, as far as it is inside the picture. Layers pad
a window with zeros at its edges, so outputs near an edge that is not one of the picture are wrong;
these are cropped. The remaining ones are exact if each layer pads the window by the same number of
pixels as the picture. `same` pads by the size modulo the stride, so the start of a window is a
multiple of the total stride, and its size equals the picture's modulo the total stride.
"""

from dataclasses import dataclass
from itertools import product

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


def divide_axis(field: Field, size: int, side: int) -> list[Span]:
    """Return spans of at most `side` outputs each; the last one may be shorter."""
    starts = range(0, field.size, side)
    return [_span(field, size, start, min(start + side, field.size)) for start in starts]


def _span(field: Field, size: int, start: int, stop: int) -> Span:
    first, end = field.pixels(start, stop)
    # A field may lie outside the picture: the padding of a large kernel. Then any pixels will do.
    first = min(max(first, 0), size - 1) // field.stride * field.stride
    end = min(max(end, first + 1), size)
    end = size - (size - end) // field.stride * field.stride
    return Span((start, stop), (first, end), start - first // field.stride)
