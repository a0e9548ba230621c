"""A range test of learning rates: the loss of a training with a rising rate.

Smith 2017, https://doi.org/10.1109/WACV.2017.58. The rate rises by the same factor with each step.
Where the loss falls fastest, the rate is large enough; beyond its minimum, it is too large.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree

from gigatile.settings.train import TrainSettings
from gigatile.training.batches import Batch, batches
from gigatile.training.fine_tuning import initial_networks
from gigatile.training.learner import Learner
from gigatile.training.ranks import Ranks
from gigatile.training.sample_order import Epoch
from gigatile.training.task import TrainingTask

# Of the moving mean of the losses, and the multiple of its lowest value at which the test ends.
SMOOTHING, DIVERGED = 0.9, 4.0


@dataclass(frozen=True)
class RateRange:
    """The result of a range test.

    Attributes:
        rates: (n,) float64, the learning rate of each step.
        losses: (n,) float64, the mean loss of the batch of each step, before its update.
    """

    rates: np.ndarray
    losses: np.ndarray

    @property
    def smooth(self) -> np.ndarray:
        """The moving mean of the losses, corrected for its start: (n,) float64."""
        mean, means = 0.0, []
        for number, loss in enumerate(self.losses.tolist(), 1):
            mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
            means.append(mean / (1 - SMOOTHING**number))
        return np.array(means)

    @property
    def lowest(self) -> float:
        """The rate with the lowest smoothed loss."""
        return float(self.rates[self.smooth.argmin()])

    @property
    def fastest(self) -> float:
        """The rate below `lowest` at which the smoothed loss falls most, by factor of the rate."""
        before = self.smooth[: int(self.smooth.argmin()) + 1]
        if len(before) < 3:
            return self.lowest
        return float(self.rates[int(np.gradient(before).argmin())])


def range_test(
    task: TrainingTask,
    manifest: Path,
    settings: TrainSettings,
    ranks: Ranks,
    steps: int,
    ends: tuple[float, float],
    report: Callable[[int, float, float], None],
) -> RateRange:
    """Train from the initial weights with rising learning rates. Nothing is saved.

    The test ends early if the smoothed loss is several times its lowest value, or not finite.

    Args:
        task: of the training.
        manifest: of the shards.
        settings: of the training; its rate and schedule are not used. Frozen layers are trained, as
            after `freeze_epochs`.
        ranks: the processes that train together.
        steps: of the whole range; at least 2.
        ends: first and last learning rate.
        report: takes the step, its rate and its loss.

    Raises:
        UserError: the shards are missing or damaged, or do not fit the settings.
    """
    with contextlib.closing(task.reader(manifest, "train", settings.cache_gb)) as reader:
        return _train(task, reader, settings, ranks, steps, ends, report)


def _train(
    task: TrainingTask,
    reader: Any,
    settings: TrainSettings,
    ranks: Ranks,
    steps: int,
    ends: tuple[float, float],
    report: Callable[[int, float, float], None],
) -> RateRange:
    sampling = task.sampling(reader, settings)
    task.configure(reader, settings)
    networks = initial_networks(task, reader, settings, ranks, lambda line: None)
    learner = Learner(networks.trained, task, settings, ranks, networks.backbone)
    ranks.broadcast_variables(learner.variables, "initial")
    factor = (ends[1] / ends[0]) ** (1 / (steps - 1))
    rates, losses = [], []
    requests = np.zeros(1, np.float32)
    epochs = (Epoch(sampling, number, reader.classes_of) for number in itertools.count())
    for number, batch in enumerate(
        itertools.islice(_batches(task, reader, epochs, settings, ranks), steps)
    ):
        inputs = tree.map_structure(tf.convert_to_tensor, batch.inputs)
        rate = ends[0] * factor**number
        step = learner.step(batch, inputs, requests, rate, settings.backbone_rate)
        total, weights = ranks.sum(np.array([step.sums[0], batch.weights.sum()]), "losses")
        ranks.report_progress(f"in step {number + 1} of {steps}")
        loss = float(total / weights)
        if not math.isfinite(loss):
            break
        rates.append(rate)
        losses.append(loss)
        report(number, rate, loss)
        smooth = RateRange(np.array(rates), np.array(losses)).smooth
        if smooth[-1] > DIVERGED * smooth.min():
            break
    return RateRange(np.array(rates), np.array(losses))


def _batches(
    task: TrainingTask,
    reader: Any,
    epochs: Iterator[Epoch],
    settings: TrainSettings,
    ranks: Ranks,
) -> Iterator[Batch]:
    """Yield this rank's slices of the batches of one epoch after the other."""
    source = task.source(reader)
    share = (0, 1) if task.shares_samples else (ranks.rank, ranks.size)
    for epoch in epochs:
        steps = range(epoch.steps(settings.batch_size))
        yield from batches(source, epoch, settings.batch_size, *share, ranks.threads, steps)
