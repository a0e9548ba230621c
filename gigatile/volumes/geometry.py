"""Where the voxels of a file lie in the patient, and whether a case's files agree on it.

World coordinates are NIfTI's: millimetres to the patient's right, front and top (RAS+).
https://nifti.nimh.nih.gov/nifti-1/documentation/nifti1fields/nifti1fields_pages/qsform.html
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import nibabel
import numpy as np
from nibabel.affines import obliquity
from nibabel.orientations import apply_orientation, inv_ornt_aff, io_orientation

from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.reader import Volume

# Two grids are one when their corners lie no farther apart than this share of the smallest side of
# a voxel; nearer than `EXACT` millimetres, as float32 rounds, nothing is said of it.
NOISE = 0.1
EXACT = 1e-3
# Millimetres; a header that tells of others is damaged.
LEAST_SPACING, MOST_SPACING = 0.01, 100.0
FARTHEST = 1e6
# Degrees between two axes by which they may miss the right angle.
RIGHT_ANGLE = 0.5
# The share by which two spacings in one header may differ.
SPACING_NOISE = 0.01
_UNITS = {1: "metres", 3: "micrometres"}


@dataclass(frozen=True)
class Geometry:
    """The grid of a file.

    Attributes:
        shape: voxels along each axis of the file.
        affine: (4, 4) float64, from voxel indices to millimetres.
        source: what the affine was taken from: `sform`, `qform` or, where none is coded, `pixdim`.
        header: what the header says of it, for writing a file that lies in the same place.
        warnings: what a user should know of it.
    """

    shape: tuple[int, int, int]
    affine: np.ndarray
    source: str
    header: dict[str, Any]
    warnings: tuple[str, ...]

    @cached_property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres between voxels along each axis of the file."""
        return _spacing(self.affine)

    @cached_property
    def orientation(self) -> str:
        """Where each axis of the file points to, roughly: `LPS` is to the left, back and top."""
        return "".join(nibabel.aff2axcodes(self.affine))

    @cached_property
    def oblique(self) -> float:
        """Degrees by which the axes miss the patient's at most."""
        return float(np.degrees(obliquity(self.affine).max()))

    @property
    def voxel_ml(self) -> float:
        """The volume of a voxel in millilitres."""
        return float(abs(np.linalg.det(self.affine[:3, :3])) / 1000)

    def corners(self) -> np.ndarray:
        """Return the centres of the voxels at the corners: (8, 3) mm."""
        ends = np.array(list(itertools.product(*((0, side - 1) for side in self.shape))))
        return ends @ self.affine[:3, :3].T + self.affine[:3, 3]

    def __str__(self) -> str:
        told = f"{_by(self.shape)} voxels of {_by(self.spacing)} mm, {self.orientation}"
        return told + (f" turned by {self.oblique:.1f}°" if self.oblique >= 0.05 else "")


@dataclass(frozen=True)
class Turned:
    """A file's grid with its axes in the order and direction of another's.

    Attributes:
        geometry: the grid; no voxel has moved.
        steps: (3, 2), which axis goes where and whether it is reversed, as nibabel has it.
    """

    geometry: Geometry
    steps: np.ndarray

    def turn(self, array: np.ndarray) -> np.ndarray:
        """Return the file's array with the axes turned so; a view."""
        return apply_orientation(array, self.steps)


@dataclass(frozen=True)
class Agreement:
    """How the grids of a case's files agree.

    Attributes:
        state: `equal`, `noise` (nearer than a tenth of a voxel) or `different`.
        difference_mm: how far the same corner of two files lies apart at most.
        told: what differs, for the user; empty where all are equal.
    """

    state: str
    difference_mm: float
    told: str


def geometry_of(volume: Volume) -> Geometry:
    """Return the grid of a file.

    The sform counts where it is coded, else the qform, as most programs have it.

    Raises:
        VolumeError: the file does not tell where its voxels lie, or what it tells cannot be.
    """
    header = volume.header
    pixdim = [float(side) for side in header["pixdim"][1:4]]
    sound = _sound(pixdim)
    warnings = []
    affines, faults = {}, []
    for source in ("sform", "qform"):
        if header[f"{source}_code"] != 0:
            try:
                affines[source] = _checked(_coded(header, source), source)
            except VolumeError as error:
                faults.append(str(error))
    if affines:
        source, affine = next(iter(affines.items()))
        warnings += [f"{fault}; its {source} is taken" for fault in faults]
    elif faults:
        raise VolumeError(faults[0])
    else:
        if not sound:
            raise VolumeError(_no_spacing(pixdim))
        source, affine = "pixdim", _checked(header.get_base_affine(), "spacing")
        axes = "".join(nibabel.aff2axcodes(affine))
        warnings.append(
            f"it does not tell where its axes point to (neither sform nor qform is coded); {axes} "
            "is taken, as for ANALYZE"
        )
    geometry = Geometry(volume.shape, affine, source, _header_facts(volume), tuple(warnings))
    if len(affines) == 2:
        qform = Geometry(volume.shape, affines["qform"], "qform", {}, ())
        apart = _apart(geometry, qform)
        if apart > NOISE * min(geometry.spacing):
            warnings.append(
                f"its sform and its qform lie up to {_length(apart)} apart; the sform is taken"
            )
    if source == "sform" and not sound:
        warnings.append(
            f"its header tells a spacing of {_by(pixdim)} mm; that of its sform is taken"
        )
    elif not np.allclose(pixdim, geometry.spacing, rtol=SPACING_NOISE, atol=0):
        warnings.append(
            f"its header tells a spacing of {_by(pixdim)} mm, its {source} one of "
            f"{_by(geometry.spacing)} mm, which is taken"
        )
    skew = _skew(affine)
    if skew > RIGHT_ANGLE:
        warnings.append(f"its axes miss the right angle by {skew:.1f}°; its voxels are skewed")
    unit = int(header["xyzt_units"]) & 7
    if unit in _UNITS:
        warnings.append(f"its header measures in {_UNITS[unit]}; millimetres are taken")
    return Geometry(volume.shape, affine, source, geometry.header, tuple(warnings))


def turned_like(geometry: Geometry, reference: Geometry) -> Turned:
    """Return a grid with its axes in the order and direction of a reference's.

    From one to the other and not each to RAS, as two grids turned by 45° may be called differently
    though they differ by noise alone.
    """
    steps = io_orientation(np.linalg.inv(reference.affine) @ geometry.affine)
    x, y, z = (geometry.shape[axis] for axis in np.argsort(steps[:, 0]))
    moved = geometry.affine @ inv_ornt_aff(steps, geometry.shape)
    return Turned(
        Geometry((x, y, z), moved, geometry.source, geometry.header, geometry.warnings), steps
    )


def compare(geometries: Mapping[str, Geometry], reference: str) -> Agreement:
    """Tell how the grids of a case's files agree; another order of axes is no difference.

    Args:
        geometries: by the name under which the case knows the file.
        reference: the one that the others are compared to.
    """
    known = geometries[reference]
    smallest = min(min(geometry.spacing) for geometry in geometries.values())
    others = {
        name: turned_like(geometry, known).geometry
        for name, geometry in geometries.items()
        if name != reference
    }
    apart = {name: _apart(known, other) for name, other in others.items()}
    most = max(apart.values(), default=0.0)
    same_shape = all(other.shape == known.shape for other in others.values())
    if same_shape and most <= EXACT:
        return Agreement("equal", most, "")
    if same_shape and most <= NOISE * smallest:
        farthest = max(apart, key=lambda name: apart[name])
        told = (
            f"its files lie up to {_length(most)} apart ({reference} and {farthest}), less than a "
            "tenth of a voxel; they are taken as equal"
        )
        return Agreement("noise", most, told)
    whole = "; ".join(f"{name}: {geometry}" for name, geometry in geometries.items())
    ways = ", ".join(_ways(known, others, apart))
    return Agreement("different", most, f"they differ in {ways} ({whole})")


def _ways(known: Geometry, others: Mapping[str, Geometry], apart: Mapping[str, float]) -> list[str]:
    """Say in what the grids of a case's files differ."""
    ways = []
    if any(other.shape != known.shape for other in others.values()):
        ways.append("shape")
    if any(
        not np.allclose(other.spacing, known.spacing, rtol=SPACING_NOISE)
        for other in others.values()
    ):
        ways.append("spacing")
    angle = max(_angle(known.affine, other.affine) for other in others.values())
    if angle >= 0.05:
        ways.append(f"direction by {angle:.1f}°")
    if "shape" in ways:
        most = max(_centres_apart(known, other) for other in others.values())
        return [*ways, f"the position of their centres by up to {_length(most)}"]
    return [*ways, f"the position of their corners by up to {_length(max(apart.values()))}"]


def _coded(header: nibabel.Nifti1Header, source: str) -> np.ndarray:
    """Return the affine of the sform or the qform: (4, 4)."""
    if source == "sform":
        return np.array(header.get_sform(), float)
    pixdim = [float(side) for side in header["pixdim"][1:4]]
    if not _sound(pixdim):
        raise VolumeError(_no_spacing(pixdim))
    try:
        return np.array(header.get_qform(), float)
    except (ValueError, nibabel.spatialimages.HeaderDataError):
        raise VolumeError("its qform is no rotation") from None


def _sound(pixdim: Sequence[float]) -> bool:
    return all(np.isfinite(side) and side > 0 for side in pixdim)


def _no_spacing(pixdim: Sequence[float]) -> str:
    return f"it tells no spacing: its voxels would be of {_by(pixdim)} mm"


def _checked(affine: np.ndarray, source: str) -> np.ndarray:
    """Return an affine that can be."""
    if not np.isfinite(affine).all():
        raise VolumeError(f"its {source} has NaN or infinity in it")
    if np.abs(affine).max() > FARTHEST:
        raise VolumeError(f"its {source} has {np.abs(affine).max():.4g} mm in it: it is damaged")
    spacing = _spacing(affine)
    if min(spacing) <= 0:
        raise VolumeError(f"its {source} is singular: its voxels would be of {_by(spacing)} mm")
    # Of the directions alone, so that the spacing does not matter.
    if abs(np.linalg.det(affine[:3, :3] / spacing)) < 1e-3:
        raise VolumeError(f"its {source} is singular: its axes lie in one plane")
    if min(spacing) < LEAST_SPACING or max(spacing) > MOST_SPACING:
        raise VolumeError(
            f"its {source} tells of voxels of {_by(spacing)} mm; "
            f"{LEAST_SPACING:g}-{MOST_SPACING:g} mm can be"
        )
    return affine


def _header_facts(volume: Volume) -> dict[str, Any]:
    """Return what a header says of the place of its voxels, as JSON takes it."""
    header = volume.header
    return {
        "format": volume.format,
        "pixdim": _numbers(header["pixdim"][:4]),
        "units": int(header["xyzt_units"]) & 7,
        "sform_code": int(header["sform_code"]),
        "sform": [_numbers(header[f"srow_{axis}"]) for axis in "xyz"],
        "qform_code": int(header["qform_code"]),
        "quatern": _numbers([header[f"quatern_{part}"] for part in "bcd"]),
        "qoffset": _numbers([header[f"qoffset_{axis}"] for axis in "xyz"]),
    }


def _numbers(values: Any) -> list[float]:
    """Return plain numbers; NaN and infinity, which JSON lacks, become 0."""
    return [float(value) if np.isfinite(value) else 0.0 for value in values]


def _apart(one: Geometry, other: Geometry) -> float:
    """Return how far the same corner of two grids lies apart at most, in mm."""
    return float(np.linalg.norm(one.corners() - other.corners(), axis=1).max())


def _centres_apart(one: Geometry, other: Geometry) -> float:
    return float(np.linalg.norm(one.corners().mean(axis=0) - other.corners().mean(axis=0)))


def _spacing(affine: np.ndarray) -> tuple[float, float, float]:
    x, y, z = np.linalg.norm(affine[:3, :3], axis=0).tolist()
    return x, y, z


def _angle(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest angle between the same axis of two affines, in degrees."""
    a, b = (affine[:3, :3] / _spacing(affine) for affine in (one, other))
    return float(np.degrees(np.arccos(np.clip((a * b).sum(axis=0), -1, 1)).max()))


def _skew(affine: np.ndarray) -> float:
    """Return by how many degrees two axes miss the right angle at most."""
    axes = affine[:3, :3] / _spacing(affine)
    cosines = np.abs((axes.T @ axes)[np.triu_indices(3, 1)])
    return float(np.degrees(np.arcsin(np.clip(cosines, 0, 1)).max()))


def _by(sides: Any) -> str:
    return "×".join(f"{float(side):.4g}" for side in sides)


def _length(millimetres: float) -> str:
    return f"{millimetres * 1000:.3g} µm" if millimetres < 0.1 else f"{millimetres:.3g} mm"
