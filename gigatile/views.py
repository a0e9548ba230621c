"""The eight views of a square image: rotations by multiples of 90 degrees, and flips."""

import numpy as np


def apply_view(image: np.ndarray, view: int) -> np.ndarray:
    """Return a square image, (side, side, channels), in one of the eight `VIEWS`; 0 is identity.

    The result shares the memory of the image.
    """
    rotated = np.rot90(image, view % 4)
    return rotated[:, ::-1] if view >= 4 else rotated


def apply_views(images: np.ndarray, view: int) -> np.ndarray:
    """Return square images, (n, side, side, channels), in one of the eight `VIEWS`, contiguous."""
    rotated = np.rot90(images, view % 4, axes=(1, 2))
    return np.ascontiguousarray(rotated[:, :, ::-1] if view >= 4 else rotated)
