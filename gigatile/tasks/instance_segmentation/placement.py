"""Place an image with its instances on the canvas of a training sample.

The random numbers follow from the seed of the sample, so a sample does not depend on the machine,
rank or thread.
"""

import time
from dataclasses import dataclass

import cv2
import numpy as np

from gigatile.instances.annotations import Instances
from gigatile.instances.resizing import pad_image, resize_image, resized_shape
from gigatile.records.shuffle import random64, uniform_of
from gigatile.settings.detection import DetectionSettings

# The input pipeline runs a thread for each core.
cv2.setNumThreads(1)

# The counters of a sample's random numbers, by their use.
_VIEW, _SCALE, _CORNER, _EDGE, _COLOUR = 0, 1, slice(2, 4), 4, slice(6, 12)


@dataclass(frozen=True)
class Placement:
    """How an image is placed: first turned, then resized, then moved.

    Attributes:
        view: quarter turns (0 to 3), plus 4 if it is flipped from left to right afterwards.
        height, width: after turning and resizing.
        top, left: the pixel of the resized image at the corner of the canvas.
        canvas: height and width.
        colour: (6,) float64 from 0 to below 1, random numbers for the colours.
    """

    view: int
    height: int
    width: int
    top: int
    left: int
    canvas: tuple[int, int]
    colour: np.ndarray

    @property
    def visible(self) -> tuple[int, int]:
        """Height and width of the part of the canvas that the image covers."""
        return (
            min(self.canvas[0], self.height - self.top),
            min(self.canvas[1], self.width - self.left),
        )


def place(height: int, width: int, seed: int, settings: DetectionSettings) -> Placement:
    """Return the placement of an image for the seed of a sample.

    Args:
        height, width: of the image in its file.
        seed: 0 … 2⁶⁴ - 1.
        settings: size and augmentation.
    """
    numbers = random64(seed, np.arange(_COLOUR.stop))
    uniform = uniform_of(numbers)
    view = {
        "all": int(numbers[_VIEW] % np.uint64(8)),
        "horizontal": 4 * int(numbers[_VIEW] % np.uint64(2)),
        "none": 0,
    }[settings.flips]
    if view % 2:
        height, width = width, height
    edges = settings.train_short_edges
    edge = edges[int(uniform[_EDGE] * len(edges))] if edges else None
    tall, wide = resized_shape(height, width, settings, edge)
    factor = 1 + settings.scale_jitter * (2 * uniform[_SCALE] - 1)
    tall, wide = max(1, round(factor * tall)), max(1, round(factor * wide))
    canvas = settings.canvas
    corner = [
        int(position * (max(0, side - limit) + 1))
        for position, side, limit in zip(uniform[_CORNER], (tall, wide), canvas, strict=True)
    ]
    return Placement(view, tall, wide, corner[0], corner[1], canvas, uniform[_COLOUR])


def place_image(image: np.ndarray, placement: Placement, out: np.ndarray) -> None:
    """Write an image (height, width, 3) uint8 to its canvas."""
    turned = np.ascontiguousarray(_turned(image, placement.view))
    turned = resize_image(turned, placement.height, placement.width)
    rows, columns = placement.visible
    top, left = placement.top, placement.left
    pad_image(turned[top : top + rows, left : left + columns], out)


def change_colours(image: np.ndarray, placement: Placement, limit: float) -> None:
    """Change brightness and contrast of each channel at random, in place."""
    common, contrast, *channels = 2 * placement.colour - 1
    levels = np.arange(256.0)
    for channel in range(3):
        # Most of the change is common to the channels, so that hues change little.
        factor = 1 + limit * (0.7 * contrast + 0.3 * channels[channel])
        summand = 128 * limit * (0.7 * common + 0.3 * channels[channel])
        table = np.clip((levels - 128) * factor + 128 + summand, 0, 255).round().astype(np.uint8)
        image[..., channel] = table[image[..., channel]]


def _turned(image: np.ndarray, view: int) -> np.ndarray:
    turned = np.rot90(image, view % 4)
    return turned[:, ::-1] if view >= 4 else turned


def place_boxes(boxes: np.ndarray, height: int, width: int, placement: Placement) -> np.ndarray:
    """Return boxes (n, 4) on the canvas, not clipped: float64.

    Args:
        boxes: in pixels of the image.
        height, width: of the image.
        placement: of the image.
    """
    y1, x1, y2, x2 = np.asarray(boxes, np.float64).T
    for _ in range(placement.view % 4):
        # A quarter turn to the left: the right side becomes the top.
        y1, x1, y2, x2 = width - x2, y1, width - x1, y2
        height, width = width, height
    if placement.view >= 4:
        x1, x2 = width - x2, width - x1
    down, across = placement.height / height, placement.width / width
    rows = [values * down - placement.top for values in (y1, y2)]
    columns = [values * across - placement.left for values in (x1, x2)]
    return np.stack([rows[0], columns[0], rows[1], columns[1]], axis=1)


@dataclass(frozen=True)
class PlacedInstances:
    """The instances of an image that may be visible on its canvas; crowds are left out.

    Attributes:
        indices: (k,) in the instances of the image.
        boxes: (k, 4) float64 on the canvas, not clipped.
        crops: (k, 4) int32, pixels of the canvas that may belong to the mask.
    """

    indices: np.ndarray
    boxes: np.ndarray
    crops: np.ndarray

    @property
    def pixels(self) -> int:
        """The number of pixels of all crops."""
        sides = (self.crops[:, 2:] - self.crops[:, :2]).astype(np.int64)
        return int(sides.prod(axis=1).sum())


def place_instances(
    instances: Instances, height: int, width: int, placement: Placement
) -> PlacedInstances:
    """Return the instances that may be visible on the canvas, and where."""
    boxes = place_boxes(instances.boxes, height, width, placement)
    crops = place_boxes(instances.crops, height, width, placement)
    rows, columns = placement.visible
    limits = np.array([rows, columns, rows, columns])
    # A pixel belongs to the mask if its centre does.
    crops = np.clip(np.ceil(crops - 0.5), 0, limits).astype(np.int32)
    seen = (crops[:, 2:] > crops[:, :2]).all(axis=1) & ~instances.crowd
    (indices,) = np.nonzero(seen)
    return PlacedInstances(indices, boxes[indices], crops[indices])


def place_mask(
    mask: np.ndarray,
    crop: np.ndarray,
    target: np.ndarray,
    height: int,
    width: int,
    placement: Placement,
) -> np.ndarray:
    """Return the pixels of a mask on the canvas: (rows, columns) uint8, 0 or 1.

    Each pixel has the value of the pixel of the mask in which its centre lies.

    Args:
        mask: (rows, columns) of the mask in the image.
        crop: its box in the image.
        target: its box on the canvas.
        height, width: of the image.
        placement: of the image.
    """
    turned = _turned(mask, placement.view)
    if placement.view % 2:
        height, width = width, height
    # Where the turned mask begins in the turned image.
    still = Placement(placement.view, height, width, 0, 0, (height, width), placement.colour)
    shape = (width, height) if placement.view % 2 else (height, width)
    top, left, _, _ = place_boxes(crop[None], *shape, still)[0]
    rows = _sources(target[0], target[2], placement.top, height / placement.height, top)
    columns = _sources(target[1], target[3], placement.left, width / placement.width, left)
    rows = np.clip(rows, 0, turned.shape[0] - 1)
    columns = np.clip(columns, 0, turned.shape[1] - 1)
    return turned[rows[:, None], columns]


def _sources(first: int, last: int, moved: int, factor: float, begin: float) -> np.ndarray:
    """Return the indices in a mask of the pixels from `first` to `last` - 1 of the canvas."""
    centres = (np.arange(first, last) + moved + 0.5) * factor
    return np.floor(centres - begin).astype(np.int64)


def timed_place(
    image: np.ndarray, placement: Placement, settings: DetectionSettings, out: np.ndarray
) -> float:
    """Place an image, change its colours, and return the seconds."""
    start = time.perf_counter()
    place_image(image, placement, out)
    if settings.intensity:
        change_colours(out, placement, settings.intensity)
    return time.perf_counter() - start
