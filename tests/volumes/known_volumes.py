"""Write NIfTI files of any kind with known voxels, for tests."""

import gzip
from pathlib import Path

import nibabel
import numpy as np
from scipy import ndimage

SHAPE = (26, 22, 18)
LABELS = {"edema": 1, "non_enhancing": 2, "enhancing": 3}


def affine_of(spacing=(1.0, 1.0, 1.0), origin=(-12.0, 30.0, 5.0), rotated=0.0) -> np.ndarray:
    """Return a RAS+ affine, rotated by degrees about the third axis and a third of that about x."""
    angle, other = np.radians(rotated), np.radians(rotated / 3)
    about_z = np.array(
        [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    )
    about_x = np.array(
        [[1, 0, 0], [0, np.cos(other), -np.sin(other)], [0, np.sin(other), np.cos(other)]]
    )
    return nibabel.affines.from_matvec(about_z @ about_x @ np.diag(spacing), origin)


def head(shape=SHAPE, background=0.0, seed=1) -> np.ndarray:
    """Return a skull-stripped head, (x, y, z) float32: smooth noise in an ellipsoid."""
    rng = np.random.default_rng(seed)
    texture = ndimage.gaussian_filter(rng.normal(size=shape), 1.5)
    values = 100 + 100 * texture / texture.std() / 3 + 20 * seed
    image = np.full(shape, background, np.float32)
    mask = ellipsoid(shape, 0.42)
    image[mask] = values[mask]
    return image


def ellipsoid(shape, radius: float, centre=(0.5, 0.5, 0.5)) -> np.ndarray:
    """Return (x, y, z) bool; the radius and the centre are fractions of each side."""
    x, y, z = np.ogrid[tuple(map(slice, shape))]
    offsets = [(c + 0.5) / n - m for c, n, m in zip((x, y, z), shape, centre, strict=True)]
    return sum(offset**2 for offset in offsets) < radius**2


def tumour(shape=SHAPE) -> np.ndarray:
    """Return three nested labels, (x, y, z) uint8, off the centre."""
    labels = np.zeros(shape, np.uint8)
    for value, radius in ((1, 0.28), (2, 0.2), (3, 0.12)):
        labels[ellipsoid(shape, radius, (0.42, 0.55, 0.6))] = value
    return labels


def write_nifti(
    path: Path,
    array: np.ndarray,
    affine: np.ndarray | None = None,
    *,
    big_endian: bool = False,
    second: bool = False,
    sform: int | None = 1,
    qform: int | None = 1,
    slope: float | None = None,
    intercept: float = 0.0,
    **fields,
) -> Path:
    """Write `array` unchanged as the stored values; `fields` override the header.

    Args:
        path: .nii or .nii.gz.
        array: the stored values.
        affine: None: 1 mm, RAS+.
        big_endian: byte order.
        second: write NIfTI-2.
        sform, qform: their codes.
        slope, intercept: of the scaling; None: not set.
        fields: header fields by nibabel's names.
    """
    affine = affine_of() if affine is None else affine
    kind = nibabel.Nifti2Header if second else nibabel.Nifti1Header
    header = kind(endianness=">" if big_endian else "<")
    header.set_data_shape(array.shape)
    header.set_data_dtype(array.dtype)
    header.set_zooms([*np.linalg.norm(affine[:3, :3], axis=0), *(1,) * (array.ndim - 3)])
    header.set_qform(affine, qform or 0)
    header["qform_code"] = qform or 0
    header.set_sform(affine if sform else None, sform or 0)
    header["magic"] = b"n+2" if second else b"n+1"
    header["vox_offset"] = 544 if second else 352
    header["scl_slope"] = np.nan if slope is None else slope
    header["scl_inter"] = intercept
    header.set_xyzt_units("mm")
    for name, value in fields.items():
        header[name] = value
    order = ">" if big_endian else "<"
    data = header.binaryblock + bytes(4)
    data += array.astype(array.dtype.newbyteorder(order)).tobytes(order="F")
    path.write_bytes(gzip.compress(data, 1) if path.name.endswith(".gz") else data)
    return path


def write_as(path: Path, array: np.ndarray, affine: np.ndarray, code: str, **kind) -> Path:
    """Write a RAS+ array with its axes as `code`, such as `LPS`; voxels keep their positions."""
    target = nibabel.orientations.axcodes2ornt(code)
    transform = nibabel.orientations.ornt_transform(nibabel.io_orientation(affine), target)
    reoriented = nibabel.orientations.apply_orientation(array, transform)
    new_affine = affine @ nibabel.orientations.inv_ornt_aff(transform, array.shape)
    return write_nifti(path, reoriented, new_affine, **kind)


def all_orientations() -> list[str]:
    """Return the 48 possible orientations of a file's axes."""
    codes = []
    for x in "LR":
        for y in "PA":
            for z in "IS":
                axes = (x, y, z)
                for a in range(3):
                    for b in {0, 1, 2} - {a}:
                        codes.append(axes[a] + axes[b] + axes[3 - a - b])
    return sorted(codes)


def dice(first: np.ndarray, second: np.ndarray) -> float:
    sizes = np.count_nonzero(first) + np.count_nonzero(second)
    return 2 * np.count_nonzero(first & second) / sizes
