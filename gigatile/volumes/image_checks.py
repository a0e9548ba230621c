"""Check that every channel is an image of a head, for faults that a radiologist would see.

A check refuses a file that can only be damaged or the wrong file, and warns if that is likely. The
comments compare each limit with the values of real volumes and of the demo's heads.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy import ndimage

from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.head_mask import HeadMask, box_of

# The smallest head, in voxels and as a fraction of the volume. Real: 17 % and more.
MIN_HEAD_VOXELS, MIN_HEAD_FRACTION = 100, 0.001
# Approximate number of voxels in a sample.
SAMPLED = 200_000
# Correlation of neighbouring voxels along the axis where it is highest. White noise: 0; real
# volumes: 0.77 and more; the demo's: 0.60. Values are clipped to these percentiles first, so that
# a few hot voxels do not count as noise.
CLIPPED = (5, 95)
NOISE, LIKELY_NOISE = 0.1, 0.4
# Number of different values in a head. Segmentations: 2 to 5; real volumes: 570 and more.
MIN_VALUES, LIKELY_MIN_VALUES = 8, 32
# The largest fraction of empty slices inside the head; a slice is inside the head if at least this
# fraction of the head is on either side of it.
MAX_EMPTY, BEYOND = 0.1, 0.02
# Area of the head on a face of the volume, as a fraction of the head's largest slice. Complete
# heads: 0.43 at most; cropped heads: 0.8 and more.
CROPPED = 0.6
# A jump between neighbours as a fraction of the data type's range, and the most jumps per million.
JUMP, MAX_JUMPS = 0.75, 100
# Correlation of two channels of a case. T1 before and after contrast: 0.9 at most.
SAME, LIKELY_SAME = 0.9999, 0.99
# Dice of the heads of two channels. Before registration: 0.85 and more.
MIN_OVERLAP = 0.6
# Fewest voxels in both heads for the check of mirrored channels.
MIN_COMPARED = 2000
# By how much mirroring must increase the correlation of two channels' edges. Registered: -0.08 at
# most; mirrored by mistake: 0.07 and more; before registration: 0.02 at most.
MIRRORED = 0.05
# By how much another channel must resemble T1 after contrast more than T1 does. Real and demo:
# -0.09 at most.
EXCHANGED = 0.05
_T1, _T1_CONTRAST = ("t1", "t1n", "t1w"), ("t1gd", "t1ce", "t1c")
_FACES = {"R": "right", "L": "left", "A": "front", "P": "back", "S": "top", "I": "bottom"}
_OPPOSITE = dict(zip("RLAPSI", "LRPAIS", strict=True))


def check_channel(
    part: np.ndarray,
    values: np.ndarray,
    head: HeadMask,
    slices: Sequence[np.ndarray],
    shape: Sequence[int],
    dtype: np.dtype[Any] | None,
    orientation: str,
) -> list[str]:
    """Return warnings about one channel.

    Args:
        part: (x, y, z) float32, finite, the box of its head.
        values: (n,) float32, the values of its head.
        head: the voxels of the head.
        slices: of the whole volume, from `sample_slices`.
        shape: voxels of the whole volume along each axis.
        dtype: of the stored values; None if they are scaled.
        orientation: directions of the file's axes, such as `LPS`; empty: it is no head, which
            the volume may crop.

    Raises:
        VolumeError: it is not an image of a head.
    """
    mask = head.mask
    count, size = int(np.count_nonzero(mask)), int(np.prod(shape))
    if count < max(MIN_HEAD_VOXELS, MIN_HEAD_FRACTION * size):
        raise VolumeError(
            f"it contains no head: {count:,} of its {size:,} voxels differ from the background"
        )
    return [
        *_check_values(values, head.background),
        # Transposed to memory order, because these checks treat all axes equally.
        *_check_noise(part.T, mask.T, values),
        *_check_slices(slices),
        *_check_faces(head, shape, orientation),
        *_check_overflow(part.T, mask.T, dtype),
    ]


def sample_slices(image: np.ndarray) -> list[np.ndarray]:
    """Return the slices across each axis of (x, y, z), each as a row of up to 128 × 128 voxels."""
    rows = []
    for axis in range(3):
        steps = [1 if a == axis else max(1, image.shape[a] // 64) for a in range(3)]
        thin = image[tuple(slice(None, None, step) for step in steps)].T
        planes = np.moveaxis(thin, 2 - axis, 0)
        rows.append(planes.reshape(len(planes), -1))
    return rows


def compare_channels(image: np.ndarray, modalities: Mapping[str, int]) -> list[str]:
    """Return warnings from comparing the channels of a case with each other.

    Args:
        image: (x, y, z, C) float16, prepared; 0 outside of a channel's head.
        modalities: index of each channel by name, without filled channels.

    Raises:
        VolumeError: two channels are the same image.
    """
    if len(modalities) < 2:
        return []
    step = max(1, round((np.prod(image.shape[:3]) / SAMPLED) ** (1 / 3)))
    channels = {
        name: np.ascontiguousarray(image[::step, ::step, ::step, number], np.float32)
        for name, number in modalities.items()
    }
    warnings = []
    correlations: dict[frozenset[str], float] = {}
    for first_name, second_name in combinations(channels, 2):
        first, second = channels[first_name], channels[second_name]
        pair = f"{first_name} and {second_name}"
        both = (first != 0) & (second != 0)
        sizes = int(np.count_nonzero(first)) + int(np.count_nonzero(second))
        overlap = 2 * int(np.count_nonzero(both)) / max(1, sizes)
        if overlap < MIN_OVERLAP:
            warnings.append(
                f"the heads of {pair} overlap by only {overlap:.2f} (Dice): another patient, "
                "another orientation, or not registered?"
            )
        correlations[frozenset((first_name, second_name))] = similarity = correlation(
            first[both], second[both]
        )
        if similarity > SAME:
            raise VolumeError(
                f"{pair} are the same image (correlation {similarity:.5f}): one of them is in the "
                "wrong column, or in two columns"
            )
        if similarity > LIKELY_SAME:
            warnings.append(
                f"{pair} are nearly the same image (correlation {similarity:.4f}): is one in the "
                "wrong column?"
            )
    return warnings + _check_mirrored(channels) + _check_exchanged(correlations, list(channels))


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Pearson's correlation of two arrays; 0 if one of them is constant or empty."""
    if not first.size:
        return 0.0
    first = first - first.mean(dtype=np.float64)
    second = second - second.mean(dtype=np.float64)
    norm = float(np.sqrt(np.vdot(first, first) * np.vdot(second, second)))
    return float(np.vdot(first, second)) / norm if norm > 0 else 0.0


def neighbour_correlation(part: np.ndarray, mask: np.ndarray, values: np.ndarray) -> float | None:
    """Return the correlation of neighbouring voxels along the axis where it is highest.

    Args:
        part: (x, y, z) values.
        mask: (x, y, z) bool, which voxels to use.
        values: (n,), the values of these voxels.

    Returns:
        The correlation; None if there are too few pairs.
    """
    low, high = np.percentile(values[:: max(1, len(values) // SAMPLED)], CLIPPED)
    correlations = []
    for axis in range(3):
        thinned_axis = max((a for a in range(3) if a != axis), key=lambda a: part.shape[a])
        step = min(max(1, part.size // SAMPLED), max(1, part.shape[thinned_axis] // 8))
        thin = [slice(None)] * 3
        thin[thinned_axis] = slice(
            step // 2, None, step
        )  # whole planes: neighbours stay neighbours
        planes, counted = (np.moveaxis(a[tuple(thin)], axis, 0) for a in (part, mask))
        both = counted[1:] & counted[:-1]
        if np.count_nonzero(both) >= MIN_HEAD_VOXELS:
            clipped = planes.clip(low, high)
            correlations.append(correlation(clipped[1:][both], clipped[:-1][both]))
    return max(correlations) if correlations else None


def _check_values(values: np.ndarray, background: float | None) -> list[str]:
    values = values[:: max(1, len(values) // SAMPLED)]
    different = len(np.unique(values))
    fault = f"its head has only {different} different values"
    if different <= MIN_VALUES:
        raise VolumeError(f"{fault}: it is a mask or a segmentation, not an image")
    warnings = []
    if different <= LIKELY_MIN_VALUES:
        warnings.append(f"{fault}: is it a segmentation, or an image of very few grey levels?")
    if background is not None and background > np.quantile(values, 0.99):
        warnings.append(
            f"its background, {background:g}, is brighter than the head: are its values inverted?"
        )
    return warnings


def _check_noise(part: np.ndarray, mask: np.ndarray, values: np.ndarray) -> list[str]:
    highest = neighbour_correlation(part, mask, values)
    if highest is None or highest >= LIKELY_NOISE:
        return []
    fault = f"neighbouring voxels are hardly correlated (correlation {highest:.2f})"
    if highest < NOISE:
        raise VolumeError(f"{fault}: it is noise, or its values are damaged")
    return [f"{fault}: is it mostly noise?"]


def _check_slices(slices: Sequence[np.ndarray]) -> list[str]:
    """Warn of empty slices inside the head, and of slices equal to the previous slice."""
    warnings = []
    for planes, name in zip(slices, "ijk", strict=True):
        if len(planes) < 8:
            continue
        shown = np.count_nonzero(planes != planes[:, :1], axis=1)
        share = np.cumsum(shown) / max(1, shown.sum())
        between = (share >= BEYOND) & (share <= 1 - BEYOND)
        empty = np.flatnonzero(between & (shown == 0))
        fault = f"{len(empty)} of its {int(between.sum())} slices across {name} have no image"
        if len(empty) > MAX_EMPTY * between.sum():
            raise VolumeError(f"{fault} ({_listed(empty)}, from 0): a part of the scan is missing")
        if len(empty):
            warnings.append(f"{fault} ({_listed(empty)}, from 0)")
        same = np.append(False, (planes[1:] == planes[:-1]).all(axis=1)) & between & (shown > 0)
        if same.any():
            warnings.append(
                f"{int(same.sum())} of its slices across {name} repeat the previous slice "
                f"({_listed(np.flatnonzero(same))}, from 0)"
            )
    return warnings


def _check_faces(head: HeadMask, shape: Sequence[int], orientation: str) -> list[str]:
    """Warn of a head that is cropped by the volume; the bottom, at the neck, is not checked."""
    sides = []
    for axis, letter in enumerate(orientation):
        first, stop = head.box[:, axis]
        ends = ((first == 0, 0, _OPPOSITE[letter]), (stop == shape[axis], -1, letter))
        if not any(reached for reached, _, _ in ends):
            continue
        counts = np.count_nonzero(head.mask, axis=tuple({0, 1, 2} - {axis}))
        for reached, end, side in ends:
            if reached and side != "I" and counts[end] > CROPPED * counts.max():
                sides.append(_FACES[side])
    if not sides:
        return []
    return [f"the head is cropped by the volume: {', '.join(sorted(sides))}"]


def _check_overflow(part: np.ndarray, mask: np.ndarray, dtype: np.dtype[Any] | None) -> list[str]:
    """Warn of integer overflow: bright voxels became dark in a conversion."""
    if dtype is None or dtype.kind not in "iu" or dtype.itemsize > 2:
        return []
    information = np.iinfo(dtype)
    jump = JUMP * (information.max - information.min)
    if np.ptp(part) < jump:
        return []
    jumps = pairs = 0
    for axis in range(3):
        values, counted = np.moveaxis(part, axis, 0), np.moveaxis(mask, axis, 0)
        both = counted[1:] & counted[:-1]
        jumps += int(np.count_nonzero(both & (np.abs(values[1:] - values[:-1]) > jump)))
        pairs += int(np.count_nonzero(both))
    if jumps * 1e6 <= MAX_JUMPS * pairs:
        return []
    return [
        f"{jumps:,} pairs of neighbouring voxels differ by nearly the whole range of {dtype.name}: "
        "did its values overflow when it was converted?"
    ]


def _check_mirrored(channels: Mapping[str, np.ndarray]) -> list[str]:
    """Warn of channels with edges that fit those of the first channel better after mirroring.

    Mirroring also moves a head that is not in the middle of the volume, so the bounding boxes of
    the two heads are aligned first.
    """
    (first, reference), *others = channels.items()
    edges = _edges(reference)
    warnings = []
    for name, channel in others:
        if np.count_nonzero((channel != 0) & (reference != 0)) < MIN_COMPARED:
            continue
        channel_edges = _edges(channel)
        unchanged = correlation(edges, _align(channel_edges, channel, reference))
        for axis, sides in enumerate(("left and right", "front and back", "top and bottom")):
            flipped = _align(np.flip(channel_edges, axis), np.flip(channel, axis), reference)
            mirrored = correlation(edges, flipped)
            if mirrored > unchanged + MIRRORED:
                warnings.append(
                    f"{name} fits {first} better with {sides} exchanged (correlation of edges "
                    f"{mirrored:.2f}, unchanged {unchanged:.2f}): is its orientation right?"
                )
    return warnings


def _edges(channel: np.ndarray) -> np.ndarray:
    return np.asarray(ndimage.gaussian_gradient_magnitude(channel, 1.0), np.float32)


def _align(array: np.ndarray, channel: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Shift an array so that the bounding boxes of the two heads have the same centre."""
    box, reference_box = box_of(channel != 0), box_of(reference != 0)
    assert box is not None
    assert reference_box is not None
    shift = (reference_box.sum(axis=0) - box.sum(axis=0)) // 2
    return np.roll(array, shift.tolist(), (0, 1, 2))


def _check_exchanged(correlations: Mapping[frozenset[str], float], names: list[str]) -> list[str]:
    """Warn if another channel resembles T1 after contrast more than T1 before contrast does."""
    plain = next((name for name in names if name in _T1), None)
    contrast = next((name for name in names if name in _T1_CONTRAST), None)
    if plain is None or contrast is None:
        return []
    expected = correlations[frozenset((plain, contrast))]
    return [
        f"{name} resembles {contrast} ({similarity:.2f}) more than {plain} does ({expected:.2f}): "
        f"are {name} and {plain} in each other's column?"
        for name in names
        if name not in (plain, contrast)
        and (similarity := correlations[frozenset((name, contrast))]) > expected + EXCHANGED
    ]


def _listed(numbers: np.ndarray, most: int = 5) -> str:
    fault = ", ".join(map(str, numbers[:most].tolist()))
    return fault + ", …" if len(numbers) > most else fault
