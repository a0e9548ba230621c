"""Slices of a prepared case as a radiologist sees them, and the outlines that lie over them.

The prepared grid is RAS+: its indices grow to the patient's right, front and top. Axial and coronal
slices are shown by the radiological convention, the patient's right at the left of the picture, and
sagittal ones with the front at the left. So every picture has its second axis upside down and its
first one back to front, which `displayed` does.
"""

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from scipy import ndimage

from gigatile.report.heatmap import data_uri
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.grid import Grid

# What of a channel's values lies between black and white, in per cent.
SHOWN = (0.5, 99.5)
# Of at most so many values the percentiles are found.
SAMPLED = 1_000_000
# Pictures of more pixels are JPEG: a page must not become tens of megabytes.
LOSSLESS_PIXELS = 320 * 320
JPEG_QUALITY = 90
# Of the stack of small pictures to scroll through: 100 of 5 kB are half a megabyte a page.
STACK_MOST, STACK_SIDE, STACK_QUALITY = 100, 224, 70
TRUTH_COLOUR, PREDICTED_COLOUR = (0x56, 0xB4, 0xE9), (0xFF, 0x9F, 0x1C)


@dataclass(frozen=True)
class Plane:
    """One of the three ways to cut.

    Attributes:
        axis: the one that is cut across.
        across, up: the axes of the picture; both are shown from their end to their start.
        ends: what lies at the picture's left, right, top and bottom.
    """

    name: str
    axis: int
    across: int
    up: int
    ends: tuple[str, str, str, str]


PLANES = (
    Plane("axial", 2, 0, 1, ("R", "L", "A", "P")),
    Plane("coronal", 1, 0, 2, ("R", "L", "S", "I")),
    Plane("sagittal", 0, 1, 2, ("A", "P", "S", "I")),
)


@dataclass(frozen=True)
class Outline:
    """Where a region of one slice ends, as SVG paths in pixels; empty where there is nothing."""

    region: str
    truth: str
    predicted: str


@dataclass(frozen=True)
class View:
    """One slice, ready to be drawn.

    Attributes:
        number: of the slice on the prepared grid, from 0; `of` so many.
        file_axis, file_number: the same slice in the case's own files: i, j or k, from 0.
        columns, rows: pixels of the picture.
        width, height: millimetres.
        images: a data: address for each of the modalities that are shown.
        outlines: of each region.
    """

    plane: Plane
    number: int
    of: int
    file_axis: str
    file_number: int
    columns: int
    rows: int
    width: float
    height: float
    images: Mapping[str, str]
    outlines: Sequence[Outline]


@dataclass(frozen=True)
class SmallSlice:
    """One slice of a stack; the attributes are those of `View`, with one image."""

    number: int
    file_axis: str
    file_number: int
    image: str


@dataclass(frozen=True)
class Volumes:
    """A case on its prepared grid.

    Attributes:
        image: (x, y, z, C) float16; a channel is 0 outside its head.
        truth: (x, y, z) uint8; None: it is not known.
        predicted: (x, y, z) uint8.
    """

    image: np.ndarray
    truth: np.ndarray | None
    predicted: np.ndarray
    grid: Grid


class Slices:
    """Cuts pictures out of one case.

    Args:
        volumes: the case.
        settings: its modalities, labels and regions.
    """

    def __init__(self, volumes: Volumes, settings: VolumeSettings) -> None:
        self._volumes = volumes
        self._modalities = settings.modalities
        self._limits = [_limits(volumes.image[..., k]) for k in range(len(self._modalities))]
        values, regions = settings.label_values, settings.region_labels
        self._within = {region: np.zeros(256, bool) for region in regions}
        for region, labels in regions.items():
            self._within[region][[values[label] for label in labels]] = True
        # Labels of the same regions are the same here; 0 is in none.
        belongs = np.array(list(self._within.values())).T
        _, codes = np.unique(belongs, axis=0, return_inverse=True)
        codes = codes.reshape(-1).astype(np.uint8)
        some = codes != codes[0]
        self._predicted = some[volumes.predicted]
        self._truth = self._differs = None
        if volumes.truth is not None:
            self._truth = some[volumes.truth]
            self._differs = codes[volumes.truth] != codes[volumes.predicted]

    @property
    def of_truth(self) -> bool:
        """Whether there is any truth to look at."""
        return self._truth is not None and bool(self._truth.any())

    def largest(self) -> tuple[int, int, int] | None:
        """Return the slice across each axis in which the truth covers most.

        Where there is no truth, the prediction; None where there is neither. Not both together:
        what a poor model finds all over the head would lead away from what is there.
        """
        if self._truth is not None and self.of_truth:
            return _fullest(self._truth)
        return _fullest(self._predicted)

    def middle(self) -> tuple[int, int, int]:
        """Return the slice across each axis that has as many before as after it."""
        return _three([side // 2 for side in self._predicted.shape])

    def most_different(self, other_than: Sequence[int] = (-1, -1, -1)) -> list[int | None]:
        """Return the slice across each axis with most voxels whose regions differ.

        Args:
            other_than: slices that are shown already, one across each axis.

        Returns:
            (3,) their numbers; None across an axis where no other slice differs.
        """
        if self._differs is None:
            return [None, None, None]
        found: list[int | None] = []
        for shown, axes in zip(other_than, ((1, 2), (0, 2), (0, 1)), strict=True):
            counts = np.count_nonzero(self._differs, axis=axes)
            if shown >= 0:
                counts[shown] = 0
            found.append(int(counts.argmax()) if counts.any() else None)
        return found

    def stack(self, plane: Plane, number: int, modality: str, side: int) -> list[SmallSlice]:
        """Return the slices across an axis as pictures that are small enough for one page.

        Args:
            plane: which way to cut.
            number: of pictures at most; of more slices, evenly spaced ones are left out.
            modality: the channel.
            side: pixels of a picture's longer side at most.

        Returns:
            Each image is a data: address of a grey JPEG with coloured edges of all segmented
            regions: the truth blue, the prediction orange.
        """
        grid = self._volumes.grid
        return [
            SmallSlice(n, *file_slice(grid, plane.axis, n), self._small(plane, n, modality, side))
            for n in stack_numbers(self._predicted.shape[plane.axis], number)
        ]

    def _small(self, plane: Plane, number: int, modality: str, side: int) -> str:
        channel = self._modalities.index(modality)
        pixels = grey(
            displayed(self._volumes.image[..., channel], plane, number), *self._limits[channel]
        )
        picture = Image.fromarray(pixels).convert("RGB")
        columns, rows = picture.size
        spacing = self._volumes.grid.spacing
        width, height = columns * spacing[plane.across], rows * spacing[plane.up]
        scale = side / max(width, height)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        shown = np.array(picture.resize(size, Image.Resampling.BILINEAR))
        for mask, colour in ((self._truth, TRUTH_COLOUR), (self._predicted, PREDICTED_COLOUR)):
            if mask is not None:
                inside = Image.fromarray(displayed(mask, plane, number).astype(np.uint8) * 255)
                resized = np.asarray(inside.resize(size, Image.Resampling.NEAREST)) > 0
                shown[resized & ~ndimage.binary_erosion(resized, border_value=0)] = colour
        buffer = io.BytesIO()
        Image.fromarray(shown).save(buffer, "JPEG", quality=STACK_QUALITY)
        return data_uri(buffer.getvalue(), "image/jpeg")

    def view(self, plane: Plane, number: int, modalities: Sequence[str]) -> View:
        """Return one slice with its outlines, and as some modalities show it."""
        volumes, grid = self._volumes, self._volumes.grid
        predicted = displayed(volumes.predicted, plane, number)
        truth = None if volumes.truth is None else displayed(volumes.truth, plane, number)
        rows, columns = predicted.shape
        file_axis, file_number = file_slice(grid, plane.axis, number)
        return View(
            plane,
            number,
            grid.shape[plane.axis],
            file_axis,
            file_number,
            columns,
            rows,
            columns * grid.spacing[plane.across],
            rows * grid.spacing[plane.up],
            {name: self._picture(plane, number, name) for name in modalities},
            [
                Outline(
                    region,
                    "" if truth is None else outline(within[truth]),
                    outline(within[predicted]),
                )
                for region, within in self._within.items()
            ],
        )

    def _picture(self, plane: Plane, number: int, modality: str) -> str:
        channel = self._modalities.index(modality)
        pixels = displayed(self._volumes.image[..., channel], plane, number)
        return encode(grey(pixels, *self._limits[channel]))


def stack_numbers(slices: int, most: int) -> list[int]:
    """Return which of some slices are in a stack of `most` at most: evenly spread, from 0."""
    step = -(-slices // most)
    return list(range((slices - 1) % step // 2, slices, step))


def displayed(array: np.ndarray, plane: Plane, number: int) -> np.ndarray:
    """Return one slice of (x, y, z) as it is looked at: (rows, columns)."""
    return np.take(array, number, axis=plane.axis).T[::-1, ::-1]


def file_slice(grid: Grid, axis: int, number: int) -> tuple[str, int]:
    """Return where a slice of the prepared grid lies in the case's own files: axis and index."""
    length, resampled = grid.canonical_shape[axis], grid.resampled_shape[axis]
    place = (number + grid.crop_start[axis] + 0.5) * length / resampled - 0.5
    index = int(np.clip(np.floor(place + 0.5), 0, length - 1))
    own = int(np.flatnonzero(grid.to_canonical[:, 0] == axis)[0])
    return "ijk"[own], length - 1 - index if grid.to_canonical[own, 1] < 0 else index


def grey(pixels: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return (rows, columns) uint8: black at `low` and outside the head, white at `high`."""
    values = pixels.astype(np.float32)
    share = ((values - low) / (high - low)).clip(0, 1)
    return np.rint(share * 255 * (values != 0)).astype(np.uint8)


def encode(pixels: np.ndarray) -> str:
    """Return (rows, columns) uint8 as a data: address."""
    buffer = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    if pixels.size <= LOSSLESS_PIXELS:
        picture.save(buffer, "PNG", optimize=True)
        return data_uri(buffer.getvalue(), "image/png")
    picture.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return data_uri(buffer.getvalue(), "image/jpeg")


def outline(mask: np.ndarray) -> str:
    """Return the edges between the pixels that are inside and those outside, as closed SVG paths.

    A path runs along the sides of pixels, (column, row) being the upper left corner of one, with
    the inside at its right hand. Pixels that touch at a corner alone are two paths.

    Args:
        mask: (rows, columns) bool.
    """
    inside = np.pad(mask, 1)
    # Which sides of pixels are edges, and as steps that keep the inside at the right.
    edges: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for row_step, column_step, corner, step in (
        (-1, 0, (0, 0), (1, 0)),  # the upper side, to the right
        (0, 1, (1, 0), (0, 1)),  # the right side, down
        (1, 0, (1, 1), (-1, 0)),  # the lower side, to the left
        (0, -1, (0, 1), (0, -1)),  # the left side, up
    ):
        beyond = np.roll(inside, (-row_step, -column_step), axis=(0, 1))
        for row, column in np.argwhere(inside & ~beyond).tolist():
            edges[column - 1 + corner[0], row - 1 + corner[1]].append(step)
    paths = []
    while edges:
        start = next(iter(edges))
        place, step, length = start, edges[start][0], 0
        path = f"M{start[0]} {start[1]}"
        while True:
            ways = edges[place]
            # At a corner between two pixels, to the right: it stays with the pixel that it is on.
            right = (-step[1], step[0])
            new = right if right in ways and len(ways) > 1 else ways[0]
            ways.remove(new)
            if not ways:
                del edges[place]
            if new != step:
                path += _line(step, length)
                step, length = new, 0
            length += 1
            place = (place[0] + new[0], place[1] + new[1])
            if place == start:
                break
        paths.append(path + _line(step, length) + "z")
    return "".join(paths)


def _line(step: tuple[int, int], length: int) -> str:
    if not length:
        return ""
    return f"h{step[0] * length}" if step[0] else f"v{step[1] * length}"


def _limits(channel: np.ndarray) -> tuple[float, float]:
    """Return the values that are black and white; of a channel that has none, any two."""
    sampled = channel[:, :, :: -(-channel.size // SAMPLED)]
    values = sampled[sampled != 0].astype(np.float32)
    if not values.size:
        return 0.0, 1.0
    low, high = np.percentile(values, SHOWN).tolist()
    return (low, high) if high > low else (low - 1, low + 1)


def _fullest(mask: np.ndarray) -> tuple[int, int, int] | None:
    """Return the slice across each axis that has most voxels; None where there is none."""
    if not mask.any():
        return None
    others = ((1, 2), (0, 2), (0, 1))
    return _three([int(np.count_nonzero(mask, axis=axes).argmax()) for axes in others])


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z
