"""Slices of a prepared case in the radiological convention, with outlines of the regions.

The axes of the prepared grid are RAS+: indices increase to the patient's right, front and top.
Axial and coronal slices have the patient's right on the left of the image, sagittal slices the
front on the left. So `displayed` flips both axes of every image.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from scipy import ndimage

from gigatile.report.outlines import outline
from gigatile.report.pages import data_uri
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.grid import Grid

# The percentiles of a channel that are black and white.
SHOWN = (0.5, 99.5)
# The percentiles are those of at most so many values.
SAMPLED = 1_000_000
# Larger images are JPEG, so that a page does not have tens of megabytes.
LOSSLESS_PIXELS = 320 * 320
JPEG_QUALITY = 90
# The small images to scroll through: 100 of 5 kB are half a megabyte.
STACK_MOST, STACK_SIDE, STACK_QUALITY = 100, 224, 70
REFERENCE_COLOUR, PREDICTED_COLOUR = (0x56, 0xB4, 0xE9), (0xFF, 0x9F, 0x1C)


@dataclass(frozen=True)
class Plane:
    """An anatomical plane.

    Attributes:
        axis: the axis perpendicular to it.
        across, up: the axes of the image; both are shown from their end to their start.
        ends: the directions at the left, right, top and bottom of the image.
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
    """The outlines of a region in a slice, as SVG paths in pixels; empty: not in the slice."""

    region: str
    reference: str
    predicted: str


@dataclass(frozen=True)
class View:
    """A slice with its images and outlines.

    Attributes:
        number, total: of the slice on the prepared grid, from 0, and of all slices.
        file_axis, file_number: the same slice in the case's files: i, j or k, from 0.
        columns, rows: pixels of the image.
        width, height: millimetres.
        images: by modality, a data: address.
        outlines: of each region.
    """

    plane: Plane
    number: int
    total: int
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
    """A slice of a stack; attributes as in `View`, with one image."""

    number: int
    file_axis: str
    file_number: int
    image: str


@dataclass(frozen=True)
class Volumes:
    """A case on its prepared grid.

    Attributes:
        image: (x, y, z, C) float16; a channel is 0 outside the head.
        reference: (x, y, z) uint8, the reference segmentation; None: not known.
        predicted: (x, y, z) uint8.
    """

    image: np.ndarray
    reference: np.ndarray | None
    predicted: np.ndarray
    grid: Grid


class Slices:
    """The slices of a case, with the modalities, labels and regions of its settings."""

    def __init__(self, volumes: Volumes, settings: VolumeSettings) -> None:
        self._volumes = volumes
        self._modalities = settings.modalities
        self._limits = [_limits(volumes.image[..., k]) for k in range(len(self._modalities))]
        values, regions = settings.label_values, settings.region_labels
        self._within = {region: np.zeros(256, bool) for region in regions}
        for region, labels in regions.items():
            self._within[region][[values[label] for label in labels]] = True
        # Labels that are in the same regions have the same code; label 0 is in no region.
        member_of = np.array(list(self._within.values())).T
        _, codes = np.unique(member_of, axis=0, return_inverse=True)
        codes = codes.reshape(-1).astype(np.uint8)
        in_any_region = codes != codes[0]
        self._predicted = in_any_region[volumes.predicted]
        self._reference = self._differs = None
        if volumes.reference is not None:
            self._reference = in_any_region[volumes.reference]
            self._differs = codes[volumes.reference] != codes[volumes.predicted]

    @property
    def of_reference(self) -> bool:
        """Whether the reference segmentation has any region."""
        return self._reference is not None and bool(self._reference.any())

    def largest(self) -> tuple[int, int, int] | None:
        """Return the slice across each axis with the most voxels of the reference segmentation.

        Without a reference, of the prediction; None: neither has a region. A reference counts
        alone, since a poor prediction may cover the whole head.
        """
        if self._reference is not None and self.of_reference:
            return _fullest(self._reference)
        return _fullest(self._predicted)

    def middle(self) -> tuple[int, int, int]:
        """Return the middle slice across each axis."""
        return _three([side // 2 for side in self._predicted.shape])

    def most_different(self, other_than: Sequence[int] = (-1, -1, -1)) -> list[int | None]:
        """Return the slice across each axis with the most voxels of different regions.

        Args:
            other_than: slices to skip, one across each axis.

        Returns:
            (3,) their numbers; None: no other slice across this axis differs.
        """
        if self._differs is None:
            return [None, None, None]
        numbers: list[int | None] = []
        for shown, axes in zip(other_than, ((1, 2), (0, 2), (0, 1)), strict=True):
            counts = np.count_nonzero(self._differs, axis=axes)
            if shown >= 0:
                counts[shown] = 0
            numbers.append(int(counts.argmax()) if counts.any() else None)
        return numbers

    def stack(self, plane: Plane, number: int, modality: str, side: int) -> list[SmallSlice]:
        """Return the slices of a plane as small images.

        Args:
            number: of images at most; with more slices, evenly spaced ones are left out.
            modality: the channel.
            side: pixels of the longer side of an image.

        Returns:
            Each image is a data: address of a grey JPEG with the edges of all segmented regions:
            the reference blue, the prediction orange.
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
        image = Image.fromarray(pixels).convert("RGB")
        columns, rows = image.size
        spacing = self._volumes.grid.spacing
        width, height = columns * spacing[plane.across], rows * spacing[plane.up]
        scale = side / max(width, height)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        shown = np.array(image.resize(size, Image.Resampling.BILINEAR))
        for mask, colour in (
            (self._reference, REFERENCE_COLOUR),
            (self._predicted, PREDICTED_COLOUR),
        ):
            if mask is not None:
                inside = Image.fromarray(displayed(mask, plane, number).astype(np.uint8) * 255)
                resized = np.asarray(inside.resize(size, Image.Resampling.NEAREST)) > 0
                shown[resized & ~ndimage.binary_erosion(resized, border_value=0)] = colour
        buffer = io.BytesIO()
        Image.fromarray(shown).save(buffer, "JPEG", quality=STACK_QUALITY)
        return data_uri(buffer.getvalue(), "image/jpeg")

    def view(self, plane: Plane, number: int, modalities: Sequence[str]) -> View:
        """Return a slice with its outlines and an image for each modality."""
        volumes, grid = self._volumes, self._volumes.grid
        predicted = displayed(volumes.predicted, plane, number)
        reference = volumes.reference
        if reference is not None:
            reference = displayed(reference, plane, number)
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
            {name: self._image(plane, number, name) for name in modalities},
            [
                Outline(
                    region,
                    "" if reference is None else outline(within[reference]),
                    outline(within[predicted]),
                )
                for region, within in self._within.items()
            ],
        )

    def _image(self, plane: Plane, number: int, modality: str) -> str:
        channel = self._modalities.index(modality)
        pixels = displayed(self._volumes.image[..., channel], plane, number)
        return encode(grey(pixels, *self._limits[channel]))


def stack_numbers(slices: int, most: int) -> list[int]:
    """Return the numbers of at most `most` evenly spaced slices, from 0."""
    step = -(-slices // most)
    return list(range((slices - 1) % step // 2, slices, step))


def displayed(array: np.ndarray, plane: Plane, number: int) -> np.ndarray:
    """Return a slice of (x, y, z) as it is displayed: (rows, columns)."""
    return np.take(array, number, axis=plane.axis).T[::-1, ::-1]


def file_slice(grid: Grid, axis: int, number: int) -> tuple[str, int]:
    """Return axis and index in the case's files of a slice of the prepared grid."""
    length, resampled = grid.canonical_shape[axis], grid.resampled_shape[axis]
    position = (number + grid.crop_start[axis] + 0.5) * length / resampled - 0.5
    index = int(np.clip(np.floor(position + 0.5), 0, length - 1))
    file_axis = int(np.flatnonzero(grid.to_canonical[:, 0] == axis)[0])
    return "ijk"[file_axis], length - 1 - index if grid.to_canonical[file_axis, 1] < 0 else index


def grey(pixels: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return (rows, columns) uint8: black at `low` and outside the head, white at `high`."""
    values = pixels.astype(np.float32)
    share = ((values - low) / (high - low)).clip(0, 1)
    return np.rint(share * 255 * (values != 0)).astype(np.uint8)


def encode(pixels: np.ndarray) -> str:
    """Return (rows, columns) uint8 as a data: address."""
    buffer = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if pixels.size <= LOSSLESS_PIXELS:
        image.save(buffer, "PNG", optimize=True)
        return data_uri(buffer.getvalue(), "image/png")
    image.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return data_uri(buffer.getvalue(), "image/jpeg")


def _limits(channel: np.ndarray) -> tuple[float, float]:
    """Return the values that are black and white; of an empty channel, any two."""
    sampled = channel[:, :, :: -(-channel.size // SAMPLED)]
    values = sampled[sampled != 0].astype(np.float32)
    if not values.size:
        return 0.0, 1.0
    low, high = np.percentile(values, SHOWN).tolist()
    return (low, high) if high > low else (low - 1, low + 1)


def _fullest(mask: np.ndarray) -> tuple[int, int, int] | None:
    """Return the slice across each axis with the most voxels; None: the mask is empty."""
    if not mask.any():
        return None
    others = ((1, 2), (0, 2), (0, 1))
    return _three([int(np.count_nonzero(mask, axis=axes).argmax()) for axes in others])


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z
