"""Scores of tiles by a trained classifier."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.files import read_json, write_whole
from gigatile.models.saving import load_model
from gigatile.records import Tile, read_tiles

BATCH = 64


class TileClassifier:
    """A trained classifier of tiles.

    Attributes:
        classes: names of the outputs, in order.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is the settings.json beside it.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        settings = read_json(described)
        if "classes" not in settings:
            raise UserError(f"{described}: does not describe a classifier of tiles")
        self.classes: list[str] = settings["classes"]
        self._model = load_model(model, settings.get("sha256"), described)
        self._run = tf.function(lambda tiles: self._model(tiles, training=False))

    @property
    def tile_size(self) -> int:
        """Side of the tiles in pixels."""
        return int(self._model.input_shape[1])

    def score(self, tiles: Sequence[Tile]) -> np.ndarray:
        """Return the class scores of at most `BATCH` tiles: (n, classes) float32.

        Batches are padded to the same shape, so that the scores of a tile do not depend on the
        number of other tiles.
        """
        pixels = np.zeros((BATCH, self.tile_size, self.tile_size, 3), np.uint8)
        for number, tile in enumerate(tiles):
            image = tile.pixels()
            if image.shape != pixels.shape[1:]:
                raise UserError(
                    f"slide {tile.slide}: has tiles of {image.shape[1]}×{image.shape[0]} px, but "
                    f"the model takes {self.tile_size}×{self.tile_size}; extract its tiles with "
                    "the settings of the model"
                )
            pixels[number] = image
        return self._run(pixels).numpy()[: len(tiles)]


def score_slides(
    classifier: TileClassifier,
    slides: Sequence[dict[str, str]],
    records: Path,
    out: Path,
    log: Callable[[str], None],
) -> None:
    """Score every tile of the slides, and write a table of tiles (Parquet).

    Args:
        classifier: the model.
        slides: rows with slide, patient and label.
        records: folder of <slide>.tfrecord.
        out: the table: slide, patient, label, x, y, extent, tissue, p_<class>…; one row group
            per slide.
        log: takes lines of progress.
    """
    scores = [f"p_{label}" for label in classifier.classes]
    schema = pa.schema(
        [(name, pa.string()) for name in ("slide", "patient", "label")]
        + [("x", pa.int64()), ("y", pa.int64()), ("extent", pa.float64())]
        + [(name, pa.float32()) for name in ("tissue", *scores)]
    )
    with write_whole(out) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for number, row in enumerate(slides, 1):
            table = _score_slide(classifier, row, records / f"{row['slide']}.tfrecord", schema)
            writer.write_table(table)
            log(f"slide {number}/{len(slides)}: {row['slide']}, {len(table)} tiles scored")


def _score_slide(
    classifier: TileClassifier, row: dict[str, str], records: Path, schema: pa.Schema
) -> pa.Table:
    tiles: list[tuple] = []
    scores = []
    for batch in _batches(records):
        scores.append(classifier.score(batch))
        tiles += [(tile.x, tile.y, tile.extent, tile.tissue) for tile in batch]
    x, y, extent, tissue = zip(*tiles, strict=True)
    constants = [[row.get(key, "")] * len(tiles) for key in ("slide", "patient", "label")]
    columns = [*constants, x, y, extent, tissue, *np.concatenate(scores).T]
    arrays = [pa.array(values, column.type) for values, column in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _batches(path: Path) -> Iterator[list[Tile]]:
    tiles = read_tiles(path)
    while batch := list(islice(tiles, BATCH)):
        yield batch
