"""Outlines of masks as polygons, and figures of their shape.

A polygon follows the edges of the pixels: pixel 0 covers the interval from 0 to 1, so the polygon
of a single pixel at the origin is the square from (0, 0) to (1, 1). Rasterising it by the centres
of the pixels gives the mask again.
"""

import math
from dataclasses import dataclass

import cv2
import numpy as np
from scipy import ndimage

# For `perimeter`: the value of a pixel of the border by the sum of its neighbourhood, where edge
# neighbours on the border count 2, diagonal ones 10 and the pixel itself 1. Benkrid and Crookes
# 2000, "Design and FPGA implementation of a perimeter estimator".
_NEIGHBOURS = np.array([[10, 2, 10], [2, 1, 2], [10, 2, 10]], np.float32)
_LENGTHS = np.zeros(50)
_LENGTHS[[5, 7, 15, 17, 25, 27]] = 1
_LENGTHS[[21, 33]] = math.sqrt(2)
_LENGTHS[[13, 23]] = (1 + math.sqrt(2)) / 2
# From the centre of a pixel to the middles of its edges, in half pixels.
_MIDDLES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.int32)
_CROSS = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))


@dataclass(frozen=True)
class Shape:
    """Figures of a mask in pixels, as scikit-image's `regionprops` defines them.

    Attributes:
        area: number of pixels.
        centroid: mean of the positions of the pixels' centres, (y, x); the centre of the first
            pixel is at 0.5.
        perimeter: length of the line through the centres of the pixels on the border.
        major_axis, minor_axis: of the ellipse with the same second moments.
        eccentricity: of this ellipse, 0 for a circle to below 1.
        orientation: angle of the major axis to the y axis, -π/2 to π/2, counter-clockwise.
        solidity: share of the convex hull's pixels that belong to the mask.
    """

    area: int
    centroid: tuple[float, float]
    perimeter: float
    major_axis: float
    minor_axis: float
    eccentricity: float
    orientation: float
    solidity: float


def polygons_of(mask: np.ndarray) -> list[list[np.ndarray]]:
    """Return the outlines of a mask: a polygon for each part that is connected by pixels' edges.

    The polygons are valid by the standard of the OGC: no ring touches itself, and rings of a
    polygon touch in single points at most. Rings are open: the first point is not repeated.

    Args:
        mask: (rows, columns); not 0 is inside.

    Returns:
        For each polygon its outer ring, then its holes: (n, 2) int64, x and y in pixels. With y
        upwards, outer rings are counter-clockwise and holes clockwise, as in RFC 7946.
    """
    pixels = _padded(np.asarray(mask) != 0)
    count, labels = cv2.connectedComponents(pixels, connectivity=4)
    if count == 2:
        return [_polygon(pixels)]
    polygons: list[list[np.ndarray]] = []
    for rows, columns in ndimage.find_objects(labels):
        label = len(polygons) + 1
        part = _padded(labels[rows, columns] == label)
        offset = (columns.start - 1, rows.start - 1)
        polygons.append([ring + offset for ring in _polygon(part)])
    return polygons


def _polygon(pixels: np.ndarray) -> list[np.ndarray]:
    """Return the outer ring and the holes of a part of a mask, without its border of a pixel.

    Args:
        pixels: (rows, columns) uint8, 0 or 1, connected by edges. OpenCV separates holes that touch
            in a corner, so no ring touches itself.
    """
    # With four subpixels for each pixel, each corner of a pixel has a subpixel next to it.
    fine = pixels.repeat(2, axis=0).repeat(2, axis=1)
    contours, _ = cv2.findContours(fine, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    rings = []
    for contour in contours:
        # The corner next to each subpixel, in the other direction. In a concave corner, two
        # subpixels have the same one.
        corners = (contour[::-1, 0].astype(np.int64) + 1) // 2 - 1
        rings.append(corners[(corners != np.concatenate([corners[-1:], corners[:-1]])).any(axis=1)])
    return sorted(rings, key=_twice_area, reverse=True)


def _padded(mask: np.ndarray) -> np.ndarray:
    """Return a mask with a border of one pixel, (rows + 2, columns + 2) uint8."""
    # Like `np.pad` and, for small arrays, several times as fast; so is `_next` for `np.roll`.
    pixels = np.zeros((mask.shape[0] + 2, mask.shape[1] + 2), np.uint8)
    pixels[1:-1, 1:-1] = mask
    return pixels


def _next(values: np.ndarray) -> np.ndarray:
    """Return the next one of each value; of the last one, the first: (n,)."""
    return np.concatenate([values[1:], values[:1]])


def _twice_area(ring: np.ndarray) -> int:
    """Return twice the area of a ring; positive if it is counter-clockwise with y upwards."""
    x, y = ring.T
    return int(x @ _next(y) - y @ _next(x))


def to_level_0(
    polygons: list[list[np.ndarray]], top: int, left: int, scale: tuple[float, float]
) -> list[list[np.ndarray]]:
    """Return the polygons of a mask in level-0 pixels of its slide, float64.

    Args:
        polygons: from `polygons_of`.
        top, left: first row and column of the mask, in pixels of the detector's input.
        scale: level-0 pixels for each of these pixels, across and down.
    """
    corner, factors = np.array([left, top]), np.array(scale)
    return [[(ring + corner) * factors for ring in rings] for rings in polygons]


def shape_of(mask: np.ndarray) -> Shape:
    """Return the figures of a mask's shape.

    Args:
        mask: (rows, columns); not 0 is inside. It must not be empty.
    """
    pixels = _padded(np.asarray(mask) != 0)
    moments = cv2.moments(pixels, binaryImage=True)
    area = moments["m00"]
    xx, yy, xy = (moments[name] / area for name in ("mu20", "mu02", "mu11"))
    mean, spread = (xx + yy) / 2, math.hypot((xx - yy) / 2, xy)
    # The second moments of a line are 0 across it, but for rounding.
    large, small = mean + spread, max(mean - spread, 0.0)
    if small < 1e-12 * large:
        small = 0.0
    return Shape(
        area=int(area),
        centroid=(moments["m01"] / area - 0.5, moments["m10"] / area - 0.5),
        perimeter=_perimeter(pixels),
        major_axis=4 * math.sqrt(large),
        minor_axis=4 * math.sqrt(small),
        eccentricity=math.sqrt(1 - small / large) if large else 0.0,
        orientation=_orientation(xx, yy, xy),
        solidity=area / _hull_area(pixels),
    )


def _orientation(xx: float, yy: float, xy: float) -> float:
    if xx == yy:
        return math.pi / 4 if xy > 0 else -math.pi / 4
    return math.atan2(2 * xy, yy - xx) / 2


def _perimeter(pixels: np.ndarray) -> float:
    border = pixels - cv2.erode(pixels, _CROSS)
    kinds = cv2.filter2D(border, -1, _NEIGHBOURS, borderType=cv2.BORDER_CONSTANT)
    return float(np.bincount(kinds.ravel(), minlength=len(_LENGTHS)) @ _LENGTHS)


def _hull_area(pixels: np.ndarray) -> int:
    """Return the number of pixels that have their centre in the convex hull or on its border.

    The hull is that of the middles of the pixels' edges.
    """
    contours, _ = cv2.findContours(pixels, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    # In half pixels, the middles of the edges are whole numbers.
    centres = 2 * np.concatenate(contours)
    hull = cv2.convexHull(np.concatenate([centres + offset for offset in _MIDDLES]))[:, 0]
    x, y = hull.T.astype(np.float64)
    next_x, next_y = _next(x), _next(y)
    sloped = y != next_y
    x, y, next_x, next_y = (values[sloped] for values in (x, y, next_x, next_y))
    rows = np.arange(y.min() + 1, y.max(), 2)[:, None]
    crossed = (np.minimum(y, next_y) <= rows) & (rows <= np.maximum(y, next_y))
    position = x + (rows - y) * ((next_x - x) / (next_y - y))
    first = np.where(crossed, position, np.inf).min(axis=1)
    last = np.where(crossed, position, -np.inf).max(axis=1)
    # A centre on the border is inside, whatever the rounding.
    counts = np.floor(last / 2 + 1e-9) - np.ceil(first / 2 - 1e-9) + 1
    return int(counts.sum())
