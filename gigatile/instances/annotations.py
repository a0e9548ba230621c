"""The annotated instances of an image."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pycocotools import mask as coco_mask

from gigatile.instances.run_lengths import check_runs, decode_runs, encode_runs, runs_of_pixels


@dataclass(frozen=True)
class Instances:
    """Instances of an image, in its pixels.

    Attributes:
        boxes: (n, 4) float32; see `gigatile.instances`.
        classes: (n,) int32, from 1.
        crowd: (n,) bool: a region of several instances without a mask for each.
        crops: (n, 4) int32, the smallest box of whole pixels that contains the mask.
        masks: for each instance its mask in this box, as the compressed run-length code of COCO.
    """

    boxes: np.ndarray
    classes: np.ndarray
    crowd: np.ndarray
    crops: np.ndarray
    masks: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.masks)

    def mask(self, index: int) -> np.ndarray:
        """Return the mask of an instance in its box: (rows, columns) uint8, 0 or 1."""
        return decode_mask(self.masks[index], self.crops[index])

    def image_rle(self, index: int, height: int, width: int) -> dict[str, object]:
        """Return the mask of an instance in the image as COCO's run-length code."""
        return image_rle(self.mask(index), self.crops[index], height, width)


def empty_instances() -> Instances:
    """Return no instances."""
    return Instances(
        boxes=np.empty((0, 4), np.float32),
        classes=np.empty(0, np.int32),
        crowd=np.empty(0, bool),
        crops=np.empty((0, 4), np.int32),
        masks=[],
    )


def stack_instances(
    masks: Sequence[tuple[np.ndarray, tuple[int, int]]],
    classes: Sequence[int],
    boxes: np.ndarray | None = None,
    crowd: Sequence[bool] | None = None,
) -> Instances:
    """Return instances from their masks.

    Args:
        masks: for each, pixels (rows, columns), of which some are not 0, and the row and column of
            the first one in the image.
        classes: of each, from 1.
        boxes: (n, 4); None: those of the masks.
        crowd: whether each is a crowd; None: none is.
    """
    crops, codes = np.empty((len(masks), 4), np.int32), []
    for crop, (pixels, (top, left)) in zip(crops, masks, strict=True):
        rows, columns = (np.flatnonzero(pixels.any(axis=axis)) for axis in (1, 0))
        first_row, last_row, first_column, last_column = *rows[[0, -1]], *columns[[0, -1]]
        crop[:] = (
            top + first_row,
            left + first_column,
            top + last_row + 1,
            left + last_column + 1,
        )
        part = pixels[first_row : last_row + 1, first_column : last_column + 1]
        codes.append(encode_mask(part))
    return Instances(
        boxes=crops.astype(np.float32) if boxes is None else np.asarray(boxes, np.float32),
        classes=np.asarray(classes, np.int32),
        crowd=np.zeros(len(masks), bool) if crowd is None else np.asarray(crowd, bool),
        crops=crops,
        masks=codes,
    )


def encode_mask(pixels: np.ndarray) -> bytes:
    """Return the compressed run-length code of a mask (rows, columns); not 0 is inside."""
    return bytes(coco_mask.encode(np.asfortranarray(pixels != 0, np.uint8))["counts"])


def decode_mask(code: bytes, crop: np.ndarray) -> np.ndarray:
    """Return the mask that `encode_mask` encoded, of the size of a box: uint8, 0 or 1.

    Raises:
        ValueError: the code is damaged, or of a mask of another size.
    """
    height, width = int(crop[2] - crop[0]), int(crop[3] - crop[1])
    runs = check_runs(decode_runs(code), height, width)
    values = np.repeat(np.arange(len(runs)) % 2, runs).astype(np.uint8)
    return np.ascontiguousarray(values.reshape(width, height).T)


def image_rle(pixels: np.ndarray, crop: np.ndarray, height: int, width: int) -> dict[str, object]:
    """Return a mask in an image as COCO's run-length code, with text as counts.

    Args:
        pixels: (rows, columns) of the mask in its box.
        crop: the box.
        height, width: of the image.
    """
    columns, rows = np.nonzero(pixels.T)
    inside = (columns + int(crop[1])) * height + rows + int(crop[0])
    code = encode_runs(runs_of_pixels(inside, height * width), height, width)
    return {"size": [height, width], "counts": code.decode()}
