"""Training of tile classifiers: cross-entropy of a softmax over the classes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from gigatile.models.classifier import build_classifier
from gigatile.models.networks import Networks
from gigatile.records.shards import ShardReader
from gigatile.settings.augmentation import AugmentationSettings
from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.settings.view_names import VIEWS
from gigatile.tasks.tile_classification.samples import Tiles
from gigatile.training.augmentation import Augmentation
from gigatile.training.caps import Caps, class_counts
from gigatile.training.class_balance import class_weights, repetitions
from gigatile.training.losses import ClassificationSums
from gigatile.training.mixup import MixedLabels, mix
from gigatile.training.sample_order import Sampling, window_size
from gigatile.training.task import TrainingTask


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Return the task for its settings, as `Task.training` returns them."""
    augmentation = settings.get("augmentation", {})
    return TileClassification(
        check_section(TileSettings, settings["tiles"], "tiles"),
        check_section(AugmentationSettings, augmentation, "augmentation"),
    )


class TileClassification(TrainingTask):
    """Tiles of one class each; see `TrainingTask`."""

    name, samples, metrics = "tile_classification", "tiles", ("accuracy",)

    def __init__(
        self, tiles: TileSettings, augmentation: AugmentationSettings | None = None
    ) -> None:
        self._tiles, self._augmentation = tiles, augmentation or AugmentationSettings()
        self._sums = ClassificationSums(TrainSettings())

    def source(self, reader: ShardReader, augmented: bool = True) -> Tiles:
        """Return the reader of tiles."""
        if not augmented:
            return Tiles(reader)
        return Tiles(reader, Augmentation(self._augmentation), self._augmentation.mixup)

    def sampling(self, reader: ShardReader, settings: TrainSettings) -> Sampling:
        """Return what the order of the tiles depends on."""
        caps = _caps(reader, settings)
        boost = repetitions(settings, reader.classes, class_counts(caps, reader.counts))
        return Sampling(
            counts=reader.counts,
            seed=settings.seed,
            window=window_size(settings.shuffle_mb, reader.bytes, len(reader.counts)),
            boost=boost,
            views=() if settings.views == "random" else tuple(map(VIEWS.index, settings.views)),
            shares=caps.shares(boost, settings.seed) if caps else None,
        )

    def configure(self, reader: ShardReader, settings: TrainSettings) -> None:
        """Take loss and class weights."""
        counts = class_counts(_caps(reader, settings), reader.counts)
        self._sums = ClassificationSums(settings, class_weights(settings, reader.classes, counts))

    def networks(self, reader: ShardReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Build a classifier for tiles of the size of the first tile."""
        size = reader[0].pixels().shape[0]
        return build_classifier(settings, size, len(reader.classes), pretrained)

    def mixed(self, inputs: tf.Tensor, targets: Any, weights: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Return the tiles, mixed if the settings say so."""
        return mix(inputs, targets, weights) if self._augmentation.mixup else (inputs, targets)

    def sums(
        self, outputs: tf.Tensor, targets: tf.Tensor | MixedLabels, weights: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return the sums of loss and accuracy; see `ClassificationSums`.

        Of mixed tiles, they are the weighted means for both labels.
        """
        if not isinstance(targets, MixedLabels):
            return self._sums(outputs, targets, weights)
        own = self._sums(outputs, targets.labels, weights * targets.shares)
        other = self._sums(outputs, targets.others, weights * (1 - targets.shares))
        return {name: own[name] + other[name] for name in own}

    def describe_data(self, reader: ShardReader) -> str:
        """Return the numbers of tiles and classes."""
        return f"{len(reader)} tiles of {len(reader.classes)} classes"

    def settings(self) -> Mapping[str, Any]:
        """Return how the tiles were extracted, and how training changes them."""
        return {
            "tiles": self._tiles.model_dump(),
            "augmentation": self._augmentation.model_dump(),
        }

    def metadata(self, reader: ShardReader) -> Mapping[str, Any]:
        """Return the classes in the order of the scores."""
        return {"classes": reader.classes}


def _caps(reader: ShardReader, settings: TrainSettings) -> Caps | None:
    most = settings.tiles_per_slide, settings.tiles_per_patient
    if most == (None, None):
        return None
    labels = reader.classes_at(np.arange(len(reader)))
    return Caps(*reader.members(), labels, *most)
