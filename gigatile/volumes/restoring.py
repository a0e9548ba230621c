"""From scores on the prepared grid back to labels on the file's own."""

import gzip
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
from scipy import sparse

from gigatile.files import write_whole
from gigatile.volumes.grid import Grid, interpolation, weigh

Decide = Callable[[np.ndarray], np.ndarray]
# NIfTI's code for "the values are labels".
_INTENT_LABEL = 1002


class Restorer:
    """Takes the scores of a prepared case plane by plane and gives the labels of its file's grid.

    Where the case was resampled, scores are interpolated linearly and decided then, so that an
    outline is not made of the prepared voxels' steps. Voxels outside the prepared box get 0.

    Args:
        grid: of the prepared case.
        decide: from scores, (…, K) float32, to labels, (…) uint8.
    """

    def __init__(self, grid: Grid, decide: Decide) -> None:
        self._grid = grid
        self._decide = decide
        self._result = np.zeros(grid.original_shape, np.uint8)
        first, stop = zip(*map(self._covered, range(3)), strict=True)
        self._first, self._stop = np.array(first), np.array(stop)
        # A view: what is written there stands in the result at its place.
        box = tuple(slice(a, b) for a, b in zip(first, stop, strict=True))
        self._box = grid.canonical(self._result)[box]
        self._in_plane = [self._weights(axis) for axis in (1, 2)]
        self._places, self._shares = self._along()
        self._written = 0
        self._taken = 0
        self._previous: np.ndarray | None = None

    def add(self, scores: np.ndarray) -> None:
        """Take the next planes.

        Args:
            scores: (n, y, z, K) float32: n successive planes along the prepared grid's first axis.
        """
        count, *plane = scores.shape[:3]
        if tuple(plane) != self._grid.shape[1:] or self._taken + count > self._grid.shape[0]:
            raise ValueError(
                f"planes {self._taken}-{self._taken + count} of {plane} voxels do not fit on a "
                f"grid of {self._grid.shape}"
            )
        for one in scores:
            self._add_plane(one)

    def labels(self) -> np.ndarray:
        """Return the labels, shape and axes as the file has them: (x, y, z) uint8."""
        if self._taken != self._grid.shape[0]:
            raise ValueError(f"{self._taken} planes were given of {self._grid.shape[0]}")
        return self._result

    def _add_plane(self, scores: np.ndarray) -> None:
        for axis, weights in enumerate(self._in_plane):
            if weights is not None:
                scores = weigh(weights, scores, axis)
        new = self._taken
        self._taken += 1
        # Every plane of the file that lies between the last plane and this one, or on this one.
        while self._written < len(self._places) and self._places[self._written] <= new:
            share = self._shares[self._written]
            if share and self._previous is not None:
                between = (1 - share) * self._previous + share * scores
            else:
                between = scores
            self._box[self._written] = self._decide(between)
            self._written += 1
        self._previous = scores if self._grid.resampled else None

    def _covered(self, axis: int) -> tuple[int, int]:
        """Return the file's voxels whose centres lie in the prepared box: first, one past the last.

        In the order of RAS+.
        """
        length, new_length = self._grid.canonical_shape[axis], self._grid.resampled_shape[axis]
        start = self._grid.crop_start[axis]
        stop = start + self._grid.shape[axis]
        # The centre of voxel i lies at (i + 1/2) new_length / length; whole numbers, as that is
        # exact: i is in the box from ceil(start length / new_length - 1/2) on.
        first, last = (
            -((new_length - 2 * end * length) // (2 * new_length)) for end in (start, stop)
        )
        return first, last

    def _weights(self, axis: int) -> sparse.csr_matrix | None:
        """Return what makes the file's voxels along an axis of the prepared ones, if anything."""
        grid = self._grid
        length, new_length = grid.canonical_shape[axis], grid.resampled_shape[axis]
        if length == new_length:
            return None
        count = int(self._stop[axis] - self._first[axis])
        weights, first, last = interpolation(
            new_length, length, int(self._first[axis]), count, order=1
        )
        # At the box's edge the outermost prepared voxel stands for those that were cut off.
        size = grid.shape[axis]
        old = (np.arange(first, last) - grid.crop_start[axis]).clip(0, size - 1)
        spread = sparse.csr_matrix(
            (np.ones(last - first, np.float32), (np.arange(last - first), old)),
            shape=(last - first, size),
        )
        return (weights @ spread).tocsr()

    def _along(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how each of the file's planes is made along the first axis.

        Returns:
            The later of the two prepared planes that it lies between, (n,) int; and the share that
            this one has, (n,) float32, the one before it having the rest.
        """
        weights = self._weights(0)
        count = int(self._stop[0] - self._first[0])
        if weights is None:
            return np.arange(count), np.ones(count, np.float32)
        weights = weights.toarray()
        later = weights.shape[1] - 1 - (weights[:, ::-1] > 0).argmax(axis=1)
        return later, weights[np.arange(count), later]


def write_segmentation(path: Path, labels: np.ndarray, grid: Grid) -> None:
    """Write labels as a NIfTI file that lies over the one which the grid was made of.

    Shape, sform, qform, their codes and the spacing are that file's, so every program puts both in
    the same place. The bytes depend on the labels and the grid alone.

    Args:
        path: to write, .nii.gz or .nii.
        labels: uint8, shape and axes as that file has them.
        grid: of the prepared case.
    """
    if labels.shape != grid.original_shape or labels.dtype != np.uint8:
        raise ValueError(f"labels of {labels.shape} {labels.dtype}, for {grid.original_shape}")
    place = grid.header
    second = place["format"] == "NIfTI-2"
    header = (nibabel.Nifti2Header if second else nibabel.Nifti1Header)()
    header.set_data_shape(labels.shape)
    header.set_data_dtype(np.uint8)
    header["magic"] = b"n+2" if second else b"n+1"
    header["vox_offset"] = 544 if second else 352
    header["scl_slope"], header["scl_inter"] = 1, 0
    header["intent_code"] = _INTENT_LABEL
    header["xyzt_units"] = place["units"]
    pixdim = place["pixdim"]
    if min(pixdim[1:]) <= 0:  # the sform alone tells the spacing
        pixdim = [pixdim[0], *np.linalg.norm(np.array(grid.original_affine)[:3, :3], axis=0)]
    header["pixdim"][:4] = pixdim
    for name in ("sform_code", "qform_code"):
        header[name] = place[name]
    for part, row, turn, offset in zip(
        "xyz", place["sform"], place["quatern"], place["qoffset"], strict=True
    ):
        header[f"srow_{part}"] = row
        header[f"qoffset_{part}"] = offset
        header[f"quatern_{chr(ord(part) - ord('x') + ord('b'))}"] = turn
    # Four bytes that say: no extensions.
    data = header.binaryblock + bytes(4) + labels.tobytes(order="F")
    if path.name.endswith(".gz"):
        data = gzip.compress(data, 6, mtime=0)
    with write_whole(path) as temporary:
        temporary.write_bytes(data)
