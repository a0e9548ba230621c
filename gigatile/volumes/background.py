"""Which voxels of a volume are head, or brain, and which are what surrounds it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

# The share of the voxels on the six faces that have one value where that is a background.
FACES_SHARE = 0.5
# Air is darker than this share of the way from the darkest to the brightest, for which these
# quantiles are taken: a few voxels are far brighter.
AIR = 0.1
DARKEST = 0.02
# The share of the faces that is air where a head lies in air.
LEAST_AIR = 0.1


@dataclass(frozen=True)
class Inside:
    """What of a volume is head.

    Attributes:
        box: the least box that holds the head: first voxel and one past the last, (2, 3) int64.
        mask: (x, y, z) bool, the voxels of that box that are head, in Fortran's order.
        background: the one value of all that surrounds it; None where that is noise.
    """

    box: np.ndarray
    mask: np.ndarray
    background: float | None


def find_inside(image: np.ndarray) -> Inside:
    """Tell the head from what surrounds it, for one volume.

    A skull-stripped volume is surrounded by voxels of one value, which need not be 0: it is the one
    that most voxels on the volume's faces have. All that hangs together with the faces by voxels of
    that value is outside; cavities that have it are not. Where the faces have no such value, as
    around a head in air, the head is the largest piece of what is brighter than a tenth of the way
    from the 2nd to the 98th percentile (as in BET: Smith 2002, https://doi.org/10.1002/hbm.10062;
    Otsu's threshold takes dark tissue and the fluid of T1 for air), with all that it encloses.

    Args:
        image: (x, y, z) float32, finite, not all of one value.
    """
    background = _background(image)
    # In a file the first axis varies fastest, so `.T` is in the order in which NumPy is fast.
    mask = _head_in_air(image.T).T if background is None else image != background
    box = box_of(mask)
    assert box is not None  # not all voxels have one value
    mask = np.asfortranarray(mask[slices_of(box)])
    # Outside the box nothing is filled, so the box's faces are as good as the volume's.
    return Inside(box, mask if background is None else _not_outside(mask.T).T, background)


def box_of(mask: np.ndarray) -> np.ndarray | None:
    """Return the least box that holds all true voxels: first, and one past the last, (2, 3)."""
    box = np.empty((2, 3), np.int64)
    plane = np.asarray(mask.any(axis=2))
    shown = (plane.any(axis=1), plane.any(axis=0), mask.any(axis=(0, 1)))
    for axis, voxels in enumerate(map(np.flatnonzero, shown)):
        if not len(voxels):
            return None
        box[:, axis] = voxels[0], voxels[-1] + 1
    return box


def slices_of(box: np.ndarray) -> tuple[slice, slice, slice]:
    """Return the slices that cut a box, (2, 3), out of an array."""
    x, y, z = (slice(first, stop) for first, stop in box.T.tolist())
    return x, y, z


def turned_box(box: np.ndarray, shape: Sequence[int], steps: np.ndarray) -> np.ndarray:
    """Return a box after its volume's axes have been turned.

    Args:
        box: first voxel and one past the last, (2, 3).
        shape: the volume's, before.
        steps: (3, 2), as `nibabel.orientations.apply_orientation` takes it.
    """
    turned = np.empty_like(box)
    for axis, (new_axis, direction) in enumerate(steps.astype(int).tolist()):
        sides = box[:, axis]
        turned[:, new_axis] = sides if direction > 0 else shape[axis] - sides[::-1]
    return turned


def _background(image: np.ndarray) -> float | None:
    faces = np.concatenate([face.ravel() for face in _faces(image)])
    values, counts = np.unique(faces, return_counts=True)
    most = counts.argmax()
    return float(values[most]) if counts[most] >= FACES_SHARE * counts.sum() else None


def _not_outside(
    filled: np.ndarray, structure: np.ndarray | None = None, axes: tuple[int, ...] = (0, 1, 2)
) -> np.ndarray:
    """Return the voxels that no way through voxels that are not filled leads to from a face."""
    if structure is None:
        # With a frame around it, all that is outside is one piece: that of the first corner.
        framed = np.ones(np.add(filled.shape, 2), bool)
        np.logical_not(filled, out=framed[1:-1, 1:-1, 1:-1])
        pieces, _ = ndimage.label(framed)
        return pieces[1:-1, 1:-1, 1:-1] != pieces[0, 0, 0]
    pieces, count = ndimage.label(~filled, structure)
    outside = np.zeros(count + 1, bool)
    for face in _faces(pieces, axes):
        outside[face] = True
    outside[0] = False
    return ~outside[pieces]


def _head_in_air(image: np.ndarray) -> np.ndarray:
    dark, bright = np.quantile(image, (DARKEST, 1 - DARKEST))
    # Filled first: bone, which is dark, parts the brain from the skin.
    pieces, _ = ndimage.label(_enclosed(image > dark + AIR * (bright - dark)))
    sizes = np.bincount(pieces.ravel())
    sizes[0] = 0
    mask = pieces == sizes.argmax()
    # Cut out of a head there is no air, and what is dark is part of it.
    if sum(np.count_nonzero(~face) for face in _faces(mask)) < LEAST_AIR * sum(
        face.size for face in _faces(mask)
    ):
        mask[:] = True
    return mask


def _enclosed(mask: np.ndarray) -> np.ndarray:
    """Return a mask with all that it encloses in any plane along two of the axes.

    A head is cut off at the volume's end mostly, and so encloses little in all three.
    """
    found = mask.copy()
    for axis in range(3):
        in_plane = ndimage.generate_binary_structure(3, 1)
        np.moveaxis(in_plane, axis, 0)[[0, 2]] = False
        found |= _not_outside(mask, in_plane, tuple({0, 1, 2} - {axis}))
    return found


def _faces(array: np.ndarray, axes: tuple[int, ...] = (0, 1, 2)) -> list[np.ndarray]:
    """Return the first and last plane along some axes."""
    return [np.moveaxis(array, axis, 0)[end] for axis in axes for end in (0, -1)]
