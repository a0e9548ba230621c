"""A case's channels: each normalised and put on the prepared grid, and all of them joined."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from nibabel.orientations import apply_orientation
from scipy import ndimage

from gigatile.volumes.background import box_of, find_inside, slices_of, turned_box
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.geometry import Geometry, Turned, compare
from gigatile.volumes.grid import Grid, forward_part
from gigatile.volumes.image_checks import SAMPLED, check_channel, sample_slices
from gigatile.volumes.reader import voxels

# An outlier is more than OUTLIER times as far from the median as the 0.5th or 99.5th percentile. In
# real volumes the brightest voxel is 5.3 times as far at most.
ORDINARY = (0.5, 16, 50, 84, 99.5)
OUTLIER = 10
# How many times the standard deviation of the head may be that of its middle two thirds. Real: 1.5.
MOST_SPREAD = 5
# The share of a channel's voxels that may be no numbers, or so large that they are damage.
MOST_LOST = 0.001
ABSURD = 1e30
# Values that are summed at a time: float64 of a whole head would double the memory.
PART = 1 << 20
# The share of a prepared voxel that must be head for it to be head. At twice the spacing many have
# exactly a half, which rounding must not decide.
HALF = 0.5 - 1e-6
_FLOAT16 = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Channel:
    """A normalised channel, cut to its own head.

    Attributes:
        start: its first voxel on the grid of the whole prepared volume, (3,) int64.
        values: (x, y, z) float16, standard deviations from the mean of its head; 0 outside.
        mask: (x, y, z) bool, its head.
        background: the one value of all that surrounds the head; None where that is noise.
        mean, sd: of the head's voxels, in the file's own values.
        lost: how many voxels of the file are NaN, infinite or absurd; they are 0.
        warnings: what a user should look at.
    """

    start: np.ndarray
    values: np.ndarray
    mask: np.ndarray
    background: float | None
    mean: float
    sd: float
    lost: int
    warnings: tuple[str, ...]


def prepare_channel(
    image: np.ndarray,
    own: Turned,
    known: Geometry,
    whole: Grid,
    dtype: np.dtype[Any] | None = None,
    orientation: str = "RAS",
) -> Channel:
    """Normalise a channel and put it on the prepared grid.

    Mean and standard deviation are those of the channel's own head, in the file's own voxels.
    Outliers get the value of the 0.5th or 99.5th percentile first: one hot voxel of 1e5 among 1.5
    million would make the standard deviation 70 times as large, and the image next to constant.

    Args:
        image: (x, y, z) float32, as the file has it; it is used up.
        own: where the file's voxels lie, axes turned like the case's.
        known: the case's grid. A file that lies elsewhere, by more than noise, is resampled to it.
        whole: the prepared grid of the whole volume.
        dtype: of the file's stored values; None where they are scaled.
        orientation: where the file's axes point to.

    Raises:
        VolumeError: there is no head in it, or what there is cannot be normalised.
    """
    shape = image.shape
    lowest, highest = float(image.min()), float(image.max())
    finite = None
    lost = 0
    # NaN compares as false.
    if not (lowest > -ABSURD and highest < ABSURD):
        finite = np.abs(image) < ABSURD
        lost = image.size - int(np.count_nonzero(finite))
        if lost > MOST_LOST * image.size:
            raise VolumeError(
                f"{lost:,} of its {image.size:,} voxels are NaN, infinite or beyond {ABSURD:g}; "
                f"{MOST_LOST:.1%} at most may be"
            )
        image[~finite] = image[finite].min()
        lowest, highest = float(image.min()), float(image.max())
    if lowest == highest:
        raise VolumeError(f"all its voxels have the value {lowest:g}")
    inside = find_inside(image)
    slices = sample_slices(image)
    cut = slices_of(inside.box)
    # Around the box nothing is used from here on.
    part = np.asfortranarray(image[cut])
    del image
    head = inside.mask if finite is None else inside.mask & finite[cut]
    del finite
    values = part.T[head.T]
    if not values.size or values.min() == values.max():
        raise VolumeError(
            f"all its voxels in the head have one value ({values[0]:g})"
            if values.size
            else "there is no head in it"
        )
    warnings, mean, sd = clip_outliers(part, values)
    warnings += check_channel(part, values, inside, slices, shape, dtype, orientation)
    del values
    background = inside.background
    box = turned_box(inside.box, shape, own.steps)
    del slices, inside
    part -= np.float32(mean)
    part /= np.float32(sd)
    part[~head] = 0
    part, head = own.turn(part), own.turn(head)
    if compare({"known": known, "own": own.geometry}, "known").state == "different":
        part, head = _on_grid_of(known, own.geometry, part, head, box)
        box = np.array([(0, 0, 0), known.shape])
    part, head = apply_orientation(part, whole.steps), apply_orientation(head, whole.steps)
    box = turned_box(box, known.shape, whole.steps)
    shown = box_of(head)  # smaller than `box` where the head has been resampled or has lost voxels
    if shown is None:
        raise VolumeError("its head lies outside the grid that the case is put on")
    part, head = part[slices_of(shown)], head[slices_of(shown)]
    box = box[0] + shown
    grid = whole.cut_to(*box)
    mask = forward_part(head, box[0], grid, order=1) >= HALF if grid.resampled else head
    prepared = forward_part(part, box[0], grid)
    np.clip(prepared, -_FLOAT16, _FLOAT16, out=prepared)
    prepared[~mask] = 0  # a spline swings beyond the head's edge
    return Channel(
        np.array(grid.crop_start),
        prepared.astype(np.float16),
        mask,
        background,
        mean,
        sd,
        lost,
        tuple(warnings),
    )


def clip_outliers(image: np.ndarray, values: np.ndarray) -> tuple[list[str], float, float]:
    """Set outliers to the 0.5th or 99.5th percentile of the head, in place.

    Args:
        image: (x, y, z), the channel.
        values: (n,), those of its head.

    Returns:
        A warning if there are outliers, or if extreme values dominate the standard deviation; the
        head's mean and standard deviation after clipping.
    """
    sample = values[:: max(1, len(values) // SAMPLED)]
    low, below, median, above, high = np.percentile(sample, ORDINARY)
    least = median - OUTLIER * (median - low)
    most = median + OUTLIER * (high - median)
    warnings = []
    farthest = None
    if low < median < high and (values.min() < least or values.max() > most):
        count = int(np.count_nonzero((values < least) | (values > most)))
        farthest = max(values.max() - median, median - values.min(), key=abs)
        for array in (image, values):
            array[array < least] = low
            array[array > most] = high
    mean, sd = mean_and_sd(values)
    if farthest is not None:
        warnings.append(
            f"{voxels(count)} of its head far outside of all others, up to "
            f"{farthest / sd:,.0f} standard deviations; set to the value of the "
            f"{ORDINARY[0]:g}th or {ORDINARY[-1]:g}th percentile"
        )
    if sd > MOST_SPREAD * (above - below) / 2:
        warnings.append(
            f"its standard deviation, {sd:.4g}, is {'' if above > below else 'more than '}"
            f"{sd / max((above - below) / 2, sd / 1000):,.0f} times that of the middle two thirds "
            "of its head: extreme values dominate the normalisation"
        )
    return warnings, mean, sd


def mean_and_sd(values: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation of (n,) float32, computed in float64, part by part."""
    mean = float(values.mean(dtype=np.float64))
    parts = (values[first : first + PART] for first in range(0, len(values), PART))
    squares = sum(float(np.square(part - np.float64(mean)).sum()) for part in parts)
    return mean, float(np.sqrt(squares / len(values)))


def cut_to_all(whole: Grid, channels: Sequence[Channel | None], labels: np.ndarray | None) -> Grid:
    """Return the prepared grid cut to the head in any channel, and to all that is labelled.

    Args:
        whole: the prepared grid of the whole volume.
        channels: None for one that is missing.
        labels: (x, y, z) uint8, as the file has them.
    """
    boxes = [
        (channel.start, channel.start + channel.values.shape)
        for channel in channels
        if channel is not None
    ]
    labelled = None if labels is None else box_of(whole.canonical(labels) > 0)
    if labelled is not None:
        grid = whole.cut_to(*labelled)
        boxes.append((np.array(grid.crop_start), np.add(grid.crop_start, grid.shape)))
    x, y, z = np.min([start for start, _ in boxes], axis=0).tolist()
    x_stop, y_stop, z_stop = np.max([stop for _, stop in boxes], axis=0).tolist()
    return replace(whole, crop_start=(x, y, z), shape=(x_stop - x, y_stop - y, z_stop - z))


def join_channels(grid: Grid, channels: list[Channel | None]) -> tuple[np.ndarray, np.ndarray]:
    """Return all channels together and which voxels are head in any of them.

    Args:
        grid: what they are put on.
        channels: used up, so that each is held no longer than needed; None becomes 0 throughout.

    Returns:
        (x, y, z, C) float16 and (x, y, z) bool.
    """
    # Each channel is contiguous, so its memory is not in use before it is filled.
    image = np.moveaxis(np.zeros((len(channels), *grid.shape), np.float16), 0, -1)
    inside = np.zeros(grid.shape, bool)
    for number, channel in enumerate(channels):
        channels[number] = None
        if channel is None:
            continue
        start = (channel.start - grid.crop_start).tolist()
        x, y, z = (slice(a, a + n) for a, n in zip(start, channel.values.shape, strict=True))
        image[x, y, z, number] = channel.values
        inside[x, y, z] |= channel.mask
    return image, inside


def _on_grid_of(
    known: Geometry, own: Geometry, part: np.ndarray, mask: np.ndarray, box: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Resample a normalised channel and its head, (x, y, z), to another grid: float32 and bool.

    By a cubic spline; what the file does not show is outside.
    """
    image, head = np.zeros(own.shape, np.float32), np.zeros(own.shape, np.float32)
    image[slices_of(box)], head[slices_of(box)] = part, mask
    way = np.linalg.inv(own.affine) @ known.affine
    matrix, offset = way[:3, :3], way[:3, 3]
    # Where voxels become larger, as in `forward_image`.
    growth = np.abs(matrix).max(axis=1)
    image = ndimage.gaussian_filter(image, np.maximum(0, (growth - 1) / 2), mode="nearest")
    moved = ndimage.affine_transform(image, matrix, offset, known.shape, np.float32, order=3)
    share = ndimage.affine_transform(head, matrix, offset, known.shape, np.float32, order=1)
    inside = share >= 0.5
    moved[~inside] = 0
    return moved, inside
