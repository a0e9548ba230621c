"""What tasks that train on slides have in common.

Such a task inherits from two classes: from `ClassTask` here, or `OutcomeTask` of the task
`slide_outcome`, which say what is learned, and from one that says what the network sees of a slide.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
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
    """A task that trains on slides; see `TrainingTask`.

    Attributes:
        activation: of the network's outputs.
    """

    samples: ClassVar[str] = "slides"
    activation: ClassVar[str]

    @abstractmethod
    def targets(self, reader: Any) -> np.ndarray:
        """Return the target of each slide, (slides, …)."""

    @abstractmethod
    def outputs(self, reader: Any) -> int:
        """Return the number of the network's outputs."""

    def sampling(self, reader: Any, settings: TrainSettings) -> Sampling:
        """Return what the order of the slides depends on."""
        caps = _caps(reader, settings)
        return Sampling(
            counts=reader.counts,
            seed=settings.seed,
            window=window_size(settings.shuffle_mb, reader.bytes, len(reader.counts)),
            views=() if settings.views == "random" else tuple(map(VIEWS.index, settings.views)),
            shares=caps.shares((), settings.seed) if caps else None,
        )

    def metadata(self, reader: Any) -> Mapping[str, Any]:
        """Return the scale of the slides."""
        return {"mpp": reader.mpp}


class ClassTask(SlideTask):
    """A task that classifies slides."""

    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    activation: ClassVar[str] = "softmax"

    def __init__(self, *sections: Any) -> None:
        super().__init__(*sections)
        self._sums = ClassificationSums(TrainSettings())

    def reader(self, manifest: Path, split: str, cache_gb: float = CACHE_GB) -> SlideReader:
        """Open the shards of a split."""
        return SlideReader(manifest, split, cache_gb)

    def targets(self, reader: SlideReader) -> np.ndarray:
        """Return the class of each slide, (slides,) int32."""
        return reader.classes_at(np.arange(len(reader))).astype(np.int32)

    def outputs(self, reader: SlideReader) -> int:
        """Return the number of classes."""
        return len(reader.classes)

    def sampling(self, reader: SlideReader, settings: TrainSettings) -> Sampling:
        """Return what the order of the slides depends on, also the balance of the classes."""
        caps = _caps(reader, settings)
        boost = repetitions(settings, reader.classes, class_counts(caps, reader.counts))
        return replace(
            super().sampling(reader, settings),
            boost=boost,
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
        """Return the classes in the order of the scores, and what else the model has."""
        return {"classes": reader.classes, **super().metadata(reader)}


def _caps(reader: SlideReader, settings: TrainSettings) -> Caps | None:
    if settings.slides_per_patient is None:
        return None
    slides = np.arange(len(reader))
    labels = reader.classes_at(slides)
    return Caps(slides, reader.patients(), labels, None, settings.slides_per_patient)
