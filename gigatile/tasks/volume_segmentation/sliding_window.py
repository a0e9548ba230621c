"""Score a whole volume with a trained model, window by window."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf
from pydantic import JsonValue

from gigatile.errors import UserError
from gigatile.json_models import JsonModel, read_model
from gigatile.models.saving import load_model
from gigatile.settings.patches import PatchSettings
from gigatile.settings.section import check_section
from gigatile.settings.volumes import VolumeSettings
from gigatile.settings.windows import WindowSettings
from gigatile.tasks.volume_segmentation.components import ALL, Kept
from gigatile.volumes.label_decision import Decision
from gigatile.volumes.targets import Targets

# Voxels near the faces of a window have less context and a lower weight: a Gaussian with this
# standard deviation, as a share of a side (Isensee et al. 2021,
# https://doi.org/10.1038/s41592-020-01008-z).
SIGMA = 1 / 8
# The axes along which a window is flipped; none first.
FLIPS = ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))


class PreparedVoxels(Protocol):
    """A prepared case, from a file or in memory."""

    @property
    def case(self) -> str:
        """The case's id."""

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of its channels."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of voxels along each axis."""

    def read_image(self, start: Sequence[int], size: Sequence[int]) -> np.ndarray:
        """Return the voxels of a box, 0 outside the volume: (*size, C) float16."""


class SegmenterSettings(JsonModel):
    """The part of a segmentation model's settings.json that is needed to apply it."""

    volumes: dict[str, JsonValue]
    patches: dict[str, JsonValue]
    sha256: str
    postprocessing: Kept = ALL


class Segmenter:
    """A trained segmentation model.

    Attributes:
        volumes: the settings with which its cases were prepared.
        targets: the meaning of its outputs.
        decide: returns labels from scores.
        kept: which components of a segmentation are kept.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load a model.

        Args:
            model: the file (.keras).
            described: its settings.json.

        Raises:
            UserError: a file is missing or damaged, or the model is for another task.
        """
        settings = read_model(SegmenterSettings, described)
        self.volumes = check_section(VolumeSettings, settings.volumes, str(described))
        patches = check_section(PatchSettings, settings.patches, str(described))
        self.kept = settings.postprocessing
        self.targets = Targets(self.volumes, patches)
        self.decide = Decision(self.targets.names, self.targets.activation, self.volumes)
        self._model = load_model(model, settings.sha256, described)
        self._run = tf.function(lambda images: self._model(images, training=False))

    @property
    def window(self) -> tuple[int, int, int]:
        """The number of voxels along each axis of the model's input."""
        x, y, z = self._model.input_shape[1:4]
        return x, y, z

    def check(self, case: PreparedVoxels) -> None:
        """Check that a case has the channels of the model.

        Raises:
            UserError: it has other channels.
        """
        channels, expected = list(case.channels), list(self.volumes.modalities)
        if channels != expected:
            raise UserError(
                f"case {case.case}: has the channels {', '.join(channels)}, but the model takes "
                f"{', '.join(expected)}; prepare it with the settings of the model"
            )

    def score(self, image: np.ndarray, flips: bool) -> np.ndarray:
        """Return the scores of the voxels of a window.

        Args:
            image: (x, y, z, channels) float16, of the size of `window`; 0 outside the head.
            flips: average over all flips.

        Returns:
            (x, y, z, outputs) float32. A window outside the head is background.
        """
        if not image.any():
            return self._background(image.shape[:3])
        axes = FLIPS if flips else FLIPS[:1]
        total = np.zeros((*image.shape[:3], self.targets.outputs), np.float32)
        for flipped in axes:
            scores = self._run(np.flip(image, flipped)[None]).numpy()[0]
            total += np.flip(scores, flipped)
        return total / len(axes)

    def _background(self, shape: Sequence[int]) -> np.ndarray:
        scores = np.zeros((*shape, self.targets.outputs), np.float32)
        if self.targets.activation == "softmax":
            scores[..., 0] = 1
        return scores


def score_volume(
    segmenter: Segmenter, case: PreparedVoxels, settings: WindowSettings
) -> Iterator[np.ndarray]:
    """Yield the scores of a case's voxels in slabs, from left to right.

    Overlapping windows are averaged, each weighted by a Gaussian around its centre. The slab in
    memory is at most as wide as a window.

    Args:
        segmenter: the model.
        case: the prepared case.
        settings: the section `windows`.

    Yields:
        (n, y, z, outputs) float32: successive planes of the case.
    """
    shape, window = case.shape, segmenter.window
    starts = [_starts(*sides, settings.overlap) for sides in zip(shape, window, strict=True)]
    weights = _gaussian(window)
    sums = np.zeros((window[0], shape[1], shape[2], segmenter.targets.outputs), np.float32)
    total = np.zeros(sums.shape[:3], np.float32)
    for first, following in zip(starts[0], [*starts[0][1:], shape[0]], strict=True):
        for y, z in product(starts[1], starts[2]):
            image = case.read_image((first, y, z), window)
            # The part of the window inside the volume.
            ny, nz = min(window[1], shape[1] - y), min(window[2], shape[2] - z)
            box = (slice(None), slice(y, y + ny), slice(z, z + nz))
            part = weights[:, :ny, :nz]
            sums[box] += segmenter.score(image, settings.flips)[:, :ny, :nz] * part[..., None]
            total[box] += part
        done = following - first
        yield sums[:done] / total[:done, ..., None]
        for array in (sums, total):
            array[: len(array) - done] = array[done:].copy()
            array[len(array) - done :] = 0


def _starts(side: int, window: int, overlap: float) -> list[int]:
    """Return the first voxels of the windows along an axis: evenly spaced, as few as possible.

    A volume that is smaller than a window has one window, which extends beyond it.
    """
    if side <= window:
        return [0]
    count = 1 + -(-(side - window) // max(1, int(window * (1 - overlap))))
    return [round(number * (side - window) / (count - 1)) for number in range(count)]


def _gaussian(window: Sequence[int]) -> np.ndarray:
    """Return the weight of each voxel of a window: (x, y, z) float32, 1 in the centre."""
    x, y, z = (
        np.exp(-0.5 * ((np.arange(side) - (side - 1) / 2) / (SIGMA * side)) ** 2) for side in window
    )
    weights = (x[:, None, None] * y[:, None] * z).astype(np.float32)
    return weights / weights.max()
