"""A NIfTI file as the rest of Gigatile sees it: what its header tells, and its voxels.

Format: NIfTI-1 and NIfTI-2, https://nifti.nimh.nih.gov. The header is nibabel's, without its
repairs: it would turn a spacing of 0 into 1 mm. The voxels are read here, so that a gzip is read to
its checksum.
"""

import collections
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from gigatile.files import fingerprint
from gigatile.volumes.bytestream import ByteStream, VolumeError

# Voxels of one volume. Preparing takes up to 14 bytes for each with one modality and 29 with four
# (measured on 320 × 320 × 320), and its job asks for 5 GB. And along one side: 16 bits hold a place
# in a record.
MOST_VOXELS = 1 << 28
MOST_SIDE = 65535
# Values are converted so many at a time.
CHUNK_VALUES = 1 << 20
# How far from a whole number a label may be: scaled integers give 0.99999997.
WHOLE = 1e-3
# Wrong values of which a message tells, and how many a segmentation may have for that.
VALUES_TOLD = 5
MOST_WRONG = 100
# NIfTI's codes of RGB and RGBA.
_COLOURS = (128, 2304)
_SIZES = {348: nibabel.Nifti1Header, 540: nibabel.Nifti2Header}


@dataclass(frozen=True)
class Volume:
    """A NIfTI file whose header makes sense.

    Attributes:
        path: the file.
        header: as it stands in the file, nothing repaired.
        shape: (x, y, z), in the file's order of axes.
        channels: how many volumes of that shape follow each other; 1 in a file of three axes.
        dtype: of the stored values, with their byte order.
        slope, intercept: what stored values are multiplied by, and what is added then.
        offset: the byte at which the voxels begin.
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
        """Whether the stored values are not those that are meant."""
        return (self.slope, self.intercept) != (1, 0)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What a state tells of the file beside its geometry."""
        order = {"<": "little", ">": "big"}
        return {
            "name": self.path.name,
            "bytes": self.path.stat().st_size,
            "fingerprint": fingerprint(self.path),
            "shape": [*self.shape, self.channels] if self.channels > 1 else [*self.shape],
            "dtype": self.dtype.name,
            "byte_order": order[self.header.endianness],
            "format": self.format,
            "scaled": self.scaled,
        }

    def read_channels(self) -> Iterator[np.ndarray]:
        """Yield each channel: (x, y, z) float32, scaled; NaN and infinity are left in.

        Raises:
            VolumeError: the file is damaged or ends too early.
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
                yield done.pop()  # so that whoever takes it can free it

    def read_labels(self, label_values: Mapping[str, int]) -> np.ndarray:
        """Read the file as a segmentation: (x, y, z) uint8.

        Args:
            label_values: from a label's name to its value, 1-255; 0 is background.

        Raises:
            VolumeError: the file is damaged, or holds another value; the message tells which, and
                in how many voxels.
        """
        labels = np.empty(int(np.prod(self.shape)), np.uint8)
        declared = {0, *label_values.values()}
        known = np.zeros(256, bool)
        known[list(declared)] = True
        wrong: collections.Counter[str] = collections.Counter()
        for first, values in self._chunks():
            with np.errstate(invalid="ignore"):
                found = values.astype(np.uint8)
                # Most often every value is a whole number that is declared.
                if (found == values).all() and len(values) == sum(
                    np.count_nonzero(found == value) for value in declared
                ):
                    labels[first : first + len(values)] = found
                    continue
                whole = np.rint(values)
                good = (np.abs(values - whole) <= WHOLE) & (whole >= 0) & (whole <= 255)
                found = np.where(good, whole, 0).astype(np.uint8)
            # What is no whole number, and what is one that is not declared.
            bad = ~good | ~known[found]
            if bad.any():
                some, counts = np.unique(values[bad], return_counts=True)
                if len(some) > MOST_WRONG:
                    raise VolumeError(
                        f"it is no segmentation: it has values like {some[0]:.6g}, {some[1]:.6g} "
                        f"and {some[2]:.6g}, more than {MOST_WRONG} of them"
                    )
                for value, count in zip(some, counts.tolist(), strict=True):
                    wrong[f"{value:.6g}"] += count
            labels[first : first + len(values)] = found
        if wrong:
            raise VolumeError(_wrong_values(wrong, label_values))
        return labels.reshape(self.shape, order="F")

    def _chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all values, scaled, in the file's order, and the number of the first of each chunk.

        No chunk lies in two channels. The last comes after the file has been read to its end.
        """
        count = int(np.prod(self.shape))
        total = count * self.channels
        promised = self.offset + total * self.dtype.itemsize
        with ByteStream(self.path) as stream:
            stream.check_size(promised)
            stream.skip(self.offset, promised)
            first = 0
            while first < total:
                size = min(CHUNK_VALUES, count - first % count)
                data = stream.read(size * self.dtype.itemsize, promised)
                stored = np.frombuffer(data, self.dtype)
                if self.scaled:
                    # In float64: an int32 times 2e-10 would lose its last digits.
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
        VolumeError: the file is missing, is no NIfTI file, is damaged, or holds what is no volume.
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
            f"its header is damaged: {float(header['scl_inter']):g} is to be added to its values"
        ) from None
    offset = float(header["vox_offset"])
    if not (offset.is_integer() and header.structarr.dtype.itemsize <= offset < 1 << 31):
        raise VolumeError(f"its header is damaged: voxels would begin at byte {offset:g}")
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
    """Return the header that a file begins with."""
    if not start:
        raise VolumeError("its gzip is empty")
    sizes = {order: int.from_bytes(start[:4], order) for order in ("little", "big")}
    for order, size in sizes.items():
        if size not in _SIZES:
            continue
        if len(start) < size:
            raise VolumeError(f"it ends inside its header, after {len(start)} bytes")
        magic = start[344:347] if size == 348 else start[4:7]
        if magic in (b"ni1", b"ni2"):
            raise VolumeError(
                "it is the header of a pair of files (.hdr, .img); make one .nii.gz of them"
            )
        if magic not in (b"n+1", b"n+2"):
            raise VolumeError(
                "it is ANALYZE 7.5, which does not tell left from right, or a damaged NIfTI file"
            )
        return _SIZES[size](start[:size], "<" if order == "little" else ">", check=False)
    raise VolumeError(_what_else(start))


def _what_else(start: bytes) -> str:
    """Say what a file is that is no NIfTI file."""
    if start[:2] == b"PK":
        return "it is a zip archive, not a NIfTI file"
    if start[128:132] == b"DICM":
        return "it is a DICOM file, not NIfTI; convert its series, with dcm2niix for example"
    text = " ".join(start.decode("utf-8", "ignore").lstrip("\ufeff").split())
    if text.lower().startswith(("<!doctype html", "<html", "<head", "<body")):
        return "it is an HTML page, not a NIfTI file; mostly of a download that failed"
    if text.startswith("version https://git-lfs"):
        return "it is a pointer of Git LFS, not the file itself; `git lfs pull` fetches that"
    if text.isprintable():
        return f"it is text, not a NIfTI file; it begins with {text[:40]!r}"
    return "it is no NIfTI file: it begins with other bytes than a header of NIfTI-1 or NIfTI-2"


def _shape(header: nibabel.Nifti1Header) -> tuple[tuple[int, int, int], int]:
    """Return the shape of a volume, and how many there are; axes of 1 are dropped after the third.

    So a file of vectors, whose fifth axis holds the channels, is read as one of four axes.
    """
    axes, *sides = (int(side) for side in header["dim"])
    if not 1 <= axes <= 7:
        raise VolumeError(f"its header is damaged: it tells of {axes} axes")
    sides = sides[:axes]
    told = "×".join(map(str, sides))
    if min(sides) < 1:
        raise VolumeError(f"its header is damaged: it tells of {told} voxels")
    if axes < 3 or 1 in sides[:3]:
        raise VolumeError(f"it is no volume: it has {told} voxels, where three axes are needed")
    further = [side for side in sides[3:] if side > 1]
    if len(further) > 1:
        raise VolumeError(f"it has {told} voxels, where three axes or four are expected")
    x, y, z = sides[:3]
    if max(x, y, z) > MOST_SIDE or x * y * z > MOST_VOXELS:
        raise VolumeError(
            f"its header tells of {told} voxels; more than {MOST_VOXELS:,} in one volume, or "
            f"{MOST_SIDE:,} along an axis, are not worked on"
        )
    channels = further[0] if further else 1
    if channels > MOST_SIDE:
        raise VolumeError(f"its header tells of {told} voxels, and is taken for damaged")
    return (x, y, z), channels


def _dtype(header: nibabel.Nifti1Header) -> np.dtype[Any]:
    """Return how values are stored."""
    code = int(header["datatype"])
    try:
        dtype = header.get_data_dtype()
    except KeyError:
        raise VolumeError(f"its header is damaged: no kind of values has the code {code}") from None
    if dtype.kind not in "iuf":
        kind = "complex numbers" if dtype.kind == "c" else f"values of the kind {code}"
        kind = "colours" if code in _COLOURS else kind
        raise VolumeError(f"it holds {kind}, not one number for each voxel")
    if dtype.itemsize != int(header["bitpix"]) / 8:
        raise VolumeError(
            f"its header contradicts itself: {dtype.name} values of {int(header['bitpix'])} bits"
        )
    return dtype


def _wrong_values(wrong: Mapping[str, int], label_values: Mapping[str, int]) -> str:
    """Say which values a segmentation has that it must not have."""
    listed = sorted(wrong.items(), key=lambda one: (-one[1], one[0]))
    told = [f"{value} ({voxels(count)})" for value, count in listed[:VALUES_TOLD]]
    if len(listed) > VALUES_TOLD:
        told.append(f"and {len(listed) - VALUES_TOLD} more")
    declared = ", ".join(f"{name} {value}" for name, value in label_values.items())
    return (
        f"it has values that volumes.labels does not declare: {', '.join(told)}; "
        f"declared: background 0, {declared}"
    )


def voxels(count: int) -> str:
    """Say how many voxels."""
    return f"{count:,} voxel{'' if count == 1 else 's'}"
