"""The grid of a prepared case, and resampling from the grid of a file to it.

A volume is reoriented to RAS+, resampled to the requested spacing with its outer faces in place,
and cropped to a box. An axis that keeps its number of voxels is not interpolated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
from nibabel.orientations import apply_orientation, inv_ornt_aff, io_orientation
from pydantic import TypeAdapter
from scipy import ndimage, sparse

from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.geometry import Geometry, HeaderFields
from gigatile.volumes.head_mask import box_of, slices_of
from gigatile.volumes.reader import MAX_SIDE, MAX_VOXELS

# Voxels at this distance contribute less than a ten-millionth to the value of a cubic spline.
REACH = 14
# Weights below this are dropped.
NEGLIGIBLE = 1e-7
# Number of voxels along an axis for which weights are computed at a time.
_WINDOW = 256

Triple = tuple[int, int, int]
Sides = tuple[float, float, float]


@dataclass(frozen=True)
class Grid:
    """The grid of a prepared case, and how it is computed from the file's.

    Attributes:
        original_shape: voxels along each axis of the file.
        original_affine: (4, 4), from the file's voxel indices to millimetres in RAS+.
        orientation: directions of the file's axes, such as `LPS`.
        header: the header fields of the file's geometry.
        canonical_spacing: millimetres between the file's voxels, axes in RAS+.
        spacing: millimetres between the prepared voxels.
        resampled_shape: voxels of the whole volume at that spacing.
        crop_start: the first voxel of the crop.
        shape: voxels of the crop, which is the prepared case.
    """

    original_shape: Triple
    original_affine: tuple[tuple[float, ...], ...]
    orientation: str
    header: HeaderFields
    canonical_spacing: Sides
    spacing: Sides
    resampled_shape: Triple
    crop_start: Triple
    shape: Triple

    @cached_property
    def to_canonical(self) -> np.ndarray:
        """Nibabel's orientation array from the file's axes to RAS+: (3, 2)."""
        return io_orientation(np.array(self.original_affine))

    @cached_property
    def canonical_shape(self) -> Triple:
        """The file's shape with its axes in RAS+."""
        x, y, z = (self.original_shape[axis] for axis in np.argsort(self.to_canonical[:, 0]))
        return x, y, z

    @property
    def resampled(self) -> bool:
        """Whether any axis is interpolated."""
        return self.resampled_shape != self.canonical_shape

    @property
    def cropped(self) -> tuple[slice, ...]:
        """The slices of the prepared voxels in the whole volume at their spacing."""
        return tuple(
            slice(start, start + size)
            for start, size in zip(self.crop_start, self.shape, strict=True)
        )

    @cached_property
    def affine(self) -> np.ndarray:
        """From indices of prepared voxels to millimetres in RAS+: (4, 4) float64."""
        canonical = np.array(self.original_affine) @ inv_ornt_aff(
            self.to_canonical, self.original_shape
        )
        scale = np.array(self.canonical_shape) / self.resampled_shape
        from_prepared = np.diag([*scale, 1.0])
        # The outer faces stay in place, so the centre of the first voxel moves.
        from_prepared[:3, 3] = (np.array(self.crop_start) + 0.5) * scale - 0.5
        return canonical @ from_prepared

    def canonical(self, array: np.ndarray) -> np.ndarray:
        """Return an array of the file, (x, y, z, …), with its axes in RAS+; a view."""
        if array.shape[:3] != self.original_shape:
            raise ValueError(
                f"the array has {array.shape[:3]} voxels, the file {self.original_shape}"
            )
        return apply_orientation(array, self.to_canonical)

    def crop_to(self, start: Sequence[int], stop: Sequence[int]) -> Self:
        """Return this grid, cropped to the voxels that cover a box of the file's voxels.

        Args:
            start, stop: the box, (3,) each, axes in RAS+.
        """
        n, m = np.array(self.canonical_shape), np.array(self.resampled_shape)
        first = np.array(start) * m // n
        last = -(-np.array(stop) * m // n)
        return replace(self, crop_start=_three(first), shape=_three(last - first))

    def to_json(self) -> dict[str, object]:
        """Return the grid as JSON has it."""
        return _GRID.dump_python(self, mode="json")

    @classmethod
    def from_json(cls, fields: object) -> "Grid":
        """Return the grid from the result of `to_json`.

        Raises:
            ValueError: a field is missing or wrong.
        """
        return _GRID.validate_python(fields)


_GRID = TypeAdapter(Grid)


def plan_grid(geometry: Geometry, spacing: Sides | None) -> Grid:
    """Return the grid of a whole volume at a spacing.

    Args:
        geometry: of the file.
        spacing: requested, in mm, axes in RAS+; None: the file's. Because the volume keeps its
            extent, the result has the nearest spacing with a whole number of voxels.

    Raises:
        VolumeError: the volume would have more voxels than supported.
    """
    order = np.argsort(io_orientation(geometry.affine)[:, 0])
    old_shape = np.array(geometry.shape)[order]
    old = np.array(geometry.spacing)[order]
    shape = old_shape
    if spacing is not None:
        shape = np.floor(old_shape * old / spacing + 0.5).astype(int).clip(1)
    if shape.max() > MAX_SIDE or shape.prod(dtype=float) > MAX_VOXELS:
        raise VolumeError(
            f"at the spacing of volumes.spacing it would have {'×'.join(map(str, shape))} voxels; "
            f"at most {MAX_VOXELS:,} are supported"
        )
    affine = tuple(tuple(row) for row in geometry.affine.tolist())
    x, y, z = old.tolist()
    new_x, new_y, new_z = (old * old_shape / shape).tolist()
    return Grid(
        geometry.shape,
        affine,
        geometry.orientation,
        geometry.header,
        (x, y, z),
        (new_x, new_y, new_z),
        _three(shape),
        (0, 0, 0),
        _three(shape),
    )


def forward_part(
    part: np.ndarray, start: Sequence[int], grid: Grid, order: int = 3, smoothed: bool = True
) -> np.ndarray:
    """Return an image that is 0 outside of a box on the prepared grid.

    Along axes where voxels become larger, the image is first smoothed against aliasing, by a
    Gaussian with a standard deviation of (factor - 1) / 2 voxels (as in skimage.transform.resize).

    Args:
        part: (x, y, z), the box, axes in RAS+. Along axes that keep their number of voxels, it
            covers the prepared grid.
        start: its first voxel, (3,).
        grid: of the prepared case.
        order: 3 for a cubic spline, 1 for linear interpolation.
        smoothed: whether to smooth.

    Returns:
        `grid.shape`, float32.
    """
    crop: list[slice] = []
    matrices: list[sparse.csr_matrix | None] = []
    for axis in range(3):
        length, new_length = grid.canonical_shape[axis], grid.resampled_shape[axis]
        first, new_first, count = start[axis], grid.crop_start[axis], grid.shape[axis]
        if length == new_length:
            crop.append(slice(new_first - first, new_first - first + count))
            matrices.append(None)
        else:
            weights = axis_weights(length, new_length, order, smoothed)
            crop.append(slice(None))
            stop = first + part.shape[axis]
            matrices.append(weights[new_first : new_first + count, first:stop])
    along_x, along_y, along_z = matrices
    # In the memory order of a file: planes across z, in which x varies fastest.
    planes = np.ascontiguousarray(part[tuple(crop)].T, np.float32)
    if along_z is not None:
        rows = planes.reshape(len(planes), -1)
        planes = (along_z @ rows).reshape(-1, *planes.shape[1:])
    if along_x is None and along_y is None:
        return planes.T
    result = np.empty(grid.shape[::-1], np.float32)
    for plane, resampled in zip(planes, result, strict=True):
        rows = plane if along_y is None else along_y @ plane
        resampled[:] = rows if along_x is None else (along_x @ np.ascontiguousarray(rows.T)).T
    return result.T


def forward_labels(array: np.ndarray, grid: Grid) -> np.ndarray:
    """Return labels on the prepared grid: `grid.shape` uint8.

    Each label is interpolated linearly, and a voxel gets the label with the largest share, or the
    smallest of several. Without resampling, the file's labels are cropped.

    Args:
        array: (x, y, z) uint8 of the file.
        grid: of the prepared case.
    """
    labels = grid.canonical(array)
    if not grid.resampled:
        return np.ascontiguousarray(labels[grid.cropped])
    result = np.zeros(grid.shape, np.uint8)
    labelled = box_of(labels > 0)
    if labelled is None:
        return result
    # Only voxels within a margin of one voxel can have a share of a label.
    box = np.clip(labelled + np.array([[-1], [1]]), 0, labels.shape)
    around = grid.crop_to(*box)
    first = np.maximum(around.crop_start, grid.crop_start)
    stop = np.minimum(np.add(around.crop_start, around.shape), np.add(grid.crop_start, grid.shape))
    if (first >= stop).any():
        return result
    around = replace(grid, crop_start=_three(first), shape=_three(stop - first))
    labels = labels[slices_of(box)]
    x, y, z = slices_of(np.stack([first, stop]) - grid.crop_start)
    nearest = result[x, y, z]
    best = np.zeros(around.shape, np.float32)
    for value in np.flatnonzero(np.bincount(labels.ravel(), minlength=1)).tolist():
        share = forward_part(labels == value, box[0], around, order=1, smoothed=False)
        better = share > best + 1e-6
        nearest[better] = value
        best[better] = share[better]
    return result


def interpolation(
    length: int, new_length: int, start: int, count: int, order: int = 1
) -> tuple[sparse.csr_matrix, int, int]:
    """Return the weights that resample one axis.

    Args:
        length, new_length: voxels of the whole axis before and after.
        start, count: the range of new voxels.
        order: 1 for linear interpolation, 3 for the coefficients of a cubic spline.

    Returns:
        The weights, (count, last - first) float32, and `first` and `last`: the range of old voxels.
        Beyond the outermost voxels, values are constant.
    """
    scale = length / new_length
    positions = ((start + np.arange(count) + 0.5) * scale - 0.5).clip(0, length - 1)
    below = np.floor(positions).astype(int).clip(0, max(length - 2, 0))
    t = positions - below
    if order == 1:
        offsets, weights = np.arange(2), np.stack([1 - t, t])
    else:
        offsets = np.arange(-1, 3)
        weights = np.stack(
            [
                (1 - t) ** 3,
                4 - 6 * t**2 + 3 * t**3,
                1 + 3 * t + 3 * t**2 - 3 * t**3,
                t**3,
            ]
        )
        weights /= 6
    # Mirrored at the centres of the outermost voxels, like the coefficients of the spline.
    columns = _mirror(below + offsets[:, None], length)
    first, last = int(columns.min()), int(columns.max()) + 1
    rows = np.broadcast_to(np.arange(count), columns.shape)
    matrix = sparse.csr_matrix(
        (weights.ravel().astype(np.float32), (rows.ravel(), (columns - first).ravel())),
        shape=(count, last - first),
    )
    return matrix, first, last


def apply_weights(weights: sparse.csr_matrix, array: np.ndarray, axis: int) -> np.ndarray:
    """Return the product of a matrix and one axis of an array; float32.

    SciPy computes sparse products in one thread and in a fixed order, so results are reproducible.
    """
    moved = np.moveaxis(array, axis, 0)
    rows = np.ascontiguousarray(moved, np.float32).reshape(len(moved), -1)
    product = (weights @ rows).reshape(weights.shape[0], *moved.shape[1:])
    return np.moveaxis(product, 0, axis)


@lru_cache(maxsize=16)
def axis_weights(length: int, new_length: int, order: int, smoothed: bool) -> sparse.csr_matrix:
    """Return the weights that resample one whole axis: (new_length, length) float32.

    Smoothing, spline filter and interpolation are linear. Their product is one sparse matrix, so
    that each axis takes one pass over the image.

    Args:
        length, new_length: voxels of the axis before and after.
        order, smoothed: see `forward_part`.
    """
    sigma = max(0.0, (length / new_length - 1) / 2) if smoothed else 0.0
    reach = REACH * (order > 1) + int(np.ceil(4 * sigma))
    step = max(1, _WINDOW * new_length // length)
    blocks = []
    for start in range(0, new_length, step):
        count = min(step, new_length - start)
        weights, first, last = interpolation(length, new_length, start, count, order)
        low, high = max(0, first - reach), min(length, last + reach)
        filters = np.eye(high - low)
        if sigma:
            filters = ndimage.gaussian_filter1d(filters, sigma, 0, mode="nearest")
        if order > 1:
            filters = ndimage.spline_filter1d(filters, order, 0, mode="mirror")
        block = weights @ filters[first - low : last - low]
        block[np.abs(block) < NEGLIGIBLE] = 0
        narrow = sparse.csr_matrix(block.astype(np.float32))
        shifted = (narrow.data, narrow.indices + low, narrow.indptr)
        blocks.append(sparse.csr_matrix(shifted, shape=(count, length)))
    return sparse.vstack(blocks, "csr")


def _mirror(indices: np.ndarray, length: int) -> np.ndarray:
    if length == 1:
        return np.zeros_like(indices)
    indices = np.abs(indices)
    return np.where(indices >= length, 2 * (length - 1) - indices, indices)


def _three(values: np.ndarray) -> Triple:
    x, y, z = (int(value) for value in values)
    return x, y, z
