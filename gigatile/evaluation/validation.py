"""A segment's model on the validation tiles, while the next segment trains."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.evaluation.scoring import BATCH, Scorer
from gigatile.files import checksums, read_json, write_json
from gigatile.records.shards import ShardReader
from gigatile.training.segments import Segment
from gigatile.training.watching import Events


def validate(
    segment: Segment, manifest: Path, tell: Callable[[str], None], events: Path | None = None
) -> None:
    """Score the tiles of the split valid, each once, and write loss and accuracy per tile.

    The loss is the mean of -log p of a tile's own label, p as the model gives it in single
    precision; a p of 0 counts as the smallest number above.

    Args:
        segment: what was trained; its `validated` is written.
        manifest: of the shards.
        tell: takes a line with the result.
        events: folder for files of TensorBoard; None: none are written.

    Raises:
        UserError: a file is missing or damaged, or the shards have other classes than the model.
    """
    scorer = Scorer(segment.model, segment.described)
    reader = ShardReader(manifest, "valid")
    if reader.classes != scorer.classes:
        raise UserError(
            f"{manifest}: classes {', '.join(reader.classes)}, but {segment.model} was trained on "
            f"{', '.join(scorer.classes)}; train it again"
        )
    described = read_json(segment.described)
    limit = described["train"]["limit_batches"]
    tiles = min(len(reader), BATCH * (limit or len(reader)))
    loss = right = 0.0
    for first in range(0, tiles, BATCH):
        shown = [reader[number] for number in range(first, min(first + BATCH, tiles))]
        labels = [scorer.classes.index(tile.label) for tile in shown]
        scores = scorer.score(shown)
        own = scores[np.arange(len(shown)), labels].astype(np.float64)
        loss -= np.log(np.maximum(own, np.finfo(np.float32).tiny)).sum()
        right += (scores.argmax(axis=1) == labels).sum()
    found = {
        "epoch": segment.epoch,
        "tiles": tiles,
        "loss": loss / tiles,
        "accuracy": right / tiles,
    }
    inputs = {f"segments/{segment.model.name}": segment.model, "shards/manifest.json": manifest}
    write_json(segment.validated, found | {"inputs": checksums(inputs)})
    if events:
        figures = {f"epoch/{name}": found[name] for name in ("loss", "accuracy")}
        Events(events).write(described["steps"], figures)
    tell(
        f"epoch {segment.epoch}: valid loss {found['loss']:.4f}, accuracy {found['accuracy']:.3f} "
        f"on {tiles} tiles"
    )
