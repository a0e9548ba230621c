"""What the tasks that train on outcomes share: squared errors, or proportional hazards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from gigatile.evaluation.outcome_scale import OutcomeScale
from gigatile.records.shards import CACHE_GB
from gigatile.settings.train import TrainSettings
from gigatile.tasks.slide_outcome.targets import OutcomeReader
from gigatile.training.slide_task import SlideTask


class OutcomeTask(SlideTask):
    """A task that predicts a number, or the time to an event, of slides; see `TrainingTask`."""

    metrics: ClassVar[tuple[str, ...]] = ("residual",)
    activation: ClassVar[str] = "linear"

    _scale: OutcomeScale | None = None

    def reader(self, manifest: Path, split: str, cache_gb: float = CACHE_GB) -> OutcomeReader:
        """Open the shards of a split."""
        return OutcomeReader(manifest, split, cache_gb)

    def targets(self, reader: OutcomeReader) -> np.ndarray:
        """Return the targets, (slides, 2) float32; see `OutcomeScale.targets`."""
        return OutcomeScale.of(reader.outcomes).targets(reader.outcomes)

    def outputs(self, reader: OutcomeReader) -> int:
        """Return 1."""
        return 1

    def configure(self, reader: OutcomeReader, settings: TrainSettings) -> None:
        """Take the scale of the outcomes."""
        self._scale = OutcomeScale.of(reader.outcomes)

    def sums(
        self, outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return the weighted sums of losses and absolute residuals; see `losses_of`."""
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

    def metadata(self, reader: Any) -> Mapping[str, Any]:
        """Return the scale of the outcomes, and what else the model has."""
        return {"outcome": OutcomeScale.of(reader.outcomes).to_json(), **super().metadata(reader)}


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
