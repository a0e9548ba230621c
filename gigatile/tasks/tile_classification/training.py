"""Training of tile classifiers: cross-entropy of a softmax over the classes."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import tensorflow as tf

from gigatile.errors import UserError
from gigatile.models.classifier import build_classifier
from gigatile.models.networks import Networks
from gigatile.records.shards import ShardReader
from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification.samples import Tiles
from gigatile.training.classification import classification_sums
from gigatile.training.sample_order import VIEWS, Sampling, window_size
from gigatile.training.task import TrainingTask


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Return the task for its settings, as `Task.training` returns them."""
    return TileClassification(check_section(TileSettings, settings["tiles"], "tiles"))


class TileClassification(TrainingTask):
    """Tiles of one class each; see `TrainingTask`."""

    name, samples, metrics = "tile_classification", "tiles", ("accuracy",)

    def __init__(self, tiles: TileSettings) -> None:
        self._tiles = tiles

    def source(self, reader: ShardReader) -> Tiles:
        """Return the reader of tiles."""
        return Tiles(reader)

    def sampling(self, reader: ShardReader, settings: TrainSettings) -> Sampling:
        """Return what the order of the tiles depends on."""
        unknown = sorted(set(settings.boost) - set(reader.classes))
        if unknown:
            raise UserError(
                f"train.boost: no such label: {', '.join(unknown)}; the cohort has "
                f"{', '.join(reader.classes)}"
            )
        weights = [settings.boost.get(label, 1.0) for label in reader.classes]
        counts = reader.counts.sum(axis=0)
        if not any(n * weight for n, weight in zip(counts, weights, strict=True)):
            raise UserError("train.boost: no tile is left to train on")
        return Sampling(
            counts=reader.counts,
            seed=settings.seed,
            window=window_size(settings.shuffle_mb, reader.bytes, len(reader.counts)),
            # From the decimal text, so that 0.1 is exactly a tenth.
            boost=tuple(Fraction(str(weight)) for weight in weights) if settings.boost else (),
            views=() if settings.views == "random" else tuple(map(VIEWS.index, settings.views)),
        )

    def networks(self, reader: ShardReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Build a classifier for tiles of the size of the first tile."""
        size = reader[0].pixels().shape[0]
        return build_classifier(settings, size, len(reader.classes), pretrained)

    def sums(
        self, outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return the sums of cross-entropy and accuracy; see `classification_sums`."""
        return classification_sums(outputs, targets, weights)

    def describe_data(self, reader: ShardReader) -> str:
        """Return the numbers of tiles and classes."""
        return f"{len(reader)} tiles of {len(reader.classes)} classes"

    def settings(self) -> Mapping[str, Any]:
        """Return how the tiles were extracted."""
        return {"tiles": self._tiles.model_dump()}

    def metadata(self, reader: ShardReader) -> Mapping[str, Any]:
        """Return the classes in the order of the scores."""
        return {"classes": reader.classes}
