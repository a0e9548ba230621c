"""Write images in one of their views into the arrays of a batch."""

import cv2
import numpy as np

# Many threads decode at the same time; OpenCV needs no further ones.
cv2.setNumThreads(1)


def write_view(image: np.ndarray, view: int, into: np.ndarray, scratch: np.ndarray) -> None:
    """Write a square image in one of the `VIEWS` into an array.

    OpenCV writes into `scratch`, which stays in the cache of the processor, and from there it is
    copied: directly into the memory of a batch, which is not in the cache, takes 1.5 times as long.

    Args:
        image: (side, side, channels) uint8, contiguous.
        view: index of the view.
        into: array of the same shape.
        scratch: contiguous array of the same shape and type, other memory than that of the image.
    """
    match view:
        case 0:
            turned = image
        case 1:
            turned = cv2.rotate(image, cv2.ROTATE_90_COUNTERCLOCKWISE, dst=scratch)
        case 2:
            turned = cv2.rotate(image, cv2.ROTATE_180, dst=scratch)
        case 3:
            turned = cv2.rotate(image, cv2.ROTATE_90_CLOCKWISE, dst=scratch)
        case 4:
            turned = cv2.flip(image, 1, dst=scratch)
        case 5:
            turned = cv2.flip(cv2.transpose(image, dst=scratch), -1, dst=scratch)
        case 6:
            turned = cv2.flip(image, 0, dst=scratch)
        case 7:
            turned = cv2.transpose(image, dst=scratch)
        case _:
            raise ValueError(f"no view {view}")
    into[...] = turned
