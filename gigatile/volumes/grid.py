"""The grid of a prepared case: from a file's voxels to the prepared ones, and where those lie.

The way there: the axes are put in the order of RAS+, the volume is resampled to the wanted spacing
so that its outer faces stay where they are, and cut to a box. Nothing is interpolated along an axis
that keeps its number of voxels.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
from nibabel.orientations import apply_orientation, inv_ornt_aff, io_orientation
from scipy import ndimage, sparse

from gigatile.volumes.background import box_of, slices_of
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.geometry import Geometry
from gigatile.volumes.reader import MOST_SIDE, MOST_VOXELS

# A cubic spline's value depends on voxels that are this far away by less than a ten-millionth.
REACH = 14
# Weights below this are left out.
NEGLIGIBLE = 1e-7
# Voxels of an axis whose weights are worked out at a time.
_WINDOW = 256

Triple = tuple[int, int, int]
Sides = tuple[float, float, float]


@dataclass(frozen=True)
class Grid:
    """Where the voxels of a prepared case lie, and how they came from the file's.

    Attributes:
        original_shape: voxels along each axis of the file.
        original_affine: (4, 4), from the file's voxel indices to millimetres in RAS+.
        orientation: where the file's axes point to, as `LPS`.
        header: what the file's header says of its place; see `gigatile.volumes.geometry`.
        canonical_spacing: millimetres between the file's voxels, axes in the order of RAS+.
        spacing: millimetres between the prepared voxels.
        resampled_shape: voxels of the whole volume at that spacing.
        crop_start: the first of them that is kept.
        shape: how many of them are kept: the prepared case's shape.
    """

    original_shape: Triple
    original_affine: tuple[tuple[float, ...], ...]
    orientation: str
    header: dict[str, Any]
    canonical_spacing: Sides
    spacing: Sides
    resampled_shape: Triple
    crop_start: Triple
    shape: Triple

    @cached_property
    def steps(self) -> np.ndarray:
        """Which of the file's axes goes where, and whether it is reversed: (3, 2), nibabel's."""
        return io_orientation(np.array(self.original_affine))

    @cached_property
    def canonical_shape(self) -> Triple:
        """The file's shape with its axes in the order of RAS+."""
        x, y, z = (self.original_shape[axis] for axis in np.argsort(self.steps[:, 0]))
        return x, y, z

    @property
    def resampled(self) -> bool:
        """Whether voxels are interpolated along any axis."""
        return self.resampled_shape != self.canonical_shape

    @property
    def cropped(self) -> tuple[slice, ...]:
        """Where the prepared voxels lie in the whole volume at their spacing."""
        return tuple(
            slice(start, start + size)
            for start, size in zip(self.crop_start, self.shape, strict=True)
        )

    @cached_property
    def affine(self) -> np.ndarray:
        """From indices of prepared voxels to millimetres in RAS+: (4, 4) float64."""
        affine = np.array(self.original_affine) @ inv_ornt_aff(self.steps, self.original_shape)
        scale = np.array(self.canonical_shape) / self.resampled_shape
        place = np.diag([*scale, 1.0])
        # Faces stay where they are, so the centre of the first voxel moves.
        place[:3, 3] = (np.array(self.crop_start) + 0.5) * scale - 0.5
        return affine @ place

    def canonical(self, array: np.ndarray) -> np.ndarray:
        """Return the file's array, (x, y, z, …), with its axes in the order of RAS+; a view."""
        if array.shape[:3] != self.original_shape:
            raise ValueError(f"{array.shape[:3]} voxels where the file has {self.original_shape}")
        return apply_orientation(array, self.steps)

    def cut_to(self, start: Sequence[int], stop: Sequence[int]) -> Self:
        """Return this grid cut to what covers a box of the file's voxels.

        Args:
            start, stop: the box, (3,) each, in the order of RAS+.
        """
        n, m = np.array(self.canonical_shape), np.array(self.resampled_shape)
        first = np.array(start) * m // n
        last = -(-np.array(stop) * m // n)
        return replace(self, crop_start=_three(first), shape=_three(last - first))

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes, as JSON has it."""
        return {
            name: _listed(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the grid that `to_json` told of."""
        affine = tuple(tuple(float(value) for value in row) for row in values["original_affine"])
        tuples = {
            name: tuple(value)
            for name, value in values.items()
            if isinstance(value, list | tuple) and name != "original_affine"
        }
        return cls(**(values | tuples | {"original_affine": affine}))


def plan_grid(geometry: Geometry, spacing: Sides | None) -> Grid:
    """Return the grid of a whole volume at a spacing.

    Args:
        geometry: of the file.
        spacing: the wanted millimetres, in the order of RAS+; None: the file's. The volume keeps
            its extent, so it becomes the nearest spacing that gives a whole number of voxels.

    Raises:
        VolumeError: the volume would have more voxels than can be worked on.
    """
    steps = io_orientation(geometry.affine)
    order = np.argsort(steps[:, 0])
    shape = np.array(geometry.shape)[order]
    own = np.array(geometry.spacing)[order]
    new = shape if spacing is None else np.floor(shape * own / spacing + 0.5).astype(int).clip(1)
    if new.max() > MOST_SIDE or new.prod(dtype=float) > MOST_VOXELS:
        raise VolumeError(
            f"at the spacing of volumes.spacing it would have {'×'.join(map(str, new))} voxels; "
            f"{MOST_VOXELS:,} at most can be prepared"
        )
    affine = tuple(tuple(row) for row in geometry.affine.tolist())
    x, y, z = own.tolist()
    to = (own * shape / new).tolist()
    return Grid(
        geometry.shape,
        affine,
        geometry.orientation,
        geometry.header,
        (x, y, z),
        (to[0], to[1], to[2]),
        _three(new),
        (0, 0, 0),
        _three(new),
    )


def forward_image(array: np.ndarray, grid: Grid, order: int = 3) -> np.ndarray:
    """Return an image on the prepared grid.

    Where voxels become larger the image is smoothed first by a Gaussian whose standard deviation is
    half of what a voxel grows by, in voxels, so that fine detail does not become false structure
    (the rule of skimage.transform.resize).

    Args:
        array: (x, y, z) of the file, any numbers.
        grid: where to.
        order: 3, a cubic spline, or 1, linear.

    Returns:
        `grid.shape`, float32.
    """
    return forward_part(grid.canonical(array), (0, 0, 0), grid, order)


def forward_part(
    part: np.ndarray, start: Sequence[int], grid: Grid, order: int = 3, smoothed: bool = True
) -> np.ndarray:
    """Return an image on the prepared grid that is 0 outside a box.

    Args:
        part: (x, y, z), the box, axes in the order of RAS+. It covers the prepared grid along axes
            that keep their number of voxels.
        start: its first voxel, (3,).
        grid: where to.
        order: as of `forward_image`.
        smoothed: smooth where voxels become larger, as `forward_image` does.

    Returns:
        `grid.shape`, float32.
    """
    cut: list[slice] = []
    needed: list[sparse.csr_matrix | None] = []
    for axis in range(3):
        length, new_length = grid.canonical_shape[axis], grid.resampled_shape[axis]
        first, new_first, count = start[axis], grid.crop_start[axis], grid.shape[axis]
        if length == new_length:
            cut.append(slice(new_first - first, new_first - first + count))
            needed.append(None)
        else:
            weights = axis_weights(length, new_length, order, smoothed)
            cut.append(slice(None))
            needed.append(weights[new_first : new_first + count, first : first + part.shape[axis]])
    along_x, along_y, along_z = needed
    # In the order of a file's memory: planes across z, in which x varies fastest.
    planes = np.ascontiguousarray(part[tuple(cut)].T, np.float32)
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

    Each label by itself is interpolated linearly, and a voxel gets the label that it has most of;
    of two equal ones the smaller. Where nothing is resampled it is the file's own labels, cut.

    Args:
        array: (x, y, z) uint8 of the file.
        grid: where to.
    """
    labels = grid.canonical(array)
    if not grid.resampled:
        return np.ascontiguousarray(labels[grid.cropped])
    result = np.zeros(grid.shape, np.uint8)
    labelled = box_of(labels > 0)
    if labelled is None:
        return result
    # A voxel farther away has no share of any label; `around` is the part of the grid that is left.
    box = np.clip(labelled + np.array([[-1], [1]]), 0, labels.shape)
    around = grid.cut_to(*box)
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
        start, count: the new voxels that are wanted.
        order: 1, linear, or 3, for the coefficients of a cubic spline.

    Returns:
        The weights, (count, last - first) float32, and `first` and `last`: the old voxels that they
        take. Beyond the outermost voxels their value stays.
    """
    scale = length / new_length
    places = ((start + np.arange(count) + 0.5) * scale - 0.5).clip(0, length - 1)
    below = np.floor(places).astype(int).clip(0, max(length - 2, 0))
    t = places - below
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
    # Mirrored at the centres of the outermost voxels, as the spline's coefficients are.
    taken = _mirrored(below + offsets[:, None], length)
    first, last = int(taken.min()), int(taken.max()) + 1
    rows = np.broadcast_to(np.arange(count), taken.shape)
    matrix = sparse.csr_matrix(
        (weights.ravel().astype(np.float32), (rows.ravel(), (taken - first).ravel())),
        shape=(count, last - first),
    )
    return matrix, first, last


def weigh(weights: sparse.csr_matrix, array: np.ndarray, axis: int) -> np.ndarray:
    """Return an array whose axis is weighted sums of what it was; float32.

    A sparse product is done in one thread and in one order: the result is the same everywhere.
    """
    moved = np.moveaxis(array, axis, 0)
    rows = np.ascontiguousarray(moved, np.float32).reshape(len(moved), -1)
    found = (weights @ rows).reshape(weights.shape[0], *moved.shape[1:])
    return np.moveaxis(found, 0, axis)


@lru_cache(maxsize=16)
def axis_weights(length: int, new_length: int, order: int, smoothed: bool) -> sparse.csr_matrix:
    """Return the weights that resample one whole axis: (new_length, length) float32.

    Smoothing, the coefficients of the spline and its values are linear in the voxels. Their product
    is one matrix with few voxels in each row, so that an image is gone through once for an axis.

    Args:
        length, new_length: voxels of the axis before and after.
        order, smoothed: as of `forward_part`.
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
        found = sparse.csr_matrix(block.astype(np.float32))
        moved = (found.data, found.indices + low, found.indptr)
        blocks.append(sparse.csr_matrix(moved, shape=(count, length)))
    return sparse.vstack(blocks, "csr")


def _mirrored(places: np.ndarray, length: int) -> np.ndarray:
    if length == 1:
        return np.zeros_like(places)
    places = np.abs(places)
    return np.where(places >= length, 2 * (length - 1) - places, places)


def _three(values: np.ndarray) -> Triple:
    x, y, z = (int(value) for value in values)
    return x, y, z


def _listed(value: tuple[Any, ...]) -> list[Any]:
    return [list(one) if isinstance(one, tuple) else one for one in value]
