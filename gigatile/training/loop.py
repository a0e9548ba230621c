"""The training loop: every task and every number of ranks goes through `train`."""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import keras
import numpy as np

from gigatile import software
from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_json, write_whole
from gigatile.records.shards import ShardReader
from gigatile.settings import TileSettings, TrainSettings
from gigatile.tables import write_table
from gigatile.training.batches import Batch, batches
from gigatile.training.classification import Classification
from gigatile.training.models import build_model
from gigatile.training.order import VIEWS, Epoch, Sampling
from gigatile.training.ranks import Ranks
from gigatile.training.resuming import Checkpoints, Position, key_of

HISTORY = ("epoch", "loss", "accuracy", "valid_loss", "valid_accuracy")
# Seconds between two lines of progress within an epoch.
TELL_EVERY = 10.0
# Batches of the validation between two agreements on whether to stop. A training step agrees by the
# way; here it is a message of its own, for which the ranks wait for each other.
AGREE_EVERY = 10


def train(
    manifest: Path,
    settings: TrainSettings,
    tiles: TileSettings,
    checkpoints: Path,
    out: Path,
    ranks: Ranks,
    tell: Callable[[str], None],
) -> None:
    """Train a tile classifier on all ranks; rank 0 writes the model.

    A training that was killed or stopped goes on after the last step that was saved, with the
    samples in the order that they would have had.

    Args:
        manifest: the shards' manifest; must have the splits train and valid.
        settings, tiles: the settings, written beside the model.
        checkpoints: folder of its own for checkpoints; gone when the model is written.
        out: folder for model.keras, history.tsv, settings.json and versions.json.
        ranks: the processes that train together.
        tell: takes lines of progress; called on rank 0 alone.

    Raises:
        UserError: the input is missing or damaged, or does not fit the settings.
        StartAgain: a signal came; the training is saved.
    """
    readers = {split: ShardReader(manifest, split) for split in ("train", "valid")}
    classes = readers["train"].classes
    sampling = _sampling(readers["train"], settings)

    def shown_in(epoch: int) -> Epoch:
        return Epoch(sampling, epoch, readers["train"].classes_of)

    model = build_model(settings, _tile_size(readers["train"]), len(classes), ranks.writes)
    task = Classification(model, settings, ranks)
    key = key_of(manifest, settings, tiles, task)
    saved = Checkpoints(checkpoints, key, task, ranks, settings, shown_in, tell)
    valid_sampling = Sampling(readers["valid"].counts, settings.seed, sampling.window, views=(0,))
    valid_epoch = Epoch(valid_sampling, 0, readers["valid"].classes_of)
    mine = settings.batch_size, ranks.rank, ranks.size, ranks.threads
    at = saved.restore()
    saved.grant(ranks.sum(saved.wishes(), "wishes"), at)
    if ranks.writes:
        tell(
            f"{settings.model}: {model.count_params():,} parameters, {len(readers['train'])} tiles "
            f"of {len(classes)} classes, {shown_in(at.epoch).steps(settings.batch_size)} steps of "
            f"{settings.batch_size} tiles per epoch "
            f"on {ranks.size} rank(s), {ranks.threads} core(s) each"
        )

    for epoch in range(at.epoch, settings.epochs):
        shown = shown_in(epoch)
        steps = shown.steps(settings.batch_size)
        tell_step = _progress(at, settings, steps, ranks, tell)
        for batch in batches(readers["train"], shown, *mine, first_step=at.step):
            loss, right, agreed = task.step(
                batch.images, batch.labels, batch.weights, np.float32(batch.total), saved.wishes()
            )
            at.sums += float(loss), float(right), float(batch.weights.sum())
            at.step, at.done = at.step + 1, at.done + 1
            ranks.alive(f"in epoch {epoch + 1}, step {at.step} of {steps}")
            tell_step(at)
            saved.grant(agreed, at)
        loss, accuracy = _means(at.sums, ranks)
        ranks.average(task.statistics, "statistics")

        with task.averaged():
            valid = batches(readers["valid"], valid_epoch, *mine)
            valid_sums, agreed = _validate(valid, task, epoch, ranks, saved)
        # A validation that was broken off begins anew, after the last step of its epoch.
        saved.grant(agreed, at)
        valid_loss, valid_accuracy = _means(valid_sums, ranks)
        if not math.isfinite(loss):
            raise UserError(
                f"the loss of epoch {epoch + 1} is {loss}; lower train.learning_rate "
                f"(now {settings.learning_rate:g})"
            )
        row = [epoch + 1, loss, accuracy, valid_loss, valid_accuracy]
        at = Position(epoch=epoch + 1, done=at.done, history=[*at.history, row])
        saved.save(at)
        if ranks.writes:
            tell(
                f"epoch {epoch + 1}/{settings.epochs}: loss {loss:.4f}, accuracy {accuracy:.3f}; "
                f"valid loss {valid_loss:.4f}, accuracy {valid_accuracy:.3f}"
            )

    ranks.wait_no_more()
    if ranks.writes:
        with task.averaged():
            _write(out, model, at.history, classes, settings, tiles, manifest)
        shutil.rmtree(checkpoints, ignore_errors=True)


def _validate(
    shown: Iterator[Batch], task: Classification, epoch: int, ranks: Ranks, saved: Checkpoints
) -> tuple[np.ndarray, np.ndarray]:
    """Score batches; return this rank's sums and what all agreed on, broken off if that is to stop.

    The sums are as those of a `Position`.
    """
    sums, agreed = np.zeros(3), saved.wishes()
    for number, batch in enumerate(shown):
        if number % AGREE_EVERY == 0:
            agreed = ranks.sum(saved.wishes(), "wishes")
            if agreed[1:].any():
                break
        loss, right = task.score(batch.images, batch.labels, batch.weights)
        sums += float(loss), float(right), float(batch.weights.sum())
        ranks.alive(f"in the validation of epoch {epoch + 1}, batch {number + 1}")
    return sums, agreed


def _means(sums: np.ndarray, ranks: Ranks) -> tuple[float, float]:
    """Return the loss and the accuracy per sample over all ranks, of the sums of each."""
    loss, right, samples = ranks.sum(sums, "sums")
    return float(loss / samples), float(right / samples)


def _sampling(reader: ShardReader, settings: TrainSettings) -> Sampling:
    """Return what decides the order of the training's samples."""
    unknown = sorted(set(settings.boost) - set(reader.classes))
    if unknown:
        raise UserError(
            f"train.boost: no such label: {', '.join(unknown)}; the cohort has "
            f"{', '.join(reader.classes)}"
        )
    weights = [settings.boost.get(label, 1.0) for label in reader.classes]
    if not any(n * weight for n, weight in zip(reader.counts.sum(axis=0), weights, strict=True)):
        raise UserError("train.boost: leaves no tile to train on")
    mean_bytes = max(1.0, reader.bytes / len(reader.counts))
    return Sampling(
        counts=reader.counts,
        seed=settings.seed,
        window=max(1, int(settings.shuffle_mb * 1e6 / mean_bytes)),
        # From the text of the number, so that 0.1 is a tenth.
        boost=tuple(Fraction(str(weight)) for weight in weights) if settings.boost else (),
        views=() if settings.views == "random" else tuple(map(VIEWS.index, settings.views)),
    )


def _tile_size(reader: ShardReader) -> int:
    return reader[0].pixels().shape[0]


def _progress(
    begin: Position, settings: TrainSettings, steps: int, ranks: Ranks, tell: Callable[[str], None]
) -> Callable[[Position], None]:
    """Return what tells, every few seconds, how far an epoch is; on rank 0 alone."""
    first = begin.step
    begun = told = time.monotonic()

    def tell_step(at: Position) -> None:
        nonlocal told
        now = time.monotonic()
        if ranks.writes and now - told >= TELL_EVERY:
            told = now
            rate = (at.step - first) * settings.batch_size / (now - begun)
            left = (steps - at.step) * settings.batch_size / rate
            loss = at.sums[0] / max(at.sums[2], 1)
            tell(
                f"epoch {at.epoch + 1}/{settings.epochs}, step {at.step}/{steps}: loss {loss:.4f}, "
                f"{rate:.0f} tiles/s, {left:.0f} s left in this epoch"
            )

    return tell_step


def _write(
    out: Path,
    model: keras.Model,
    history: list[list[float]],
    classes: list[str],
    settings: TrainSettings,
    tiles: TileSettings,
    manifest: Path,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    rows = [[epoch, *(f"{value:.6f}" for value in values)] for epoch, *values in history]
    write_table(out / "history.tsv", HISTORY, rows)
    made = settings.model_dump(exclude=set(settings.EXECUTION))
    described = {
        "classes": classes,
        "tiles": tiles.model_dump(),
        "train": {"ranks": settings.ranks, **made},
        "data": read_json(manifest)["splits"],
        "inputs": {f"shards/{manifest.name}": sha256_of(manifest)},
    }
    write_json(out / "settings.json", described)
    write_json(out / "versions.json", software.versions())
    with write_whole(out / "model.keras") as temporary:
        model.save(temporary)
