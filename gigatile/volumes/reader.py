"""Read NIfTI files: the header and the voxels.

Format: NIfTI-1 and NIfTI-2, https://nifti.nimh.nih.gov. nibabel parses the header, without its
repairs, which would change a spacing of 0 to 1 mm. It does not read the voxels, because it would
not check the checksum of a gzip file.
"""

import collections
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from gigatile.volumes.bytestream import ByteStream, VolumeError

# Limits of a volume: all voxels, because of memory (`mem_mb` in rules/volumes.smk); voxels along
# one side, because records store positions in 16 bits.
MAX_VOXELS = 1 << 28
MAX_SIDE = 65535
# Values that are converted at a time.
CHUNK_VALUES = 1 << 20
# Tolerance of labels that are not whole numbers: scaled integers give 0.99999997.
WHOLE = 1e-3
# Undeclared values that a message lists; a file with more than MAX_WRONG is not a segmentation.
MAX_LISTED = 5
MAX_WRONG = 100
# NIfTI's data type codes of RGB and RGBA.
_COLOURS = (128, 2304)
_SIZES = {348: nibabel.Nifti1Header, 540: nibabel.Nifti2Header}


@dataclass(frozen=True)
class Volume:
    """A NIfTI file with a valid header.

    Attributes:
        path: the file.
        header: as in the file, without repairs.
        shape: (x, y, z), in the file's order of axes.
        channels: number of volumes of that shape in the file.
        dtype: of the stored values, with their byte order.
        slope, intercept: a value is the stored value × slope + intercept.
        offset: of the voxels in the file, in bytes.
    """

    path: Path
    header: nibabel.Nifti1Header
    shape: tuple[int, int, int]
    channels: int
    dtype: np.dtype[Any]
    slope: float
    intercept: float
    offset: int

    @property
    def format(self) -> str:
        """`NIfTI-1` or `NIfTI-2`."""
        return "NIfTI-2" if isinstance(self.header, nibabel.Nifti2Header) else "NIfTI-1"

    @property
    def scaled(self) -> bool:
        """Whether the stored values are scaled."""
        return (self.slope, self.intercept) != (1, 0)

    def read_channels(self) -> Iterator[np.ndarray]:
        """Yield each channel: (x, y, z) float32, scaled; may contain NaN and infinity.

        Raises:
            VolumeError: the file is damaged or truncated.
        """
        count = int(np.prod(self.shape))
        for first, values in self._chunks():
            if first % count == 0:
                channel = np.empty(count, np.float32)
            start = first % count
            with np.errstate(over="ignore", invalid="ignore"):
                channel[start : start + len(values)] = values
            if start + len(values) == count:
                done = [channel.reshape(self.shape, order="F")]
                del channel
                yield done.pop()  # without keeping a reference, so that the caller can free it

    def read_labels(self, label_values: Mapping[str, int]) -> np.ndarray:
        """Read the file as a segmentation: (x, y, z) uint8.

        Args:
            label_values: the value of each label, 1-255; 0 is background.

        Raises:
            VolumeError: the file is damaged, or has other values; the message lists them with
                their numbers of voxels.
        """
        labels = np.empty(int(np.prod(self.shape)), np.uint8)
        declared = {0, *label_values.values()}
        known = np.zeros(256, bool)
        known[list(declared)] = True
        wrong: collections.Counter[str] = collections.Counter()
        for first, values in self._chunks():
            with np.errstate(invalid="ignore"):
                integers = values.astype(np.uint8)
                # Usually all values are declared.
                if (integers == values).all() and len(values) == sum(
                    np.count_nonzero(integers == value) for value in declared
                ):
                    labels[first : first + len(values)] = integers
                    continue
                rounded = np.rint(values)
                good = (np.abs(values - rounded) <= WHOLE) & (rounded >= 0) & (rounded <= 255)
                integers = np.where(good, rounded, 0).astype(np.uint8)
            bad = ~good | ~known[integers]
            if bad.any():
                different, counts = np.unique(values[bad], return_counts=True)
                if len(different) > MAX_WRONG:
                    raise VolumeError(
                        f"it is not a segmentation: it has more than {MAX_WRONG} different "
                        f"values, such as {different[0]:.6g}, {different[1]:.6g} and "
                        f"{different[2]:.6g}"
                    )
                for value, count in zip(different, counts.tolist(), strict=True):
                    wrong[f"{value:.6g}"] += count
            labels[first : first + len(values)] = integers
        if wrong:
            raise VolumeError(_wrong_values(wrong, label_values))
        return labels.reshape(self.shape, order="F")

    def _chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield chunks of scaled values in the file's order, with the index of their first value.

        A chunk belongs to one channel. The last one is yielded after the file was read to its end.
        """
        count = int(np.prod(self.shape))
        total = count * self.channels
        expected = self.offset + total * self.dtype.itemsize
        with ByteStream(self.path) as stream:
            stream.check_size(expected)
            stream.skip(self.offset, expected)
            first = 0
            while first < total:
                size = min(CHUNK_VALUES, count - first % count)
                data = stream.read(size * self.dtype.itemsize, expected)
                stored = np.frombuffer(data, self.dtype)
                if self.scaled:
                    # float32 would lose digits of an int32.
                    with np.errstate(over="ignore", invalid="ignore"):
                        values = stored.astype(np.float64) * self.slope + self.intercept
                else:
                    values = stored
                if first + size == total:
                    stream.drain()
                yield first, values
                first += size


def open_volume(path: Path) -> Volume:
    """Read the header of a NIfTI file (.nii, .nii.gz).

    Raises:
        VolumeError: the file is missing or damaged, or not a NIfTI volume.
    """
    path = Path(path)
    with ByteStream(path) as stream:
        start = stream.peek(540)
    header = _header(start)
    shape, channels = _shape(header)
    dtype = _dtype(header)
    try:
        slope, intercept = header.get_slope_inter()
    except nibabel.spatialimages.HeaderDataError:
        raise VolumeError(
            f"its header is damaged: scl_inter is {float(header['scl_inter']):g}"
        ) from None
    offset = float(header["vox_offset"])
    if not (offset.is_integer() and header.structarr.dtype.itemsize <= offset < 1 << 31):
        raise VolumeError(f"its header is damaged: vox_offset is {offset:g}")
    return Volume(
        path,
        header,
        shape,
        channels,
        dtype,
        1.0 if slope is None else float(slope),
        0.0 if intercept is None else float(intercept),
        int(offset),
    )


def _header(start: bytes) -> nibabel.Nifti1Header:
    """Return the header at the start of a file."""
    if not start:
        raise VolumeError("its gzip is empty")
    sizes = {order: int.from_bytes(start[:4], order) for order in ("little", "big")}
    for order, size in sizes.items():
        if size not in _SIZES:
            continue
        if len(start) < size:
            raise VolumeError(f"its header is truncated after {len(start)} bytes")
        magic = start[344:347] if size == 348 else start[4:7]
        if magic in (b"ni1", b"ni2"):
            raise VolumeError(
                "it is the header of a pair of files (.hdr, .img); convert them to one .nii.gz"
            )
        if magic not in (b"n+1", b"n+2"):
            raise VolumeError(
                "it is ANALYZE 7.5, which has no orientation, or a damaged NIfTI file"
            )
        return _SIZES[size](start[:size], "<" if order == "little" else ">", check=False)
    raise VolumeError(_describe_other_file(start))


def _describe_other_file(start: bytes) -> str:
    """Return what kind of file it is instead of NIfTI."""
    if start[:2] == b"PK":
        return "it is a zip archive, not a NIfTI file"
    if start[128:132] == b"DICM":
        return "it is a DICOM file, not NIfTI; convert its series, for example with dcm2niix"
    text = " ".join(start.decode("utf-8", "ignore").lstrip("\ufeff").split())
    if text.lower().startswith(("<!doctype html", "<html", "<head", "<body")):
        return "it is an HTML page, not a NIfTI file; the download probably failed"
    if text.startswith("version https://git-lfs"):
        return "it is a Git LFS pointer, not the file itself; run `git lfs pull`"
    if text.isprintable():
        return f"it is text, not a NIfTI file; it starts with {text[:40]!r}"
    return "it is not a NIfTI file: it has no header of NIfTI-1 or NIfTI-2"


def _shape(header: nibabel.Nifti1Header) -> tuple[tuple[int, int, int], int]:
    """Return the shape of a volume and the number of volumes.

    After the third, axes of length 1 are dropped, so the fifth axis of a vector image becomes the
    fourth.
    """
    axes, *sides = (int(side) for side in header["dim"])
    if not 1 <= axes <= 7:
        raise VolumeError(f"its header is damaged: it has {axes} axes")
    sides = sides[:axes]
    size = "×".join(map(str, sides))
    if min(sides) < 1:
        raise VolumeError(f"its header is damaged: it has {size} voxels")
    if axes < 3 or 1 in sides[:3]:
        raise VolumeError(f"it is not a volume: it has {size} voxels, expected three axes")
    further = [side for side in sides[3:] if side > 1]
    if len(further) > 1:
        raise VolumeError(f"it has {size} voxels, expected three or four axes")
    x, y, z = sides[:3]
    if max(x, y, z) > MAX_SIDE or x * y * z > MAX_VOXELS:
        raise VolumeError(
            f"its header has {size} voxels; more than {MAX_VOXELS:,} in one volume, or "
            f"{MAX_SIDE:,} along an axis, are not supported"
        )
    channels = further[0] if further else 1
    if channels > MAX_SIDE:
        raise VolumeError(f"its header is damaged: it has {size} voxels")
    return (x, y, z), channels


def _dtype(header: nibabel.Nifti1Header) -> np.dtype[Any]:
    """Return the type of the stored values."""
    code = int(header["datatype"])
    try:
        dtype = header.get_data_dtype()
    except KeyError:
        raise VolumeError(f"its header is damaged: unknown data type {code}") from None
    if dtype.kind not in "iuf":
        kind = "complex numbers" if dtype.kind == "c" else f"values of data type {code}"
        kind = "colours" if code in _COLOURS else kind
        raise VolumeError(f"it contains {kind}, not one number per voxel")
    if dtype.itemsize != int(header["bitpix"]) / 8:
        raise VolumeError(
            f"its header is inconsistent: {dtype.name} values of {int(header['bitpix'])} bits"
        )
    return dtype


def _wrong_values(wrong: Mapping[str, int], label_values: Mapping[str, int]) -> str:
    """Return the message about undeclared values in a segmentation."""
    ordered = sorted(wrong.items(), key=lambda item: (-item[1], item[0]))
    listed = [f"{value} ({voxels(count)})" for value, count in ordered[:MAX_LISTED]]
    if len(ordered) > MAX_LISTED:
        listed.append(f"and {len(ordered) - MAX_LISTED} more")
    declared = ", ".join(f"{name} {value}" for name, value in label_values.items())
    return (
        f"it has values that volumes.labels does not declare: {', '.join(listed)}; "
        f"declared: background 0, {declared}"
    )


def voxels(count: int) -> str:
    """Return a number of voxels as text."""
    return f"{count:,} voxel{'' if count == 1 else 's'}"
