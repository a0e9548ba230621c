"""Anchors: the boxes that the region proposal network starts from.

Ren et al. 2015, https://arxiv.org/abs/1506.01497, section 3.1.1; one size per level of the feature
pyramid as in Lin et al. 2017, https://arxiv.org/abs/1612.03144, section 4.1.
"""

import math
from collections.abc import Sequence

import numpy as np


def anchors_of_level(
    rows: int, columns: int, stride: int, size: float, ratios: Sequence[float]
) -> np.ndarray:
    """Return the anchors of a level: (rows * columns * ratios, 4) float32.

    Their centres are the centres of the cells. The order is that of an array (rows, columns,
    ratios).

    Args:
        rows, columns: of the feature map.
        stride: side of a cell in pixels of the image.
        size: square root of the area of each anchor, in pixels.
        ratios: height divided by width.
    """
    y, x = (np.arange(count) * stride + stride / 2 for count in (rows, columns))
    heights = size * np.sqrt(np.asarray(ratios, np.float64))
    half = np.stack([heights, size * size / heights], axis=-1) / 2
    centres = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1)[:, :, None]
    boxes = np.concatenate([centres - half, centres + half], axis=-1)
    return boxes.reshape(-1, 4).astype(np.float32)


def cells_of_level(rows: int, columns: int, stride: int, ratios: int) -> np.ndarray:
    """Return the first row and column, in pixels, of the cell of each anchor: (n, 2) int32.

    The order is that of `anchors_of_level`; `ratios` is the number of anchors of a cell.
    """
    y, x = (np.arange(count, dtype=np.int32) * stride for count in (rows, columns))
    corners = np.stack(np.meshgrid(y, x, indexing="ij"), axis=-1)
    return corners.reshape(-1, 2).repeat(ratios, axis=0)


def pyramid_cells(height: int, width: int, strides: Sequence[int], ratios: int) -> list[np.ndarray]:
    """Return the cells of each level of a pyramid; see `cells_of_level` and `pyramid_anchors`."""
    return [
        cells_of_level(math.ceil(height / stride), math.ceil(width / stride), stride, ratios)
        for stride in strides
    ]


def pyramid_anchors(
    height: int,
    width: int,
    strides: Sequence[int],
    sizes: Sequence[float],
    ratios: Sequence[float],
) -> list[np.ndarray]:
    """Return the anchors of each level of a pyramid; see `anchors_of_level`.

    Args:
        height, width: of the image in pixels.
        strides: of each level; its feature map has ceil(side / stride) cells.
        sizes: of the anchors of each level.
        ratios: height divided by width, the same on all levels.
    """
    return [
        anchors_of_level(
            math.ceil(height / stride), math.ceil(width / stride), stride, size, ratios
        )
        for stride, size in zip(strides, sizes, strict=True)
    ]
