"""The training loop: every task and every number of ranks goes through `train`."""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gigatile import software
from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_json, write_whole
from gigatile.records.shards import ShardReader
from gigatile.settings import TileSettings, TrainSettings
from gigatile.tables import write_table
from gigatile.training.batches import batches
from gigatile.training.checkpoints import newest_checkpoint, save_checkpoint
from gigatile.training.classification import Classification
from gigatile.training.models import build_model
from gigatile.training.order import epoch_order, epoch_views, steps_per_epoch
from gigatile.training.ranks import Ranks

HISTORY = ("epoch", "loss", "accuracy", "valid_loss", "valid_accuracy")
# Seconds between two lines of progress within an epoch.
TELL_EVERY = 10.0


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

    A training that was killed goes on after the last epoch that it completed, with the samples in
    the order that they would have had.

    Args:
        manifest: the shards' manifest; must have the splits train and valid.
        settings, tiles: the settings, written beside the model.
        checkpoints: folder of its own for checkpoints; gone when the model is written.
        out: folder for model.keras, history.tsv, settings.json and versions.json.
        ranks: the processes that train together.
        tell: takes lines of progress; called on rank 0 alone.

    Raises:
        UserError: the input is missing or damaged, or does not fit the settings.
    """
    readers = {split: ShardReader(manifest, split) for split in ("train", "valid")}
    classes = readers["train"].classes
    model = build_model(settings, _tile_size(readers["train"]), len(classes), ranks.writes)
    task = Classification(model, settings, ranks)
    key = _key(manifest, settings, tiles, [list(variable.shape) for variable in task.variables])

    # Every rank looks at the same folder, but what rank 0 found there decides.
    found = newest_checkpoint(checkpoints, key, tell) if ranks.writes else None
    done, history = 0, []
    if found and found[0]["epoch"] <= settings.epochs:
        state, arrays = found
        done, history = state["epoch"], state["history"]
        for variable, array in zip(task.variables, arrays, strict=True):
            variable.assign(array)
        tell(f"going on after epoch {done} of {settings.epochs}")
    done = int(ranks.sum(np.array(done), "epochs done"))
    ranks.same_everywhere(task.variables, "initial")

    n = len(readers["train"])
    if ranks.writes:
        tell(
            f"{settings.model}: {model.count_params():,} parameters, {n} tiles of "
            f"{len(classes)} classes, {steps_per_epoch(n, settings.batch_size)} steps of "
            f"{settings.batch_size} tiles per epoch on {ranks.size} rank(s)"
        )
    for epoch in range(done, settings.epochs):
        order = epoch_order(n, settings.seed, epoch)
        views = epoch_views(n, settings.seed, epoch) * (settings.views == "random")
        tell_step = _progress(epoch, settings, n, ranks, tell)
        loss, accuracy = _one_epoch(
            readers["train"], order, views, task.step, settings, ranks, tell_step
        )
        ranks.average(task.statistics, "statistics")
        in_order = np.arange(len(readers["valid"]))
        with task.averaged():
            valid_loss, valid_accuracy = _one_epoch(
                readers["valid"], in_order, 0 * in_order, task.score, settings, ranks
            )
        if not math.isfinite(loss):
            raise UserError(
                f"the loss of epoch {epoch + 1} is {loss}; lower train.learning_rate "
                f"(now {settings.learning_rate:g})"
            )
        if ranks.writes:
            history.append([epoch + 1, loss, accuracy, valid_loss, valid_accuracy])
            tell(
                f"epoch {epoch + 1}/{settings.epochs}: loss {loss:.4f}, accuracy {accuracy:.3f}; "
                f"valid loss {valid_loss:.4f}, accuracy {valid_accuracy:.3f}"
            )
            save_checkpoint(
                checkpoints,
                (epoch + 1) * steps_per_epoch(n, settings.batch_size),
                key,
                {"epoch": epoch + 1, "history": history},
                [variable.numpy() for variable in task.variables],
            )
    if ranks.writes:
        with task.averaged():
            _write(out, model, history, classes, settings, tiles, manifest)
        shutil.rmtree(checkpoints, ignore_errors=True)


def _one_epoch(
    reader: ShardReader,
    order: np.ndarray,
    views: np.ndarray,
    run: Callable[..., tuple[tf.Tensor, tf.Tensor]],
    settings: TrainSettings,
    ranks: Ranks,
    tell_step: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[float, float]:
    """Run a task's step or score over an epoch; return mean loss and accuracy over all ranks."""
    sums = np.zeros(3, np.float64)
    mine = batches(reader, order, views, settings.batch_size, ranks.rank, ranks.size, ranks.threads)
    for step, batch in enumerate(mine, 1):
        total = np.float32(batch.total)
        loss, right = run(batch.images, batch.labels, batch.weights, total)
        sums += float(loss), float(right), float(batch.weights.sum())
        tell_step(step, sums[0] / max(sums[2], 1))
    loss_sum, right_sum, samples = ranks.sum(sums, "epoch")
    return float(loss_sum / samples), float(right_sum / samples)


def _tile_size(reader: ShardReader) -> int:
    return reader[0].pixels().shape[0]


def _key(
    manifest: Path, settings: TrainSettings, tiles: TileSettings, shapes: list[list[int]]
) -> str:
    """Identify what a checkpoint belongs to: data, settings and the shapes of its arrays.

    Not how long or on how many ranks: those may change before a training goes on. The shapes keep
    a checkpoint of another version of the model from being taken for one of this.
    """
    values: dict[str, Any] = settings.model_dump(exclude={"epochs", "ranks"})
    identity = json.dumps([sha256_of(manifest), values, tiles.model_dump(), shapes], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


def _progress(
    epoch: int, settings: TrainSettings, n: int, ranks: Ranks, tell: Callable[[str], None]
) -> Callable[[int, float], None]:
    """Return what tells, every few seconds, how far an epoch is; on rank 0 alone."""
    begun = told = time.monotonic()
    steps = steps_per_epoch(n, settings.batch_size)

    def tell_step(step: int, loss: float) -> None:
        nonlocal told
        now = time.monotonic()
        if ranks.writes and now - told >= TELL_EVERY:
            told = now
            rate = step * settings.batch_size / (now - begun)
            left = (steps - step) * settings.batch_size / rate
            tell(
                f"epoch {epoch + 1}/{settings.epochs}, step {step}/{steps}: loss {loss:.4f}, "
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
    described = {
        "classes": classes,
        "tiles": tiles.model_dump(),
        "train": settings.model_dump(),
        "data": read_json(manifest)["splits"],
        "inputs": {f"shards/{manifest.name}": sha256_of(manifest)},
    }
    write_json(out / "settings.json", described)
    write_json(out / "versions.json", software.versions())
    with write_whole(out / "model.keras") as temporary:
        model.save(temporary)
