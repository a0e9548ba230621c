"""Find the head, or the skull-stripped brain, in a volume."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

# The value of this fraction of the voxels on the six faces is the background.
MIN_BACKGROUND = 0.5
# Air is darker than this fraction of the range from the darkest to the brightest voxel. The range
# is measured between quantiles, because a few voxels are far brighter.
AIR = 0.1
DARKEST = 0.02
# Around a complete head, at least this fraction of the faces is air.
MIN_AIR = 0.1


@dataclass(frozen=True)
class HeadMask:
    """The head in a volume.

    Attributes:
        box: the bounding box of the head: first voxel and one past the last, (2, 3) int64.
        mask: (x, y, z) bool, the voxels of that box that are head, in Fortran order.
        background: the constant value around the head; None if the background is noise.
    """

    box: np.ndarray
    mask: np.ndarray
    background: float | None


def find_head(image: np.ndarray) -> HeadMask:
    """Return the head in a volume.

    A skull-stripped volume has a constant background, not necessarily 0: the most common value on
    the volume's faces. Voxels of that value that are connected to the faces are background;
    enclosed cavities are not. If the faces have no such value, as around a head in air, the head is
    the largest component brighter than a tenth of the range from the 2nd to the 98th percentile (as
    in BET: Smith 2002, https://doi.org/10.1002/hbm.10062; Otsu's threshold would classify dark
    tissue, and fluid in T1, as air), with everything that it encloses.

    Args:
        image: (x, y, z) float32, finite, not constant.
    """
    background = _background(image)
    # In a file the first axis varies fastest, so `.T` has the order in which NumPy is fast.
    mask = _head_in_air(image.T).T if background is None else image != background
    box = box_of(mask)
    assert box is not None  # the image is not constant
    mask = np.asfortranarray(mask[slices_of(box)])
    # All voxels outside of the box are background, so the box's faces replace the volume's.
    return HeadMask(box, mask if background is None else _fill_enclosed(mask.T).T, background)


def whole_volume(shape: Sequence[int]) -> HeadMask:
    """Return a mask of all voxels, for volumes without a head."""
    box = np.array([(0, 0, 0), shape], np.int64)
    return HeadMask(box, np.ones(shape, bool, order="F"), None)


def box_of(mask: np.ndarray) -> np.ndarray | None:
    """Return the bounding box of the true voxels: first, and one past the last, (2, 3)."""
    box = np.empty((2, 3), np.int64)
    plane = np.asarray(mask.any(axis=2))
    projections = (plane.any(axis=1), plane.any(axis=0), mask.any(axis=(0, 1)))
    for axis, voxels in enumerate(map(np.flatnonzero, projections)):
        if not len(voxels):
            return None
        box[:, axis] = voxels[0], voxels[-1] + 1
    return box


def slices_of(box: np.ndarray) -> tuple[slice, slice, slice]:
    """Return the slices of a box, (2, 3)."""
    x, y, z = (slice(first, stop) for first, stop in box.T.tolist())
    return x, y, z


def reorient_box(box: np.ndarray, shape: Sequence[int], orientation: np.ndarray) -> np.ndarray:
    """Return a box after `nibabel.orientations.apply_orientation` of its volume.

    Args:
        box: first voxel and one past the last, (2, 3).
        shape: of the volume, before.
        orientation: (3, 2), nibabel's orientation array.
    """
    reoriented = np.empty_like(box)
    for axis, (new_axis, direction) in enumerate(orientation.astype(int).tolist()):
        sides = box[:, axis]
        reoriented[:, new_axis] = sides if direction > 0 else shape[axis] - sides[::-1]
    return reoriented


def _background(image: np.ndarray) -> float | None:
    faces = np.concatenate([face.ravel() for face in _faces(image)])
    values, counts = np.unique(faces, return_counts=True)
    most_common = counts.argmax()
    if counts[most_common] < MIN_BACKGROUND * counts.sum():
        return None
    return float(values[most_common])


def _fill_enclosed(
    mask: np.ndarray, structure: np.ndarray | None = None, axes: tuple[int, ...] = (0, 1, 2)
) -> np.ndarray:
    """Return a mask with its holes filled: false voxels that are not connected to a face.

    Args:
        mask: (x, y, z) bool.
        structure: the neighbours that are connected; None: six.
        axes: the axes with faces that count.
    """
    if structure is None:
        # With a frame around it, the outside is one component: that of the first corner.
        framed = np.ones(np.add(mask.shape, 2), bool)
        np.logical_not(mask, out=framed[1:-1, 1:-1, 1:-1])
        components, _ = ndimage.label(framed)
        return components[1:-1, 1:-1, 1:-1] != components[0, 0, 0]
    components, count = ndimage.label(~mask, structure)
    outside = np.zeros(count + 1, bool)
    for face in _faces(components, axes):
        outside[face] = True
    outside[0] = False
    return ~outside[components]


def _head_in_air(image: np.ndarray) -> np.ndarray:
    dark, bright = np.quantile(image, (DARKEST, 1 - DARKEST))
    # Holes are filled first, because dark bone separates the brain from the skin.
    components, _ = ndimage.label(_fill_in_planes(image > dark + AIR * (bright - dark)))
    sizes = np.bincount(components.ravel())
    sizes[0] = 0
    mask = components == sizes.argmax()
    # A volume cropped from inside a head has no air; dark voxels are part of the head.
    if sum(np.count_nonzero(~face) for face in _faces(mask)) < MIN_AIR * sum(
        face.size for face in _faces(mask)
    ):
        mask[:] = True
    return mask


def _fill_in_planes(mask: np.ndarray) -> np.ndarray:
    """Return a mask with its holes filled in each plane along two axes.

    Most heads are cropped by the volume, so few holes are closed in three dimensions.
    """
    filled = mask.copy()
    for axis in range(3):
        in_plane = ndimage.generate_binary_structure(3, 1)
        np.moveaxis(in_plane, axis, 0)[[0, 2]] = False
        filled |= _fill_enclosed(mask, in_plane, tuple({0, 1, 2} - {axis}))
    return filled


def _faces(array: np.ndarray, axes: tuple[int, ...] = (0, 1, 2)) -> list[np.ndarray]:
    """Return the first and the last plane along some axes."""
    return [np.moveaxis(array, axis, 0)[end] for axis in axes for end in (0, -1)]
