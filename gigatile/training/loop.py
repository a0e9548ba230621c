"""The training loop: every task and every number of ranks goes through `train`."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from gigatile import software
from gigatile.errors import UserError
from gigatile.files import sha256_of, write_json
from gigatile.records.manifest import read_manifest
from gigatile.records.shards import ShardReader
from gigatile.settings.train import TrainSettings
from gigatile.training.batches import Batch, Source, batches
from gigatile.training.learner import Learner
from gigatile.training.models import save_model
from gigatile.training.order import Epoch
from gigatile.training.ranks import Ranks
from gigatile.training.resuming import Checkpoints, Position, key_of
from gigatile.training.segments import Segment
from gigatile.training.task import Task
from gigatile.training.watching import Account, Shown

# Batches from which a model's batch-normalisation statistics are gathered when it is saved.
STATISTICS_BATCHES = 100


def train(
    manifest: Path,
    settings: TrainSettings,
    task: Task,
    checkpoints: Path,
    out: Path,
    ranks: Ranks,
    tell: Callable[[str], None],
    events: Path | None = None,
    code: str = "",
) -> None:
    """Train a model up to `settings.epochs` on all ranks; rank 0 writes the segment.

    It goes on from the segments of the same training in `out`, and where it was killed or stopped,
    after the last step that was saved, with the samples in the order that they would have had.

    Args:
        manifest: the shards' manifest; must have the split train.
        settings: how, written beside the model.
        task: what is learnt.
        checkpoints: folder of its own for checkpoints; gone when the segment is written.
        out: folder of all segments.
        ranks: the processes that train together.
        tell: takes lines of progress; called on rank 0 alone.
        events: folder for files of TensorBoard; None: none are written.
        code: names the code; what another one has left is not gone on from.

    Raises:
        UserError: the input is missing or damaged, or does not fit the settings.
        StartAgain: a signal came; the training is saved.
    """
    reader = ShardReader(manifest, "train")
    sampling = task.sampling(reader, settings)

    def shown_in(epoch: int) -> Epoch:
        return Epoch(sampling, epoch, reader.classes_of)

    def steps_in(epoch: int) -> int:
        steps = shown_in(epoch).steps(settings.batch_size)
        return min(steps, settings.limit_batches or steps)

    networks = task.networks(reader, settings, ranks.writes)
    learner = Learner(networks.trained, task.sums, settings, ranks)
    segment = Segment(out, settings.epochs)
    key = key_of(manifest, settings, task.settings(), learner, code)
    saved = Checkpoints(checkpoints, segment, key, learner, ranks, settings, steps_in, tell)
    at = saved.restore()
    saved.grant(ranks.sum(saved.wishes(), "wishes"), at)
    if ranks.writes:
        tell(
            f"{settings.model}: {networks.model.count_params():,} parameters, "
            f"{task.told(reader)}, {steps_in(at.epoch)} steps of {settings.batch_size} "
            f"{task.samples} per epoch on {ranks.size} rank(s), {ranks.threads} core(s) each"
        )

    source = task.source(reader)
    show = Shown(settings, task.samples, task.measure, tell, events) if ranks.writes else None
    begun = at.done
    for epoch in range(at.epoch, settings.epochs):
        steps, account = steps_in(epoch), Account()
        if not steps:
            raise UserError(f"train.boost: leaves no tile in epoch {epoch + 1}; boost some by more")
        if show:
            show.begin(at, steps)
        for batch in batches(
            source,
            shown_in(epoch),
            settings.batch_size,
            ranks.rank,
            ranks.size,
            ranks.threads,
            range(at.step, steps),
        ):
            account.spend("input")
            images = tf.convert_to_tensor(batch.images)
            account.spend("copy")
            loss, measured, agreed, exchange = learner.step(
                images, batch.labels, batch.weights, np.float32(batch.total), saved.wishes()
            )
            at.sums += float(loss), float(measured), float(batch.weights.sum())
            account.spend("model")
            account.end(float(exchange), batch.read_seconds, batch.decode_seconds)
            at.step, at.done = at.step + 1, at.done + 1
            if at.done == begun + 1:
                account.forget()  # in its first step the graph is made
            ranks.report_progress(f"in epoch {epoch + 1}, step {at.step} of {steps}")
            if show:
                show.step(at, account)
            saved.grant(agreed, at)
            account.begin()
        total, measured, samples = ranks.sum(at.sums, "sums")
        loss, measure = float(total / samples), float(measured / samples)
        if not math.isfinite(loss):
            raise UserError(
                f"the loss of epoch {epoch + 1} is {loss}; lower train.learning_rate "
                f"(now {settings.learning_rate:g})"
            )
        row = [epoch + 1, loss, measure]
        at = Position(epoch=epoch + 1, done=at.done, history=[*at.history, row])
        saved.save(at)
        spent = ranks.mean(account.per_step(), "spent")
        if show:
            show.epoch(at, spent)

    saved.end(at)
    # Upright, as the model is validated and used.
    upright = Epoch(replace(sampling, views=(0,)), settings.epochs - 1, reader.classes_of)
    with learner.averaged(_first_batches(source, upright, settings, ranks)):
        ranks.wait_no_more()
        if ranks.writes:
            save_model(networks.model, segment.model)
    if ranks.writes:
        # Last of all: who finds it finds all.
        described = {**task.described(reader), **task.settings()}
        described |= _describe(settings, task, manifest, at)
        write_json(segment.described, described | {"sha256": sha256_of(segment.model)})
    saved.close()


def _first_batches(
    source: Source, epoch: Epoch, settings: TrainSettings, ranks: Ranks
) -> Iterator[Batch]:
    """Yield a rank's part of the batches that statistics are gathered from."""
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
        ranks.report_progress("while statistics were gathered")


def _describe(
    settings: TrainSettings, task: Task, manifest: Path, at: Position
) -> dict[str, object]:
    made = settings.model_dump(exclude=set(settings.EXECUTION))
    return {
        "train": {"ranks": settings.ranks, "epochs": settings.epochs, **made},
        "data": read_manifest(manifest).to_json()["splits"],
        "inputs": {f"shards/{manifest.name}": sha256_of(manifest)},
        "versions": software.versions(),
        "steps": at.done,
        "measure": task.measure,
        "history": at.history,
    }
