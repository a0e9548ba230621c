"""Validation within an epoch, to watch a training. The choice of the model does not use it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from gigatile.settings.train import TrainSettings
from gigatile.training.batches import batches
from gigatile.training.learner import Learner
from gigatile.training.ranks import Ranks
from gigatile.training.sample_order import Epoch
from gigatile.training.task import TrainingTask

# The most batches that are validated; the same each time.
MAX_BATCHES = 100


class StepValidation:
    """Validates a network that is being trained on batches of the validation split.

    The samples are not augmented, and each counts once. The loss is that of the training, so that
    both can be compared.
    """

    def __init__(
        self,
        manifest: Path,
        settings: TrainSettings,
        task: TrainingTask,
        learner: Learner,
        ranks: Ranks,
    ) -> None:
        """Open the validation split.

        Args:
            manifest: of the shards; must have the split valid.
            settings: of the training.
            task: of the training.
            learner: has the network.
            ranks: the processes that train together; each validates its slices of the batches.

        Raises:
            UserError: there is no validation split, or it is damaged.
        """
        self._settings, self._task, self._learner, self._ranks = settings, task, learner, ranks
        reader: Any = task.reader(manifest, "valid", settings.cache_gb)
        each_once: dict[str, Any] = {
            "boost": {},
            "balance": "off",
            "tiles_per_slide": None,
            "tiles_per_patient": None,
        }
        sampling = task.sampling(reader, settings.model_copy(update=each_once))
        self._epoch = Epoch(replace(sampling, views=(0,)), 0, reader.classes_of)
        self._source = task.source(reader, augmented=False)

    def is_due(self, steps: int) -> bool:
        """Return whether to validate after so many steps since the start of the training."""
        every = self._settings.validate_steps
        return every is not None and steps % every == 0

    def run(self, is_stopped: Callable[[], bool]) -> tuple[dict[str, float], int] | None:
        """Return figures of the present weights; equal on all ranks, which call it together.

        Args:
            is_stopped: asked after each batch, on all ranks; the answers must be equal.

        Returns:
            The means of `loss` and of the task's metrics, and the number of samples; None if it
            was stopped.
        """
        sums = np.zeros(2 + len(self._task.metrics))
        for batch in self._batches():
            inputs = tree.map_structure(tf.convert_to_tensor, batch.inputs)
            of_batch = self._learner.evaluate(inputs, batch.targets, batch.weights)
            sums += [*of_batch, batch.weights.sum()]
            self._ranks.report_progress("validating")
            if is_stopped():
                return None
        *totals, count = self._ranks.sum(sums, "validation")
        names = ("loss", *self._task.metrics)
        means = {name: float(sum_ / count) for name, sum_ in zip(names, totals, strict=True)}
        return means, round(count)

    def _batches(self) -> Iterator[Any]:
        size = self._settings.batch_size
        steps = min(self._epoch.steps(size), self._settings.limit_batches or MAX_BATCHES)
        return batches(
            self._source,
            self._epoch,
            size,
            self._ranks.rank,
            self._ranks.size,
            self._ranks.threads,
            range(min(steps, MAX_BATCHES)),
        )
