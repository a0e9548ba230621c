"""How the model sees an image: its size, and its padding."""

import cv2
import numpy as np

from gigatile.settings.detection import DetectionSettings

# Pixels that are not part of an image, such as those outside a region of a slide, have the mean
# colour of ImageNet.
PADDING = (124, 117, 104)


def resized_shape(
    height: int, width: int, settings: DetectionSettings, short_edge: int | None = None
) -> tuple[int, int]:
    """Return height and width of an image as the model sees it.

    Args:
        height, width: of the image.
        settings: its size.
        short_edge: used instead of that of the settings.
    """
    factor = settings.scale
    short_edge = short_edge or settings.short_edge
    if short_edge is not None:
        factor = short_edge / min(height, width)
        factor = min(factor, settings.max_edge / max(height, width))
    return max(1, round(factor * height)), max(1, round(factor * width))


def resize_image(image: np.ndarray, tall: int, wide: int) -> np.ndarray:
    """Return an image (height, width, 3) uint8 with another height and width."""
    if image.shape[:2] == (tall, wide):
        return image
    smaller = tall * wide < image.shape[0] * image.shape[1]
    method = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, (wide, tall), interpolation=method))


def pad_image(image: np.ndarray, out: np.ndarray) -> None:
    """Write an image to the top left of a canvas, and its mirror images to the rest.

    Group normalisation computes its statistics over the whole canvas. With padding of a constant
    colour, they would depend on how much padding there is, which differs between training and
    detection: most of all for dark images, of which a model then misses instances.

    Args:
        image: (height, width, 3) uint8.
        out: the canvas, (rows, columns, 3) uint8, at least as large.
    """
    below, right = out.shape[0] - image.shape[0], out.shape[1] - image.shape[1]
    out[:] = cv2.copyMakeBorder(image, 0, below, 0, right, cv2.BORDER_REFLECT)
