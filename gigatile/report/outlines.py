"""Outlines of masks as SVG paths."""

from collections import defaultdict

import numpy as np


def outline(mask: np.ndarray, top: int = 0, left: int = 0) -> str:
    """Return the outline of a mask along the sides of its pixels, as closed SVG paths.

    A path has the inside on its right; (column, row) is the upper left corner of a pixel. Pixels
    that only touch at a corner are in different paths.

    Args:
        mask: (rows, columns) bool.
        top, left: the row and column of its first pixel.
    """
    inside = np.pad(mask, 1)
    # By corner, the steps along edges that start there, with the inside on their right.
    edges: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for row_step, column_step, offset, step in (
        (-1, 0, (0, 0), (1, 0)),  # the upper side, to the right
        (0, 1, (1, 0), (0, 1)),  # the right side, down
        (1, 0, (1, 1), (-1, 0)),  # the lower side, to the left
        (0, -1, (0, 1), (0, -1)),  # the left side, up
    ):
        beyond = np.roll(inside, (-row_step, -column_step), axis=(0, 1))
        for row, column in np.argwhere(inside & ~beyond).tolist():
            edges[column - 1 + offset[0], row - 1 + offset[1]].append(step)
    paths = []
    while edges:
        start = next(iter(edges))
        corner, step, length = start, edges[start][0], 0
        path = f"M{start[0] + left} {start[1] + top}"
        while True:
            steps = edges[corner]
            # At a corner between two pixels turn right, to stay with the same pixel.
            right = (-step[1], step[0])
            new = right if right in steps and len(steps) > 1 else steps[0]
            steps.remove(new)
            if not steps:
                del edges[corner]
            if new != step:
                path += _line(step, length)
                step, length = new, 0
            length += 1
            corner = (corner[0] + new[0], corner[1] + new[1])
            if corner == start:
                break
        paths.append(path + _line(step, length) + "z")
    return "".join(paths)


def _line(step: tuple[int, int], length: int) -> str:
    if not length:
        return ""
    return f"h{step[0] * length}" if step[0] else f"v{step[1] * length}"
