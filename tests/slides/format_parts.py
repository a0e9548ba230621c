"""Shared by the writers of slide formats: levels, padding, overlaps and JPEG."""

from collections.abc import Iterator

import imagecodecs
import numpy as np

from gigatile.demo.svs import shrink

DOWNSAMPLES = (1, 4, 16)
POWER = 20  # of the objective
SUBSAMPLINGS = {(1, 1): "444", (2, 1): "422", (2, 2): "420"}


def pyramid(pixels: np.ndarray) -> list[np.ndarray]:
    """Return the levels of a slide, `pixels` (height, width, 3) uint8 first."""
    return [pixels] + [shrink(pixels, factor) for factor in DOWNSAMPLES[1:]]


def per_cm(mpp: float) -> tuple[float, float]:
    """Return the TIFF resolution, across and down: pixels per centimetre."""
    return (1e4 / mpp, 1e4 / mpp)


def padded(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the pixels padded to a size by repeating their last row and column."""
    down, across = height - pixels.shape[0], width - pixels.shape[1]
    return np.pad(pixels, ((0, down), (0, across), (0, 0)), "edge")


def whole_tiles(pixels: np.ndarray, side: int) -> np.ndarray:
    """Return the pixels padded to whole tiles."""
    height, width = pixels.shape[:2]
    return padded(pixels, -(-height // side) * side, -(-width // side) * side)


def tiles(pixels: np.ndarray, side: int) -> Iterator[np.ndarray]:
    """Yield the tiles of an image row by row; it must consist of whole tiles."""
    height, width = pixels.shape[:2]
    for top in range(0, height, side):
        for left in range(0, width, side):
            yield pixels[top : top + side, left : left + side]


def overlapping(pixels: np.ndarray, side: int, overlap: int) -> np.ndarray:
    """Return the camera's photos of a slide, edge to edge.

    Each photo, `side` px wide and high, starts `side - overlap` px after the previous one, so the
    overlap appears twice. The slide is padded to whole photos.
    """
    advance = side - overlap
    rows, columns = (-(-(length - overlap) // advance) for length in pixels.shape[:2])
    whole = padded(pixels, rows * advance + overlap, columns * advance + overlap)
    # A sliding window view is read-only, so the photos are copied.
    photos = np.lib.stride_tricks.sliding_window_view(whole, (side, side), (0, 1))
    photos = photos[::advance, ::advance].transpose(0, 3, 1, 4, 2)
    return photos.reshape(rows * side, columns * side, 3).copy()


def jpeg(
    pixels: np.ndarray,
    quality: int,
    *,
    coding: str = "YCBCR",
    subsampling: tuple[int, int] = (2, 2),
) -> bytes:
    """Return RGB pixels as a JPEG with the colour space `coding`."""
    return imagecodecs.jpeg8_encode(
        np.ascontiguousarray(pixels),
        level=quality,
        colorspace="RGB",
        outcolorspace=coding,
        subsampling=SUBSAMPLINGS[subsampling],
    )
