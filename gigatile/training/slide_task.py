"""What tasks that train on slides, with a class each, have in common."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from gigatile.records.shards import CACHE_GB
from gigatile.records.slides import SlideReader
from gigatile.settings.train import TrainSettings
from gigatile.settings.view_names import VIEWS
from gigatile.training.caps import Caps, class_counts
from gigatile.training.class_balance import class_weights, repetitions
from gigatile.training.losses import ClassificationSums
from gigatile.training.sample_order import Sampling, window_size
from gigatile.training.task import TrainingTask


class SlideTask(TrainingTask):
    """A task whose samples are slides of one class each; see `TrainingTask`."""

    samples: ClassVar[str] = "slides"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    def __init__(self) -> None:
        self._sums = ClassificationSums(TrainSettings())

    def reader(self, manifest: Path, split: str, cache_gb: float = CACHE_GB) -> SlideReader:
        """Open the shards of a split."""
        return SlideReader(manifest, split, cache_gb)

    def sampling(self, reader: SlideReader, settings: TrainSettings) -> Sampling:
        """Return what the order of the slides depends on."""
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

    def configure(self, reader: SlideReader, settings: TrainSettings) -> None:
        """Take loss and class weights."""
        counts = class_counts(_caps(reader, settings), reader.counts)
        self._sums = ClassificationSums(settings, class_weights(settings, reader.classes, counts))

    def sums(
        self, outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return the sums of loss and accuracy; see `ClassificationSums`."""
        return self._sums(outputs, targets, weights)

    def describe_data(self, reader: SlideReader) -> str:
        """Return the numbers of slides and classes."""
        return f"{len(reader)} slides of {len(reader.classes)} classes"

    def metadata(self, reader: SlideReader) -> Mapping[str, Any]:
        """Return the classes in the order of the scores, and the scale of the slides."""
        return {"classes": reader.classes, "mpp": reader.mpp}


def _caps(reader: SlideReader, settings: TrainSettings) -> Caps | None:
    if settings.slides_per_patient is None:
        return None
    slides = np.arange(len(reader))
    labels = reader.classes_at(slides)
    return Caps(slides, reader.patients(), labels, None, settings.slides_per_patient)
