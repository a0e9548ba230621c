"""Training on the embeddings of slides: cross-entropy of a softmax over the classes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from gigatile.embeddings.stored import embeddings_in, encoder_in
from gigatile.models.bag_classifier import build_bag_classifier
from gigatile.models.networks import Networks
from gigatile.records.shards import CACHE_GB
from gigatile.records.slides import SlideReader
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.slide_embedding.samples import EmbeddedSlides
from gigatile.training.caps import Caps, class_counts
from gigatile.training.class_balance import class_weights, repetitions
from gigatile.training.losses import ClassificationSums
from gigatile.training.sample_order import Sampling, window_size
from gigatile.training.task import TrainingTask


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Return the task for its settings, as `Task.training` returns them."""
    return SlideEmbedding(
        check_section(TileSettings, settings["tiles"], "tiles"),
        check_section(EncoderSettings, settings["encoder"], "encoder"),
    )


class SlideEmbedding(TrainingTask):
    """Slides of one class each, as embeddings of their tiles; see `TrainingTask`."""

    name, samples, metrics = "slide_embedding", "slides", ("accuracy",)

    def __init__(self, tiles: TileSettings, encoder: EncoderSettings) -> None:
        self._tiles, self._encoder = tiles, encoder
        self._sums = ClassificationSums(TrainSettings())
        self._most: int | None = None

    def reader(self, manifest: Path, split: str, cache_gb: float = CACHE_GB) -> SlideReader:
        """Open the shards of a split."""
        return SlideReader(manifest, split, cache_gb)

    def source(self, reader: SlideReader, augmented: bool = True) -> EmbeddedSlides:
        """Return the reader of slides."""
        return EmbeddedSlides(reader, self._most if augmented else None)

    def sampling(self, reader: SlideReader, settings: TrainSettings) -> Sampling:
        """Return what the order of the slides depends on."""
        self._most = settings.tiles_per_slide
        caps = _caps(reader, settings)
        boost = repetitions(settings, reader.classes, class_counts(caps, reader.counts))
        return Sampling(
            counts=reader.counts,
            seed=settings.seed,
            window=window_size(settings.shuffle_mb, reader.bytes, len(reader.counts)),
            boost=boost,
            shares=caps.shares(boost, settings.seed) if caps else None,
        )

    def configure(self, reader: SlideReader, settings: TrainSettings) -> None:
        """Take loss and class weights."""
        self._most = settings.tiles_per_slide
        counts = class_counts(_caps(reader, settings), reader.counts)
        self._sums = ClassificationSums(settings, class_weights(settings, reader.classes, counts))

    def networks(self, reader: SlideReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Build a classifier of slides."""
        (first,) = embeddings_in(reader, range(1))
        return build_bag_classifier(settings, len(first), len(reader.classes), pretrained)

    def sums(
        self, outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return the sums of loss and accuracy; see `ClassificationSums`."""
        return self._sums(outputs, targets, weights)

    def describe_data(self, reader: SlideReader) -> str:
        """Return the numbers of slides and classes."""
        return f"{len(reader)} slides of {len(reader.classes)} classes"

    def settings(self) -> Mapping[str, Any]:
        """Return how the tiles were extracted and embedded."""
        encoder = self._encoder.model_dump(exclude=set(EncoderSettings.EXECUTION))
        return {"tiles": self._tiles.model_dump(), "encoder": encoder}

    def metadata(self, reader: SlideReader) -> Mapping[str, Any]:
        """Return the classes in the order of the scores, the encoder, and the slides' scale."""
        # The tiles of a slide are embedded together, so the first one will do.
        firsts = (reader.records_of(number)[0] for number in range(len(reader)))
        return {
            "classes": reader.classes,
            "encoder_id": encoder_in(reader, firsts).hex(),
            "mpp": reader.mpp,
        }


def _caps(reader: SlideReader, settings: TrainSettings) -> Caps | None:
    if settings.slides_per_patient is None:
        return None
    slides = np.arange(len(reader))
    labels = reader.classes_at(slides)
    return Caps(slides, reader.patients(), labels, None, settings.slides_per_patient)
