"""How the model sees an image: its size, and the colour of padding."""

import cv2
import numpy as np

from gigatile.settings.detection import DetectionSettings

# Padding has the mean colour of ImageNet.
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
