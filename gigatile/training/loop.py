"""The training loop, for all tasks and any number of ranks."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf
from keras import tree

from gigatile import software
from gigatile.earlier_models import checksum_of_weights
from gigatile.errors import UserError
from gigatile.files import sha256_of, write_json
from gigatile.models.saving import save_model
from gigatile.records.manifest import read_manifest
from gigatile.settings.initial_weights import INITIAL_WEIGHTS
from gigatile.settings.train import TrainSettings
from gigatile.training.batches import Batch, SampleSource, batches
from gigatile.training.fine_tuning import initial_networks
from gigatile.training.learner import Learner
from gigatile.training.monitoring import ProgressReporter, StepTimer
from gigatile.training.ranks import Ranks
from gigatile.training.resuming import Checkpoints, Position, training_key
from gigatile.training.sample_order import Epoch
from gigatile.training.schedules import backbone_factor, learning_rate
from gigatile.training.segments import Segment
from gigatile.training.step_validation import StepValidation
from gigatile.training.task import TrainingTask

# Batches from which the statistics of batch normalisation are computed when the model is saved.
STATISTICS_BATCHES = 100


def train(
    manifest: Path,
    settings: TrainSettings,
    task: TrainingTask,
    checkpoints: Path,
    out: Path,
    ranks: Ranks,
    log: Callable[[str], None],
    events: Path | None = None,
    code: str = "",
) -> None:
    """Train a model up to `settings.epochs` on all ranks. Rank 0 writes the segment.

    Resumes from the latest checkpoint or segment of the same training, after the last saved step,
    with the samples in the order of an uninterrupted training.

    Args:
        manifest: of the shards; must have the split train.
        settings: of the training; written next to the model.
        task: samples, networks and losses.
        checkpoints: folder for checkpoints of this segment only; deleted when it is complete.
        out: folder of all segments.
        ranks: the processes that train together.
        log: takes lines of progress, on rank 0 only.
        events: folder for TensorBoard; None: none.
        code: hash of the code. Checkpoints of other code are not resumed.

    Raises:
        UserError: the input is missing or damaged, or does not fit the settings.
        StartAgain: a signal asked to stop; the state is saved.
    """
    reader = task.reader(manifest, "train", settings.cache_gb)
    sampling = task.sampling(reader, settings)

    def epoch_order(epoch: int) -> Epoch:
        return Epoch(sampling, epoch, reader.classes_of)

    def steps_in(epoch: int) -> int:
        steps = epoch_order(epoch).steps(settings.batch_size)
        return min(steps, settings.limit_batches or steps)

    task.configure(reader, settings)
    networks = initial_networks(task, reader, settings, ranks, log)
    learner = Learner(networks.trained, task, settings, ranks, networks.backbone)
    segment = Segment(out, settings.epochs)
    initial = checksum_of_weights(settings.weights)
    key = training_key(manifest, settings, task.settings(), learner, code, initial)
    saver = Checkpoints(checkpoints, segment, key, learner, ranks, settings, steps_in, log)
    figures = 2 + len(task.metrics)
    position = saver.restore(figures)
    saver.handle_requests(ranks.sum(saver.requests(), "requests"), position)
    if ranks.writes:
        log(
            f"{settings.model}: {networks.model.count_params():,} parameters, "
            f"{task.describe_data(reader)}, {steps_in(position.epoch)} steps of "
            f"{settings.batch_size} {task.samples} per epoch on {ranks.size} rank(s), "
            f"{ranks.threads} core(s) each"
        )

    source = task.source(reader)
    # Statistics are computed from samples as validation and prediction use them: upright, and not
    # augmented.
    unchanged = task.source(reader, augmented=False)

    def statistics(epoch: int) -> Iterator[Batch]:
        upright = Epoch(replace(sampling, views=(0,)), epoch, reader.classes_of)
        return _first_batches(unchanged, upright, settings, ranks)

    validation = None
    if settings.validate_steps:
        validation = StepValidation(manifest, settings, task, learner, ranks)
    share = (0, 1) if task.shares_samples else (ranks.rank, ranks.size)
    reporter = None
    if ranks.writes:
        reporter = ProgressReporter(settings, task.samples, task.metrics, log, events)
    first_step = position.done + 1
    for epoch in range(position.epoch, settings.epochs):
        steps, timer = steps_in(epoch), StepTimer()
        if not steps:
            raise UserError(
                f"train.boost: no tile is left in epoch {epoch + 1}; boost some labels by more"
            )
        if reporter:
            reporter.begin_epoch(position, steps)
        for batch in batches(
            source,
            epoch_order(epoch),
            settings.batch_size,
            *share,
            ranks.threads,
            range(position.step, steps),
        ):
            timer.end_phase("input")
            inputs = tree.map_structure(tf.convert_to_tensor, batch.inputs)
            timer.end_phase("copy")
            progress = epoch + position.step / steps
            rate = learning_rate(settings, progress, position.done)
            factor = backbone_factor(settings, epoch)
            step = learner.step(batch, inputs, saver.requests(), rate, factor)
            if ranks.writes or not task.shares_samples:
                position.sums += [*step.sums, batch.weights.sum()]
            timer.end_phase("model")
            timer.end_step(step.exchange, batch.read_seconds, batch.decode_seconds)
            position.step, position.done = position.step + 1, position.done + 1
            if position.done == first_step:
                timer.reset()  # the first step builds the graph
            ranks.report_progress(f"in epoch {epoch + 1}, step {position.step} of {steps}")
            if reporter:
                shown = {"learning rate": rate, "gradient norm": step.gradient_norm}
                reporter.end_step(position, timer, shown)
            saver.handle_requests(step.agreed, position)
            if validation and validation.is_due(position.done):
                with learner.averaged(statistics(epoch)):
                    validated = validation.run(saver.stop_is_requested)
                if reporter and validated:
                    reporter.report_validation(position, *validated)
            timer.begin()
        *totals, weights = ranks.sum(position.sums, "sums")
        means = [float(total / weights) for total in totals]
        if not math.isfinite(means[0]):
            raise UserError(
                f"the loss of epoch {epoch + 1} is {means[0]}; lower train.learning_rate "
                f"(now {settings.learning_rate:g})"
            )
        history = [*position.history, [epoch + 1, *means]]
        position = Position(np.zeros(figures), epoch=epoch + 1, done=position.done, history=history)
        saver.save(position)
        seconds = ranks.mean(timer.per_step(), "seconds")
        if reporter:
            reporter.end_epoch(position, seconds)

    saver.end(position)
    with learner.averaged(statistics(settings.epochs - 1)):
        ranks.stop_watchdog()
        if ranks.writes:
            save_model(networks.model, segment.model)
    if ranks.writes:
        # Written last: if it exists, the segment is complete.
        described = {"task": task.name, **task.metadata(reader), **task.settings()}
        described |= _describe(settings, task, manifest, initial, position)
        write_json(segment.described, described | {"sha256": sha256_of(segment.model)})
    saver.close()


def _first_batches(
    source: SampleSource, epoch: Epoch, settings: TrainSettings, ranks: Ranks
) -> Iterator[Batch]:
    """Yield this rank's slices of the batches for the statistics of batch normalisation."""
    steps = min(epoch.steps(settings.batch_size), STATISTICS_BATCHES)
    for batch in batches(
        source,
        epoch,
        settings.batch_size,
        ranks.rank,
        ranks.size,
        ranks.threads,
        range(min(steps, settings.limit_batches or steps)),
    ):
        yield batch
        ranks.report_progress("computing the statistics of batch normalisation")


def _describe(
    settings: TrainSettings,
    task: TrainingTask,
    manifest: Path,
    weights: str | None,
    position: Position,
) -> dict[str, object]:
    values = settings.model_dump(exclude=set(settings.EXECUTION))
    inputs = {f"shards/{manifest.name}": sha256_of(manifest)}
    if weights is not None:
        inputs[INITIAL_WEIGHTS] = weights
    return {
        "train": {"ranks": settings.ranks, "epochs": settings.epochs, **values},
        "data": read_manifest(manifest).to_json()["splits"],
        "inputs": inputs,
        "versions": software.versions(),
        "steps": position.done,
        "metrics": list(task.metrics),
        "history": position.history,
    }
