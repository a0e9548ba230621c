"""Restore a segmentation: from scores on the prepared grid to labels on the file's grid."""

import gzip
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
from scipy import sparse

from gigatile.files import write_whole
from gigatile.volumes.grid import Grid, apply_weights, interpolation

Decide = Callable[[np.ndarray], np.ndarray]
# NIFTI_INTENT_LABEL: the values are labels.
_INTENT_LABEL = 1002


class Restorer:
    """Takes the scores of a prepared case plane by plane, and returns labels on the file's grid.

    If the case was resampled, scores are interpolated linearly before labels are decided, which
    gives smooth outlines. Voxels outside of the prepared crop get 0.

    Args:
        grid: of the prepared case.
        decide: returns labels, (…) uint8, from scores, (…, K) float32.
    """

    def __init__(self, grid: Grid, decide: Decide) -> None:
        self._grid = grid
        self._decide = decide
        self._result = np.zeros(grid.original_shape, np.uint8)
        first, stop = zip(*map(self._covered, range(3)), strict=True)
        self._first, self._stop = np.array(first), np.array(stop)
        # A view of the result.
        box = tuple(slice(a, b) for a, b in zip(first, stop, strict=True))
        self._box = grid.canonical(self._result)[box]
        self._in_plane = [self._weights(axis) for axis in (1, 2)]
        self._later_planes, self._later_weights = self._plane_weights()
        self._written = 0
        self._added = 0
        self._previous: np.ndarray | None = None

    def add(self, scores: np.ndarray) -> None:
        """Add the next planes.

        Args:
            scores: (n, y, z, K) float32: n successive planes along the prepared grid's first axis.
        """
        count, *plane = scores.shape[:3]
        if tuple(plane) != self._grid.shape[1:] or self._added + count > self._grid.shape[0]:
            raise ValueError(
                f"planes {self._added}-{self._added + count} of {plane} voxels do not fit on a "
                f"grid of {self._grid.shape}"
            )
        for plane_scores in scores:
            self._add_plane(plane_scores)

    def labels(self) -> np.ndarray:
        """Return the labels on the file's grid: (x, y, z) uint8."""
        if self._added != self._grid.shape[0]:
            raise ValueError(f"only {self._added} of {self._grid.shape[0]} planes were added")
        return self._result

    def _add_plane(self, scores: np.ndarray) -> None:
        for axis, weights in enumerate(self._in_plane):
            if weights is not None:
                scores = apply_weights(weights, scores, axis)
        current = self._added
        self._added += 1
        # All planes of the file after the previous plane, up to this one.
        while self._written < len(self._later_planes):
            if self._later_planes[self._written] > current:
                break
            weight = self._later_weights[self._written]
            if weight and self._previous is not None:
                interpolated = (1 - weight) * self._previous + weight * scores
            else:
                interpolated = scores
            self._box[self._written] = self._decide(interpolated)
            self._written += 1
        self._previous = scores if self._grid.resampled else None

    def _covered(self, axis: int) -> tuple[int, int]:
        """Return the file's voxels with centres in the crop: first, and one past the last.

        The axis is one of RAS+.
        """
        length, new_length = self._grid.canonical_shape[axis], self._grid.resampled_shape[axis]
        start = self._grid.crop_start[axis]
        stop = start + self._grid.shape[axis]
        # The centre of voxel i is at (i + 1/2) new_length / length, so the first voxel in the crop
        # is ceil(start length / new_length - 1/2). Integer arithmetic is exact.
        first, last = (
            -((new_length - 2 * end * length) // (2 * new_length)) for end in (start, stop)
        )
        return first, last

    def _weights(self, axis: int) -> sparse.csr_matrix | None:
        """Return the interpolation weights along an axis; None if it is not resampled."""
        grid = self._grid
        length, new_length = grid.canonical_shape[axis], grid.resampled_shape[axis]
        if length == new_length:
            return None
        count = int(self._stop[axis] - self._first[axis])
        weights, first, last = interpolation(
            new_length, length, int(self._first[axis]), count, order=1
        )
        # At the edge of the crop, the outermost voxel replaces the voxels outside.
        size = grid.shape[axis]
        old = (np.arange(first, last) - grid.crop_start[axis]).clip(0, size - 1)
        extension = sparse.csr_matrix(
            (np.ones(last - first, np.float32), (np.arange(last - first), old)),
            shape=(last - first, size),
        )
        return (weights @ extension).tocsr()

    def _plane_weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how each plane of the file is interpolated along the first axis.

        Returns:
            The index of the later of the two neighbouring prepared planes, (n,) int; and its
            weight, (n,) float32. The previous plane has the rest of the weight.
        """
        weights = self._weights(0)
        count = int(self._stop[0] - self._first[0])
        if weights is None:
            return np.arange(count), np.ones(count, np.float32)
        weights = weights.toarray()
        later = weights.shape[1] - 1 - (weights[:, ::-1] > 0).argmax(axis=1)
        return later, weights[np.arange(count), later]


def write_segmentation(path: Path, labels: np.ndarray, grid: Grid) -> None:
    """Write labels as a NIfTI file with the geometry of the original file.

    Shape, sform, qform, their codes and the spacing are the same, so every program overlays both
    files correctly. The bytes depend only on the labels and the grid.

    Args:
        path: to write, .nii.gz or .nii.
        labels: uint8, on the original file's grid.
        grid: of the prepared case.
    """
    if labels.shape != grid.original_shape or labels.dtype != np.uint8:
        raise ValueError(
            f"labels are {labels.shape} {labels.dtype}; must be {grid.original_shape} uint8"
        )
    fields = grid.header
    nifti_2 = fields.format == "NIfTI-2"
    header = (nibabel.Nifti2Header if nifti_2 else nibabel.Nifti1Header)()
    header.set_data_shape(labels.shape)
    header.set_data_dtype(np.uint8)
    header["magic"] = b"n+2" if nifti_2 else b"n+1"
    header["vox_offset"] = 544 if nifti_2 else 352
    header["scl_slope"], header["scl_inter"] = 1, 0
    header["intent_code"] = _INTENT_LABEL
    header["xyzt_units"] = fields.units
    pixdim = fields.pixdim
    if min(pixdim[1:]) <= 0:  # only the sform has the spacing
        pixdim = [pixdim[0], *np.linalg.norm(np.array(grid.original_affine)[:3, :3], axis=0)]
    header["pixdim"][:4] = pixdim
    header["sform_code"], header["qform_code"] = fields.sform_code, fields.qform_code
    for axis, row, offset in zip("xyz", fields.sform, fields.qoffset, strict=True):
        header[f"srow_{axis}"] = row
        header[f"qoffset_{axis}"] = offset
    for letter, component in zip("bcd", fields.quatern, strict=True):
        header[f"quatern_{letter}"] = component
    # Four bytes of 0: no extensions.
    data = header.binaryblock + bytes(4) + labels.tobytes(order="F")
    if path.name.endswith(".gz"):
        data = gzip.compress(data, 6, mtime=0)
    with write_whole(path) as temporary:
        temporary.write_bytes(data)
