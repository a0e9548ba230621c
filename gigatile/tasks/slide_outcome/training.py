"""Training on outcomes of slides: squared errors, or the likelihood of proportional hazards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf

from gigatile.embeddings.stored import embeddings_in
from gigatile.models.bag_classifier import build_bag_classifier
from gigatile.models.networks import Networks
from gigatile.records.shards import CACHE_GB
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.slide_embedding.training import EmbeddingTask
from gigatile.tasks.slide_outcome.samples import OutcomeSlides
from gigatile.tasks.slide_outcome.targets import OutcomeReader, OutcomeScale
from gigatile.training.sample_order import Sampling, window_size
from gigatile.training.task import TrainingTask


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Return the task for its settings, as `Task.training` returns them."""
    return SlideOutcome(
        check_section(TileSettings, settings["tiles"], "tiles"),
        check_section(EncoderSettings, settings["encoder"], "encoder"),
    )


class SlideOutcome(EmbeddingTask):
    """Numbers or times to events of slides; see `TrainingTask`."""

    name = "slide_outcome"
    samples = "slides"
    metrics: ClassVar[tuple[str, ...]] = ("residual",)

    _scale: OutcomeScale | None = None

    def reader(self, manifest: Path, split: str, cache_gb: float = CACHE_GB) -> OutcomeReader:
        """Open the shards of a split."""
        return OutcomeReader(manifest, split, cache_gb)

    def source(self, reader: OutcomeReader, augmented: bool = True) -> OutcomeSlides:
        """Return the reader of slides."""
        scale = OutcomeScale.of(reader.outcomes)
        return OutcomeSlides(reader, scale, self._most if augmented else None)

    def sampling(self, reader: OutcomeReader, settings: TrainSettings) -> Sampling:
        """Return what the order of the slides depends on; take the number of tiles for `source`."""
        self._most = settings.tiles_per_slide
        window = window_size(settings.shuffle_mb, reader.bytes, len(reader.counts))
        return Sampling(reader.counts, settings.seed, window)

    def configure(self, reader: OutcomeReader, settings: TrainSettings) -> None:
        """Take the scale of the outcomes."""
        self._scale = OutcomeScale.of(reader.outcomes)

    def networks(
        self, reader: OutcomeReader, settings: TrainSettings, pretrained: bool
    ) -> Networks:
        """Build a network with one output."""
        self.check_encoders(reader)
        (first,) = embeddings_in(reader, range(1))
        return build_bag_classifier(settings, len(first), 1, pretrained, "linear")

    def sums(
        self, outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return the weighted sums of the losses, and of the absolute residuals; see `losses`."""
        assert self._scale is not None, "configure is called before"
        losses, residuals = losses_of(self._scale.kind, outputs[:, 0], targets)
        return {
            "loss": tf.reduce_sum(losses * weights),
            "residual": tf.reduce_sum(residuals * weights),
        }

    def describe_data(self, reader: OutcomeReader) -> str:
        """Return the numbers of slides and events."""
        events = sum(outcome.event is True for outcome in reader.outcomes)
        return f"{len(reader)} slides" + (f", {events} of them with an event" if events else "")

    def metadata(self, reader: OutcomeReader) -> Mapping[str, Any]:
        """Return the scale of the outcomes, the encoder, and the slides' scale."""
        return {
            "outcome": OutcomeScale.of(reader.outcomes).to_json(),
            "encoder_id": self.encoder_of(reader),
            "mpp": reader.mpp,
        }


def losses_of(kind: str, outputs: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the loss and the absolute residual of each slide, (n,) each.

    Of a number: the squared and the absolute error, standardised. Of a time: the negative
    log-likelihood without its constant, and the martingale residual.

    Args:
        kind: of the outcomes.
        outputs: (n,) of the network.
        targets: (n, 2); see `OutcomeScale.targets`.
    """
    if kind == "number":
        errors = outputs - targets[:, 0]
        return errors**2, tf.abs(errors)
    expected = targets[:, 0] * tf.exp(tf.minimum(outputs, 30.0))
    return expected - targets[:, 1] * outputs, tf.abs(targets[:, 1] - expected)
