"""Whole images turned, resized and cropped by definition, and random placements of images."""

import numpy as np
from hypothesis import strategies as st

from gigatile.tasks.instance_segmentation.placement import Placement, place_image

COLOUR = np.zeros(6)


def turned(array: np.ndarray, view: int) -> np.ndarray:
    array = np.rot90(array, view % 4)
    return np.flip(array, axis=1) if view > 3 else array


def on_canvas(array: np.ndarray, placement: Placement, fill=0) -> np.ndarray:
    """Crop or pad an array that is turned and resized."""
    assert array.shape[:2] == (placement.height, placement.width)
    canvas = np.empty((*placement.canvas, *array.shape[2:]), array.dtype)
    canvas[:] = fill
    part = array[placement.top :, placement.left :][: canvas.shape[0], : canvas.shape[1]]
    canvas[: part.shape[0], : part.shape[1]] = part
    return canvas


def mirrored_on_canvas(array: np.ndarray, placement: Placement) -> np.ndarray:
    """As `on_canvas`, padded with mirror images."""
    rows, columns = placement.visible
    part = on_canvas(array, placement)[:rows, :columns]
    sides = [(0, side - n) for side, n in zip(placement.canvas, (rows, columns), strict=True)]
    return np.pad(part, [*sides, (0, 0)], mode="symmetric")


@st.composite
def placements(draw):
    """Return height and width of an image, and any placement of it on a canvas."""
    height, width = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    view = draw(st.integers(0, 7))
    tall, wide = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    canvas = draw(st.integers(1, 50)), draw(st.integers(1, 50))
    top = draw(st.integers(0, max(0, tall - canvas[0])))
    left = draw(st.integers(0, max(0, wide - canvas[1])))
    return height, width, Placement(view, tall, wide, top, left, canvas, COLOUR)


def placed_image(image: np.ndarray, placement: Placement) -> np.ndarray:
    out = np.full((*placement.canvas, 3), 211, np.uint8)
    place_image(image, placement, out)
    return out
