"""Validation of tile classifiers on the tiles of the validation split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.records import Tile
from gigatile.records.shards import ShardReader
from gigatile.tasks.tile_classification.scoring import BATCH, TileClassifier
from gigatile.training.pictures import Sample, Worst, class_figures, draw_confusion, mosaic
from gigatile.training.segments import Segment
from gigatile.training.validation import Validation


def validate(segment: Segment, manifest: Path, settings: Mapping[str, Any]) -> Validation:
    """Return the mean loss and accuracy of the tiles, each scored once.

    The loss of a tile is -log p, where p is the score of its class in single precision; p = 0
    counts as the smallest positive number.

    Args:
        segment: the segment of the model.
        manifest: manifest of the shards, which must have the split valid.
        settings: not used.

    Raises:
        UserError: a file is missing or damaged, or the shards have other classes than the model.
    """
    classifier = TileClassifier(segment.model, segment.described)
    reader = ShardReader(manifest, "valid")
    if reader.classes != classifier.classes:
        raise UserError(
            f"{manifest}: has the classes {', '.join(reader.classes)}, but {segment.model} was "
            f"trained on {', '.join(classifier.classes)}; train it again"
        )
    limit = read_json(segment.described)["train"]["limit_batches"]
    tiles = min(len(reader), BATCH * (limit or len(reader)))
    losses = 0.0
    confusion = np.zeros((len(reader.classes),) * 2, np.int64)
    worst = Worst()
    for first in range(0, tiles, BATCH):
        batch = [reader[number] for number in range(first, min(first + BATCH, tiles))]
        labels = [classifier.classes.index(tile.label) for tile in batch]
        scores = classifier.score(batch)
        of_label = scores[np.arange(len(batch)), labels].astype(np.float64)
        of_tiles = -np.log(np.maximum(of_label, np.finfo(np.float32).tiny))
        losses += of_tiles.sum()
        np.add.at(confusion, (labels, scores.argmax(axis=1)), 1)
        for tile, loss, score in zip(batch, of_tiles.tolist(), scores, strict=True):
            if worst.would_keep(loss):
                worst.add(_shown(tile, loss, score, reader.classes))
    accuracy = float(confusion.trace()) / tiles
    return Validation(
        "tiles",
        tiles,
        {"loss": losses / tiles, "accuracy": accuracy},
        details=class_figures(confusion, reader.classes),
        pictures={
            "confusion": draw_confusion(confusion, reader.classes),
            "worst tiles": mosaic(worst.samples),
        },
    )


def _shown(tile: Tile, loss: float, scores: np.ndarray, classes: Sequence[str]) -> Sample:
    called = classes[int(scores.argmax())]
    lines = [
        f"{tile.label}, scored {called}",
        f"loss {loss:.2f}",
        f"{tile.slide} {tile.x}, {tile.y}",
    ]
    return Sample(loss, tile.pixels(), lines)
