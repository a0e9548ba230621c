"""Scan a demo head, and write the NIfTI files of a case with its unusual properties and faults.

Headers are written field by field, since libraries would fix many of these properties.
"""

import dataclasses
import gzip
from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.orientations import axcodes2ornt

from gigatile.demo.cases import FILES, LABELS, MODALITIES, DemoCase
from gigatile.demo.cohort import seed_of
from gigatile.demo.head import Head, HeadSamples, rotation_matrix
from gigatile.files import write_whole

FIELD = (178.0, 206.0, 162.0)  # field of view in mm: to the right, to the front, upwards
_GAIN = {"north": 900.0, "south": 420.0}  # by scanner
_SCALE, _OFFSET = 0.5, -120.0  # of the files with scl_slope
_PAGE = b"<!DOCTYPE html>\n<html><head><title>403 Forbidden</title></head></html>\n"
_DATA_AT = {nib.Nifti1Header: 352, nib.Nifti2Header: 544}
_SCANNER = 1  # code of an sform or qform in the scanner's coordinates


@dataclasses.dataclass(frozen=True)
class Grid:
    """The grid of a file; `affine` (4, 4) maps voxel indices to mm in RAS+."""

    shape: tuple[int, int, int]
    affine: np.ndarray

    def positions(self) -> np.ndarray:
        """Return the voxel centres (3, n) in mm, in C order."""
        i, j, k = (index.ravel() for index in np.indices(self.shape))
        return np.stack([row[0] * i + row[1] * j + row[2] * k + row[3] for row in self.affine[:3]])


def grid_of(
    spacing: tuple[float, float, float],
    orientation: str,
    rotation: np.ndarray | None = None,
    shift: tuple[float, float, float] = (0, 0, 0),
) -> Grid:
    """Return a grid around the head.

    Args:
        spacing: mm between voxels from left to right, from back to front, and from bottom to top.
        orientation: the directions of the array's axes, such as LPS.
        rotation: a rotation (3, 3) of the whole grid.
        shift: of the grid in mm: to the right, to the front, upwards.
    """
    sides = [max(8, round(reach / step)) for reach, step in zip(FIELD, spacing, strict=True)]
    columns, shape = [], []
    for axis, direction in axcodes2ornt(orientation).astype(int):
        columns.append(np.eye(3)[axis] * spacing[axis] * direction)
        shape.append(sides[axis])
    axes = np.stack(columns, axis=1)
    if rotation is not None:
        axes = np.stack([_multiply(rotation, column) for column in axes.T], axis=1)
    affine = np.eye(4)
    affine[:3, :3] = axes
    affine[:3, 3] = np.array(shift) - _multiply(axes, (np.array(shape) - 1) / 2)
    # Round to values that 32 bits can represent, so that sform and qform are equal.
    affine[:3, 3] = np.rint(affine[:3, 3] * 64) / 64
    return Grid((shape[0], shape[1], shape[2]), affine)


def grids_of(case: DemoCase) -> dict[str, Grid]:
    """Return the grid of each of a case's files."""
    rotation = (
        rotation_matrix(np.array([1 / 16, -1 / 32, 1 / 12])) if case.oddity == "oblique" else None
    )
    grids = dict.fromkeys(FILES, grid_of(case.spacing, case.orientation, rotation))
    if case.oddity == "another_order":
        grids["t2"] = grid_of(case.spacing, "RAS" if case.orientation != "RAS" else "LPS")
    if case.oddity == "noisy_grid":
        for number, file in enumerate(FILES):
            affine = grids[file].affine.copy()
            affine[:3, 3] += 2.0 ** -(9 + number)  # 0.12 to 2 micrometres, exact in 32 bits
            grids[file] = Grid(grids[file].shape, affine)
    if case.fault == "other_grid":
        grids["t1"] = grid_of((2.5, 2.5, 4.0), case.orientation, shift=(1, -2, 3))
        grids["t2"] = grid_of((3.5, 3.0, 3.0), "PIR")
    return grids


def scan(case: DemoCase) -> dict[str, tuple[np.ndarray, Grid]]:
    """Return the images and the segmentation of a case, before its oddity or fault is applied.

    Returns:
        For each modality the brain (axes of its grid) int16, at least 1 inside and 0 outside; for
        the segmentation labels uint8. The values are the same on every call and machine.
    """
    head = Head(case)
    samples: dict[tuple[object, bytes], HeadSamples] = {}
    scanned = {}
    for file, grid in grids_of(case).items():
        key = (grid.shape, grid.affine.tobytes())
        if key not in samples:
            samples[key] = head.sample(grid.positions())
        values = (
            samples[key].labels
            if file == "segmentation"
            else _measured(case, file, grid, samples[key])
        )
        scanned[file] = (values.reshape(grid.shape), grid)
    return scanned


def _measured(case: DemoCase, modality: str, grid: Grid, samples: HeadSamples) -> np.ndarray:
    """Return the signal (n,) int16, with the coil's bias field and the scanner's noise and gain."""
    rng = np.random.default_rng(seed_of(f"gigatile demo, {modality} of {case.case}"))
    x, y, z = grid.positions()[:, samples.inside] / 90
    bias = rng.uniform(-0.13, 0.13, 6)
    field = 1 + bias[0] * x + bias[1] * y + bias[2] * z
    field += bias[3] * x * y + bias[4] * (y * y - 0.3) + bias[5] * (z * z - 0.3)
    # The sum of four random bytes is nearly normal, and needs no logarithm.
    grains = rng.integers(0, 256, (4, x.size), dtype=np.uint8).astype(np.int64).sum(axis=0) - 510
    noise = grains * (rng.uniform(0.04, 0.07) / 147.8)
    gain = _GAIN[case.site] * rng.uniform(0.8, 1.3)
    signal = np.zeros(samples.inside.size, np.int16)
    measured = (samples.intensities[modality][samples.inside] * field + noise) * gain
    signal[samples.inside] = np.clip(np.rint(measured), 1, 32767)
    return signal


def write_case(case: DemoCase, folder: Path) -> None:
    """Write a case's files, `FILES` with the suffix .nii.gz, each atomically.

    The segmentation and t2 are written even if the sheet does not have them. The bytes are the same
    on every call.
    """
    for file, (values, grid) in scan(case).items():
        with write_whole(folder / f"{file}.nii.gz") as temporary:
            temporary.write_bytes(_encode(case, file, values, grid))


def _encode(case: DemoCase, file: str, values: np.ndarray, grid: Grid) -> bytes:
    """Return the bytes of a file."""
    if (case.fault, file) == ("empty", "flair"):
        return b""
    if (case.fault, file) == ("html", "t2"):
        return _PAGE
    if (case.fault, file) == ("undeclared_label", "segmentation"):
        values = np.where(values == LABELS["enhancing"], 4, values).astype(np.uint8)
    if (case.fault, file) == ("nan", "t1"):
        values = np.full(values.shape, np.nan, np.float32)

    slope, offset = 1.0, 0.0
    if case.oddity == "scaled" and file in MODALITIES:
        slope, offset = _SCALE, _OFFSET
        values = ((values - _OFFSET) / _SCALE).astype(np.int16)
    if case.oddity == "background" and file in MODALITIES:
        values = _standardised(values)
    if case.oddity == "loose_labels" and file == "segmentation":
        # Like a program that scales values to the range of the integer type.
        largest = int(values.max())
        slope = largest / (2**31 - 1)
        values = (values.astype(np.int64) * (2**31 - 1) // largest).astype(np.int32)
    packed = _compressed(_nifti(values, grid.affine, case, slope, offset))
    return packed[: len(packed) * 3 // 5] if (case.fault, file) == ("truncated", "t1gd") else packed


def _standardised(values: np.ndarray) -> np.ndarray:
    """Return a z-scored volume: outside the brain, 0 becomes about -3."""
    brain = values[values > 0].astype(np.int64)
    # Integer sums are exact in any order.
    mean = int(brain.sum()) / brain.size
    deviation = np.sqrt(int((brain * brain).sum()) / brain.size - mean * mean)
    return ((values - mean) / deviation).astype(np.float32)


def _nifti(
    values: np.ndarray, affine: np.ndarray, case: DemoCase, slope: float, offset: float
) -> bytes:
    kind = nib.Nifti2Header if case.oddity == "nifti2" else nib.Nifti1Header
    header = kind(endianness=">" if case.oddity == "big_endian" else "<")
    header.set_data_dtype(values.dtype)
    header.set_data_shape(values.shape)
    header.set_xyzt_units("mm")
    header["descrip"] = b"synthetic, drawn by Gigatile"
    # Also sets the voxel sizes. Code 0 means that the form is not present.
    header.set_qform(affine, 0 if case.oddity == "sform_only" else _SCANNER)
    if case.oddity != "qform_only":
        header.set_sform(affine, _SCANNER)
    header["scl_slope"], header["scl_inter"] = slope, offset
    header["vox_offset"] = _DATA_AT[kind]
    voxels = values.astype(header.get_data_dtype()).tobytes(order="F")
    # Four zero bytes after the header: no extension.
    return bytes(header.binaryblock) + bytes(4) + voxels


def _compressed(data: bytes) -> bytes:
    # Without time and name, so that equal data give equal files.
    return gzip.compress(data, compresslevel=6, mtime=0)


def _multiply(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return `matrix` (3, 3) times `vector` (3,), with the same order of sums on every machine."""
    return np.array(
        [row[0] * vector[0] + row[1] * vector[1] + row[2] * vector[2] for row in matrix]
    )
