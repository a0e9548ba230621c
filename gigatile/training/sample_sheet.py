"""A picture of training samples, before and after augmentation."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from keras import tree

from gigatile.errors import UserError
from gigatile.settings.train import TrainSettings
from gigatile.training.batches import ArraySpec
from gigatile.training.sample_order import Epoch, Samples
from gigatile.training.task import TrainingTask

# Samples in a row of the picture, each twice, and pixels between them.
COLUMNS, GAP = 4, 4
# The slice of a volume is shown from the first of these percentiles, black, to the second, white.
BLACK, WHITE = 1, 99


def draw_samples(
    task: TrainingTask, manifest: Path, settings: TrainSettings, count: int, epoch: int
) -> np.ndarray:
    """Return a picture of samples that are spread evenly over an epoch: (height, width, 3) uint8.

    Each is shown as it is stored, and on its right as the model sees it in this epoch. Of a patch,
    the middle slice of the first channel is shown.

    Args:
        task: of the training.
        manifest: of the shards.
        settings: the section `train`.
        count: how many samples at most.
        epoch: index of the epoch, from 0.

    Raises:
        UserError: the shards are missing or damaged, or the samples are not pictures.
    """
    with contextlib.closing(task.reader(manifest, "train", settings.cache_gb)) as reader:
        order = Epoch(task.sampling(reader, settings), epoch, reader.classes_of)
        if not len(order):
            raise UserError(f"epoch {epoch + 1} has no samples")
        positions = np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).astype(int))
        pairs = []
        for position in positions.tolist():
            samples = order.samples(position, position + 1)
            stored = Samples(samples.records, np.zeros_like(samples.views), samples.seeds)
            before = _picture(task, reader, stored, augmented=False)
            after = _trained(task, reader, order, position)
            pairs.append(_grey_levels(before, after))
    return _mosaic(pairs)


def _trained(task: TrainingTask, reader: Any, order: Epoch, position: int) -> np.ndarray:
    """Return the picture of a sample of an epoch as the model sees it."""
    first = position - position % 2  # mixup takes its neighbour
    inputs, targets = _filled(task, reader, order.samples(first, first + 2), augmented=True)
    weights = (first + np.arange(2) < len(order)).astype(np.float32)
    mixed, _ = task.mixed(inputs, targets, weights)
    return _shown(np.asarray(mixed)[position % 2])


def _picture(task: TrainingTask, reader: Any, samples: Samples, augmented: bool) -> np.ndarray:
    """Return a tile (y, x, 3) uint8, or the middle slice of the first channel of a patch (y, x)."""
    inputs, _ = _filled(task, reader, samples, augmented)
    return _shown(inputs[0])


def _filled(task: TrainingTask, reader: Any, samples: Samples, augmented: bool) -> tuple[Any, Any]:
    """Return inputs and targets of samples."""
    source = task.source(reader, augmented)
    specs = source.specs(samples)
    if not isinstance(specs[0], ArraySpec) or len(specs[0].shape) not in (3, 4):
        raise UserError(f"gigatile samples shows tiles and patches of volumes, not {task.samples}")
    inputs, targets = tree.map_structure(
        lambda spec: np.zeros((len(samples.records), *spec.shape), spec.dtype), specs
    )
    source.fill(samples, inputs, targets)
    return inputs, targets


def _shown(sample: np.ndarray) -> np.ndarray:
    if sample.ndim == 3:
        return np.round(sample).astype(np.uint8)
    # Anterior at the top.
    return sample[:, :, sample.shape[2] // 2, 0].astype(np.float32).T[::-1]


def _grey_levels(before: np.ndarray, after: np.ndarray) -> list[np.ndarray]:
    """Return two pictures as (height, width, 3) uint8; slices with the same grey levels."""
    if before.ndim == 3:
        return [before, after]
    low, high = np.percentile(before, (BLACK, WHITE))
    levels = (255 * (values - low) / max(high - low, 1e-6) for values in (before, after))
    grey = (np.clip(values, 0, 255).astype(np.uint8) for values in levels)
    return [np.repeat(values[..., None], 3, axis=2) for values in grey]


def _mosaic(pairs: list[list[np.ndarray]]) -> np.ndarray:
    """Return pairs of equal pictures in rows, on white."""
    height, width, _ = pairs[0][0].shape
    columns = min(COLUMNS, len(pairs))
    rows = -(-len(pairs) // columns)
    of_pair = 2 * width + 3 * GAP
    picture = np.full((rows * (height + 2 * GAP), columns * of_pair, 3), 255, np.uint8)
    for number, pair in enumerate(pairs):
        row, column = divmod(number, columns)
        top = row * (height + 2 * GAP) + GAP
        for side, image in enumerate(pair):
            left = column * of_pair + GAP + side * (width + GAP)
            picture[top : top + height, left : left + width] = image
    return picture
