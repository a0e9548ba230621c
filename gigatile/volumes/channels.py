"""Normalise the channels of a case, resample them to the prepared grid, and join them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from nibabel.orientations import apply_orientation
from scipy import ndimage

from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.geometry import Geometry, Reoriented, compare
from gigatile.volumes.grid import Grid, forward_part
from gigatile.volumes.head_mask import (
    box_of,
    find_head,
    reorient_box,
    slices_of,
    whole_volume,
)
from gigatile.volumes.image_checks import SAMPLED, check_channel, sample_slices
from gigatile.volumes.reader import voxels

# An outlier is more than OUTLIER times as far from the median as the 0.5th or 99.5th percentile. In
# real volumes, the brightest voxel is at most 5.3 times as far.
PERCENTILES = (0.5, 16, 50, 84, 99.5)
OUTLIER = 10
# Largest ratio of the standard deviation of the head to that of its middle two thirds. Real: 1.5.
MAX_SPREAD = 5
# The fraction of a channel's voxels that may be invalid: NaN, infinite, or beyond MAX_VALUE.
MAX_INVALID = 0.001
MAX_VALUE = 1e30
# Values that are summed at a time, because float64 values of a whole head would double the memory.
CHUNK_VALUES = 1 << 20
# The share of head in a prepared voxel from which it counts as head. At twice the spacing, many
# voxels have a share of exactly one half, which rounding must not change.
HALF = 0.5 - 1e-6
_FLOAT16 = float(np.finfo(np.float16).max)
# Written for a value of 0 within the head.
SMALLEST = np.finfo(np.float16).tiny
# Percentiles that show how a channel looks, and the number of values that they are computed from.
_LOOKS = (5, 50, 95)
_COMPARED = 1 << 20
# With a smaller share of voxels in the range of `volumes.clip`, it may be in another unit.
MIN_INSIDE = 0.01


@dataclass(frozen=True)
class Intensities:
    """How the values of a channel are normalised.

    Attributes:
        content: `head` or `all`; the setting `volumes.content`.
        clip: range that becomes -1 to 1; None: mean and standard deviation become 0 and 1.
        percentiles: to which values are clipped before; None: outliers only.
    """

    content: str = "head"
    clip: tuple[float, ...] | None = None
    percentiles: tuple[float, ...] | None = None

    @classmethod
    def of_modality(cls, settings: VolumeSettings, modality: str) -> "Intensities":
        """Return those of a modality."""
        return cls(
            settings.content, settings.clip.get(modality), settings.percentiles.get(modality)
        )


# Of a head, as by default.
STANDARD = Intensities()


@dataclass(frozen=True)
class Channel:
    """A normalised channel, cropped to its head.

    Attributes:
        start: its first voxel on the grid of the whole prepared volume, (3,) int64.
        values: (x, y, z) float16, normalised; 0 outside of its head.
        mask: (x, y, z) bool, its head.
        background: the constant value around the head; None if the background is noise.
        mean, sd: in the file's values, what became 0, and what became 1 above it.
        invalid: number of voxels that are NaN, infinite or beyond `MAX_VALUE`; they become 0.
        warnings: for the user.
    """

    start: np.ndarray
    values: np.ndarray
    mask: np.ndarray
    background: float | None
    mean: float
    sd: float
    invalid: int
    warnings: tuple[str, ...]


def prepare_channel(
    image: np.ndarray,
    reoriented: Reoriented,
    known: Geometry,
    whole: Grid,
    dtype: np.dtype[Any] | None = None,
    orientation: str = "RAS",
    intensities: Intensities = STANDARD,
) -> Channel:
    """Normalise a channel and resample it to the prepared grid.

    By default, the mean and the standard deviation are those of the channel's head before
    resampling. Outliers are first set to the 0.5th or 99.5th percentile: a single hot voxel of 1e5
    among 1.5 million would increase the standard deviation 70 times, and the image would be nearly
    constant.

    Args:
        image: (x, y, z) float32 of the file; it is modified.
        reoriented: the file's grid, with its axes in the case's order and direction.
        known: the case's grid. If the file's grid differs by more than noise, it is resampled.
        whole: the prepared grid of the whole volume.
        dtype: of the file's stored values; None if they are scaled.
        orientation: directions of the file's axes.
        intensities: which voxels count, and how they are normalised. With `all`, the head is the
            whole volume.

    Raises:
        VolumeError: it contains no head, or the head cannot be normalised.
    """
    shape = image.shape
    lowest, highest = float(image.min()), float(image.max())
    valid = None
    invalid = 0
    # Comparisons with NaN are false.
    if not (lowest > -MAX_VALUE and highest < MAX_VALUE):
        valid = np.abs(image) < MAX_VALUE
        invalid = image.size - int(np.count_nonzero(valid))
        if invalid > MAX_INVALID * image.size:
            raise VolumeError(
                f"{invalid:,} of its {image.size:,} voxels are NaN, infinite or beyond "
                f"{MAX_VALUE:g}; at most {MAX_INVALID:.1%} may be"
            )
        image[~valid] = image[valid].min()
        lowest, highest = float(image.min()), float(image.max())
    if lowest == highest:
        raise VolumeError(f"all its voxels have the value {lowest:g}")
    is_head = intensities.content == "head"
    head_mask = find_head(image) if is_head else whole_volume(shape)
    slices = sample_slices(image)
    crop = slices_of(head_mask.box)
    # From here on, only the box is used.
    part = np.asfortranarray(image[crop])
    del image
    head = head_mask.mask if valid is None else head_mask.mask & valid[crop]
    del valid
    values = part.T[head.T]
    if not values.size or values.min() == values.max():
        raise VolumeError(
            f"all voxels of its head have the same value ({values[0]:g})"
            if values.size
            else "its head has no voxels"
        )
    faces = orientation if is_head else ""
    check = partial(check_channel, part, values, head_mask, slices, shape, dtype, faces)
    if intensities.clip or intensities.percentiles:
        warnings = check()  # before most values may become equal
        more, mean, sd = _clip(part, values, intensities)
        warnings += more
    else:
        warnings, mean, sd = clip_outliers(part, values)
        warnings += check()
    del check
    del values
    background = head_mask.background
    box = reorient_box(head_mask.box, shape, reoriented.orientation)
    del slices, head_mask
    part -= np.float32(mean)
    part /= np.float32(sd)
    part[~head] = 0
    part, head = reoriented.apply(part), reoriented.apply(head)
    if compare({"known": known, "file": reoriented.geometry}, "known").state == "different":
        part, head = _resample(part, head, box, reoriented.geometry, known)
        box = np.array([(0, 0, 0), known.shape])
    part = apply_orientation(part, whole.to_canonical)
    head = apply_orientation(head, whole.to_canonical)
    box = reorient_box(box, known.shape, whole.to_canonical)
    head_box = box_of(head)  # smaller than `box` after resampling or with invalid voxels
    if head_box is None:
        raise VolumeError("its head is outside of the case's grid")
    part, head = part[slices_of(head_box)], head[slices_of(head_box)]
    box = box[0] + head_box
    grid = whole.crop_to(*box)
    mask = forward_part(head, box[0], grid, order=1) >= HALF if grid.resampled else head
    prepared = forward_part(part, box[0], grid)
    np.clip(prepared, -_FLOAT16, _FLOAT16, out=prepared)
    prepared[~mask] = 0  # splines overshoot at the head's edge
    values = prepared.astype(np.float16)
    # 0 is outside of the head: for augmentation, and for windows without content.
    values[mask & (values == 0)] = SMALLEST
    return Channel(
        np.array(grid.crop_start),
        values,
        mask,
        background,
        mean,
        sd,
        invalid,
        tuple(warnings),
    )


def _clip(
    image: np.ndarray, values: np.ndarray, intensities: Intensities
) -> tuple[list[str], float, float]:
    """Clip a channel to its range in place; return warnings, and what becomes 0 and 1.

    Args:
        image: (x, y, z), the channel.
        values: (n,), the values of its head.
        intensities: how it is normalised.
    """
    if intensities.clip:
        low, high = intensities.clip
        inside = float(((values > low) & (values < high)).mean())
        warnings = []
        if inside < MIN_INSIDE:
            warnings = [
                f"only {inside:.2%} of its voxels are between {low:g} and {high:g} "
                f"(volumes.clip); its values are from {values.min():g} to {values.max():g}"
            ]
        if inside == 0:
            raise VolumeError(
                f"no voxel is between {low:g} and {high:g} (volumes.clip); its values "
                f"are from {values.min():g} to {values.max():g}"
            )
        for array in (image, values):
            np.clip(array, low, high, out=array)
        return warnings, (low + high) / 2, (high - low) / 2
    assert intensities.percentiles
    low, high = np.percentile(values, intensities.percentiles).tolist()
    if low == high:
        first, last = intensities.percentiles
        raise VolumeError(
            f"its {first:g}th and {last:g}th percentile are both {low:g}; it cannot be normalised"
        )
    for array in (image, values):
        np.clip(array, low, high, out=array)
    return [], *mean_and_sd(values)


def clip_outliers(image: np.ndarray, values: np.ndarray) -> tuple[list[str], float, float]:
    """Set outliers to the 0.5th or 99.5th percentile of the head, in place.

    Args:
        image: (x, y, z), the channel.
        values: (n,), the values of its head.

    Returns:
        Warnings if there are outliers, or if extreme values dominate the standard deviation; the
        head's mean and standard deviation after clipping.
    """
    sample = values[:: max(1, len(values) // SAMPLED)]
    low, below, median, above, high = np.percentile(sample, PERCENTILES)
    lower_limit = median - OUTLIER * (median - low)
    upper_limit = median + OUTLIER * (high - median)
    warnings = []
    farthest = None
    if low < median < high and (values.min() < lower_limit or values.max() > upper_limit):
        count = int(np.count_nonzero((values < lower_limit) | (values > upper_limit)))
        farthest = max(values.max() - median, median - values.min(), key=abs)
        for array in (image, values):
            array[array < lower_limit] = low
            array[array > upper_limit] = high
    mean, sd = mean_and_sd(values)
    if farthest is not None:
        warnings.append(
            f"{voxels(count)} of its head {'is an outlier' if count == 1 else 'are outliers'}, up "
            f"to {farthest / sd:,.0f} standard deviations from the median; set to the "
            f"{PERCENTILES[0]:g}th or {PERCENTILES[-1]:g}th percentile"
        )
    if sd > MAX_SPREAD * (above - below) / 2:
        warnings.append(
            f"its standard deviation, {sd:.4g}, is {'' if above > below else 'more than '}"
            f"{sd / max((above - below) / 2, sd / 1000):,.0f} times that of the middle two thirds "
            "of its head: extreme values dominate the normalisation"
        )
    return warnings, mean, sd


def mean_and_sd(values: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation of (n,) float32, computed in float64, in chunks."""
    mean = float(values.mean(dtype=np.float64))
    starts = range(0, len(values), CHUNK_VALUES)
    chunks = (values[start : start + CHUNK_VALUES] for start in starts)
    squares = sum(float(np.square(chunk - np.float64(mean)).sum()) for chunk in chunks)
    return mean, float(np.sqrt(squares / len(values)))


def crop_to_content(
    whole: Grid, channels: Sequence[Channel | None], labels: np.ndarray | None
) -> Grid:
    """Return the prepared grid, cropped to the heads of all channels and to all labels.

    Args:
        whole: the prepared grid of the whole volume.
        channels: None for a missing channel.
        labels: (x, y, z) uint8 of the file.
    """
    boxes = [
        (channel.start, channel.start + channel.values.shape)
        for channel in channels
        if channel is not None
    ]
    labelled = None if labels is None else box_of(whole.canonical(labels) > 0)
    if labelled is not None:
        grid = whole.crop_to(*labelled)
        boxes.append((np.array(grid.crop_start), np.add(grid.crop_start, grid.shape)))
    x, y, z = np.min([start for start, _ in boxes], axis=0).tolist()
    x_stop, y_stop, z_stop = np.max([stop for _, stop in boxes], axis=0).tolist()
    return replace(whole, crop_start=(x, y, z), shape=(x_stop - x, y_stop - y, z_stop - z))


def join_channels(grid: Grid, channels: list[Channel | None]) -> tuple[np.ndarray, np.ndarray]:
    """Return all channels in one array, and the voxels that are head in any of them.

    Args:
        grid: of the prepared case.
        channels: None becomes 0. The list is emptied, so that each channel is freed early.

    Returns:
        (x, y, z, C) float16 and (x, y, z) bool.
    """
    # Each channel is contiguous, so that its memory is only allocated when it is filled.
    image = np.moveaxis(np.zeros((len(channels), *grid.shape), np.float16), 0, -1)
    head = np.zeros(grid.shape, bool)
    for number, channel in enumerate(channels):
        channels[number] = None
        if channel is None:
            continue
        start = (channel.start - grid.crop_start).tolist()
        x, y, z = (slice(a, a + n) for a, n in zip(start, channel.values.shape, strict=True))
        image[x, y, z, number] = channel.values
        head[x, y, z] |= channel.mask
    return image, head


def appearance_of(
    image: np.ndarray, head: np.ndarray, voxel_ml: float, present: Mapping[str, int]
) -> dict[str, float]:
    """Return how a prepared case looks, in a few figures that can be compared with others.

    Args:
        image: (x, y, z, C) float16, normalised.
        head: (x, y, z) bool.
        voxel_ml: volume of a voxel.
        present: the channels that were not filled, by name.

    Returns:
        The volume of the head in ml, and percentiles of each channel in it.
    """
    figures = {"volume in ml": round(int(head.sum()) * voxel_ml, 1)}
    for name, channel in present.items():
        values = image[..., channel][head]
        values = values[:: -(-len(values) // _COMPARED)].astype(np.float32)
        for percent, value in zip(_LOOKS, np.percentile(values, _LOOKS).tolist(), strict=True):
            figures[f"{name}, {percent} %"] = round(value, 3)
    return figures


def _resample(
    part: np.ndarray, mask: np.ndarray, box: np.ndarray, source: Geometry, target: Geometry
) -> tuple[np.ndarray, np.ndarray]:
    """Resample a normalised channel and its head to another grid, by a cubic spline.

    Args:
        part, mask: the channel and its head in a box, (x, y, z).
        box: on the source grid, (2, 3).
        source, target: the grids.

    Returns:
        The channel, float32, and its head, bool; both 0 outside of the source grid.
    """
    image, head = np.zeros(source.shape, np.float32), np.zeros(source.shape, np.float32)
    image[slices_of(box)], head[slices_of(box)] = part, mask
    affine = np.linalg.inv(source.affine) @ target.affine
    matrix, offset = affine[:3, :3], affine[:3, 3]
    # Against aliasing, as in `forward_part`.
    factor = np.abs(matrix).max(axis=1)
    image = ndimage.gaussian_filter(image, np.maximum(0, (factor - 1) / 2), mode="nearest")
    resampled = ndimage.affine_transform(image, matrix, offset, target.shape, np.float32, order=3)
    share = ndimage.affine_transform(head, matrix, offset, target.shape, np.float32, order=1)
    in_head = share >= 0.5
    resampled[~in_head] = 0
    return resampled, in_head
