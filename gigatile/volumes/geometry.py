"""The position and orientation of a file's voxels, and whether a case's files have the same grid.

World coordinates are NIfTI's: millimetres to the patient's right, anterior and superior (RAS+).
https://nifti.nimh.nih.gov/nifti-1/documentation/nifti1fields/nifti1fields_pages/qsform.html
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import nibabel
import numpy as np
from nibabel.affines import obliquity
from nibabel.orientations import apply_orientation, inv_ornt_aff, io_orientation

from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.reader import Volume

# Two grids are equal if their corners are closer than this fraction of the smallest side of a
# voxel. Up to `EXACT` millimetres, a rounding error of float32, there is no warning.
NOISE = 0.1
EXACT = 1e-3
# Limits in millimetres; a header with other values is damaged.
MIN_SPACING, MAX_SPACING = 0.01, 100.0
MAX_OFFSET = 1e6
# Tolerance of the angle between two axes, in degrees.
RIGHT_ANGLE = 0.5
# Relative tolerance of two spacings in one header.
SPACING_NOISE = 0.01
_UNITS = {1: "metres", 3: "micrometres"}


@dataclass(frozen=True)
class HeaderFields:
    """The NIfTI header fields from which a file with the same geometry can be written.

    NaN and infinity, which JSON lacks, are 0 here.

    Attributes:
        format: `NIfTI-1` or `NIfTI-2`.
        pixdim: qfac and the spacing along three axes.
        units: of space, a code.
        sform_code, qform_code: 0 if not set.
        sform: the three rows srow_x, srow_y and srow_z.
        quatern: quatern_b, quatern_c and quatern_d.
        qoffset: qoffset_x, qoffset_y and qoffset_z.
    """

    format: str
    pixdim: list[float]
    units: int
    sform_code: int
    sform: list[list[float]]
    qform_code: int
    quatern: list[float]
    qoffset: list[float]


@dataclass(frozen=True)
class Geometry:
    """The grid of a file.

    Attributes:
        shape: voxels along each axis of the file.
        affine: (4, 4) float64, from voxel indices to millimetres.
        source: of the affine: `sform`, `qform` or, if neither is set, `pixdim`.
        header: the header fields of the geometry.
        warnings: for the user.
    """

    shape: tuple[int, int, int]
    affine: np.ndarray
    source: str
    header: HeaderFields
    warnings: tuple[str, ...]

    @cached_property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres between voxels along each axis of the file."""
        return _spacing(self.affine)

    @cached_property
    def orientation(self) -> str:
        """The approximate direction of each axis: `LPS` is left, posterior, superior."""
        return "".join(nibabel.aff2axcodes(self.affine))

    @cached_property
    def oblique(self) -> float:
        """The largest angle between an axis and the patient's, in degrees."""
        return float(np.degrees(obliquity(self.affine).max()))

    @property
    def voxel_ml(self) -> float:
        """The volume of a voxel in millilitres."""
        return float(abs(np.linalg.det(self.affine[:3, :3])) / 1000)

    def corners(self) -> np.ndarray:
        """Return the centres of the eight corner voxels: (8, 3) mm."""
        ends = np.array(list(itertools.product(*((0, side - 1) for side in self.shape))))
        return ends @ self.affine[:3, :3].T + self.affine[:3, 3]

    def __str__(self) -> str:
        text = f"{_by(self.shape)} voxels of {_by(self.spacing)} mm, {self.orientation}"
        return text + (f" rotated by {self.oblique:.1f}°" if self.oblique >= 0.05 else "")


@dataclass(frozen=True)
class Reoriented:
    """A file's grid with its axes in the order and direction of another grid.

    Attributes:
        geometry: the grid; the voxels keep their positions.
        orientation: (3, 2), nibabel's orientation array for `apply_orientation`.
    """

    geometry: Geometry
    orientation: np.ndarray

    def apply(self, array: np.ndarray) -> np.ndarray:
        """Return an array of the file with reoriented axes; a view."""
        return apply_orientation(array, self.orientation)


@dataclass(frozen=True)
class Agreement:
    """The result of comparing the grids of a case's files.

    Attributes:
        state: `equal`, `noise` (less than a tenth of a voxel apart) or `different`.
        difference_mm: the largest distance between the same corner of two files.
        message: the differences, for the user; empty if there are none.
    """

    state: Literal["equal", "noise", "different"]
    difference_mm: float
    message: str


def geometry_of(volume: Volume) -> Geometry:
    """Return the grid of a file.

    The sform is used if it is set, otherwise the qform, as in most programs.

    Raises:
        VolumeError: the header has no geometry, or an implausible one.
    """
    header = volume.header
    pixdim = [float(side) for side in header["pixdim"][1:4]]
    valid_pixdim = _is_valid(pixdim)
    warnings = []
    affines, faults = {}, []
    for source in ("sform", "qform"):
        if header[f"{source}_code"] != 0:
            try:
                affines[source] = _check_affine(_read_affine(header, source), source)
            except VolumeError as error:
                faults.append(str(error))
    if affines:
        source, affine = next(iter(affines.items()))
        warnings += [f"{fault}; its {source} is used" for fault in faults]
    elif faults:
        raise VolumeError(faults[0])
    else:
        if not valid_pixdim:
            raise VolumeError(_no_spacing(pixdim))
        source, affine = "pixdim", _check_affine(header.get_base_affine(), "spacing")
        axes = "".join(nibabel.aff2axcodes(affine))
        warnings.append(
            f"its header has no orientation (neither sform nor qform is set); {axes} is assumed, "
            "as for ANALYZE"
        )
    geometry = Geometry(volume.shape, affine, source, _header_fields(volume), tuple(warnings))
    if len(affines) == 2:
        qform = Geometry(volume.shape, affines["qform"], "qform", geometry.header, ())
        distance = _corner_distance(geometry, qform)
        if distance > NOISE * min(geometry.spacing):
            warnings.append(
                f"its sform and qform differ by up to {_length(distance)}; the sform is used"
            )
    if source == "sform" and not valid_pixdim:
        warnings.append(
            f"its header has a spacing of {_by(pixdim)} mm; the spacing of its sform is used"
        )
    elif not np.allclose(pixdim, geometry.spacing, rtol=SPACING_NOISE, atol=0):
        warnings.append(
            f"its header has a spacing of {_by(pixdim)} mm, its {source} a spacing of "
            f"{_by(geometry.spacing)} mm, which is used"
        )
    skew = _skew(affine)
    if skew > RIGHT_ANGLE:
        warnings.append(
            f"its axes deviate from right angles by {skew:.1f}°, so its voxels are skewed"
        )
    unit = int(header["xyzt_units"]) & 7
    if unit in _UNITS:
        warnings.append(f"its header has the unit {_UNITS[unit]}; millimetres are assumed")
    return Geometry(volume.shape, affine, source, geometry.header, tuple(warnings))


def reorient_like(geometry: Geometry, reference: Geometry) -> Reoriented:
    """Return a grid with its axes in the order and direction of a reference grid.

    The grids are not both reoriented to RAS: near 45°, two grids that differ only by noise may have
    different orientations.
    """
    orientation = io_orientation(np.linalg.inv(reference.affine) @ geometry.affine)
    x, y, z = (geometry.shape[axis] for axis in np.argsort(orientation[:, 0]))
    affine = geometry.affine @ inv_ornt_aff(orientation, geometry.shape)
    return Reoriented(
        Geometry((x, y, z), affine, geometry.source, geometry.header, geometry.warnings),
        orientation,
    )


def compare(geometries: Mapping[str, Geometry], reference: str) -> Agreement:
    """Compare the grids of a case's files, regardless of the order and direction of their axes.

    Args:
        geometries: by the name of the file's column.
        reference: the name of the grid to compare the others to.
    """
    known = geometries[reference]
    smallest = min(min(geometry.spacing) for geometry in geometries.values())
    others = {
        name: reorient_like(geometry, known).geometry
        for name, geometry in geometries.items()
        if name != reference
    }
    distances = {name: _corner_distance(known, other) for name, other in others.items()}
    largest = max(distances.values(), default=0.0)
    same_shape = all(other.shape == known.shape for other in others.values())
    if same_shape and largest <= EXACT:
        return Agreement("equal", largest, "")
    if same_shape and largest <= NOISE * smallest:
        farthest = max(distances, key=lambda name: distances[name])
        message = (
            f"its files are up to {_length(largest)} apart ({reference} and {farthest}), less than "
            "a tenth of a voxel; they are treated as equal"
        )
        return Agreement("noise", largest, message)
    listed = "; ".join(f"{name}: {geometry}" for name, geometry in geometries.items())
    differences = ", ".join(_differences(known, others, largest))
    return Agreement("different", largest, f"they differ in {differences} ({listed})")


def _differences(known: Geometry, others: Mapping[str, Geometry], largest: float) -> list[str]:
    """Return in what the grids differ; `largest` is the largest distance of corners in mm."""
    differences = []
    if any(other.shape != known.shape for other in others.values()):
        differences.append("shape")
    if any(
        not np.allclose(other.spacing, known.spacing, rtol=SPACING_NOISE)
        for other in others.values()
    ):
        differences.append("spacing")
    angle = max(_angle(known.affine, other.affine) for other in others.values())
    if angle >= 0.05:
        differences.append(f"direction by {angle:.1f}°")
    if "shape" in differences:
        centres = max(_centre_distance(known, other) for other in others.values())
        return [*differences, f"the position of their centres by up to {_length(centres)}"]
    return [*differences, f"the position of their corners by up to {_length(largest)}"]


def _read_affine(header: nibabel.Nifti1Header, source: str) -> np.ndarray:
    """Return the affine of the sform or the qform: (4, 4)."""
    if source == "sform":
        return np.array(header.get_sform(), float)
    pixdim = [float(side) for side in header["pixdim"][1:4]]
    if not _is_valid(pixdim):
        raise VolumeError(_no_spacing(pixdim))
    try:
        return np.array(header.get_qform(), float)
    except (ValueError, nibabel.spatialimages.HeaderDataError):
        raise VolumeError("its qform is not a rotation") from None


def _is_valid(pixdim: Sequence[float]) -> bool:
    return all(np.isfinite(side) and side > 0 for side in pixdim)


def _no_spacing(pixdim: Sequence[float]) -> str:
    return f"its header has no valid spacing: {_by(pixdim)} mm"


def _check_affine(affine: np.ndarray, source: str) -> np.ndarray:
    """Return an affine if it is plausible."""
    if not np.isfinite(affine).all():
        raise VolumeError(f"its {source} contains NaN or infinity")
    if np.abs(affine).max() > MAX_OFFSET:
        raise VolumeError(f"its {source} contains {np.abs(affine).max():.4g} mm: it is damaged")
    spacing = _spacing(affine)
    if min(spacing) <= 0:
        raise VolumeError(f"its {source} is singular: its spacing is {_by(spacing)} mm")
    # Determinant of the unit vectors, so that it does not depend on the spacing.
    if abs(np.linalg.det(affine[:3, :3] / spacing)) < 1e-3:
        raise VolumeError(f"its {source} is singular: its axes lie in one plane")
    if min(spacing) < MIN_SPACING or max(spacing) > MAX_SPACING:
        raise VolumeError(
            f"its {source} has a spacing of {_by(spacing)} mm; must be "
            f"{MIN_SPACING:g}-{MAX_SPACING:g} mm"
        )
    return affine


def _header_fields(volume: Volume) -> HeaderFields:
    header = volume.header
    return HeaderFields(
        format=volume.format,
        pixdim=_finite(header["pixdim"][:4]),
        units=int(header["xyzt_units"]) & 7,
        sform_code=int(header["sform_code"]),
        sform=[_finite(header[f"srow_{axis}"]) for axis in "xyz"],
        qform_code=int(header["qform_code"]),
        quatern=_finite([header[f"quatern_{part}"] for part in "bcd"]),
        qoffset=_finite([header[f"qoffset_{axis}"] for axis in "xyz"]),
    )


def _finite(values: Iterable[float]) -> list[float]:
    return [float(value) if np.isfinite(value) else 0.0 for value in values]


def _corner_distance(first: Geometry, second: Geometry) -> float:
    """Return the largest distance between the same corner of two grids, in mm."""
    return float(np.linalg.norm(first.corners() - second.corners(), axis=1).max())


def _centre_distance(first: Geometry, second: Geometry) -> float:
    return float(np.linalg.norm(first.corners().mean(axis=0) - second.corners().mean(axis=0)))


def _spacing(affine: np.ndarray) -> tuple[float, float, float]:
    x, y, z = np.linalg.norm(affine[:3, :3], axis=0).tolist()
    return x, y, z


def _angle(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest angle between the same axis of two affines, in degrees."""
    a, b = (affine[:3, :3] / _spacing(affine) for affine in (first, second))
    return float(np.degrees(np.arccos(np.clip((a * b).sum(axis=0), -1, 1)).max()))


def _skew(affine: np.ndarray) -> float:
    """Return the largest deviation of two axes from the right angle, in degrees."""
    axes = affine[:3, :3] / _spacing(affine)
    cosines = np.abs((axes.T @ axes)[np.triu_indices(3, 1)])
    return float(np.degrees(np.arcsin(np.clip(cosines, 0, 1)).max()))


def _by(sides: Iterable[float]) -> str:
    return "×".join(f"{float(side):.4g}" for side in sides)


def _length(millimetres: float) -> str:
    return f"{millimetres * 1000:.3g} µm" if millimetres < 0.1 else f"{millimetres:.3g} mm"
