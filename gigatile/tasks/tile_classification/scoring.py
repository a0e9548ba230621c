"""Scores of tiles by a trained classifier."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from pydantic import Field, field_validator

from gigatile.errors import UserError
from gigatile.files import write_whole
from gigatile.json_models import JsonModel, read_model
from gigatile.models.saving import load_model
from gigatile.records import Tile, read_tiles
from gigatile.settings.view_names import VIEWS, named_views
from gigatile.views import apply_views

BATCH = 64


class Scores(JsonModel):
    """How the scores of a classifier are computed from its outputs.

    Attributes:
        views: of each tile, over which the scores are averaged.
        temperature: by which their logarithms are then divided.
    """

    views: list[str] = Field(default_factory=lambda: [VIEWS[0]])
    temperature: float = Field(1.0, gt=0)

    @field_validator("views")
    @classmethod
    def _known(cls, views: list[str]) -> list[str]:
        return list(named_views(views))


class ClassifierSettings(JsonModel):
    """The part of a classifier's settings.json that is needed to apply it."""

    classes: list[str]
    sha256: str
    scores: Scores = Scores()


def sharpened(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Return scores at another temperature; below 1 they are surer.

    Args:
        scores: (n, classes) float32, each row with the sum 1.
        temperature: by which their logarithms are divided.
    """
    if temperature == 1:
        return scores
    logits = np.log(np.maximum(scores.astype(np.float64), np.finfo(np.float32).tiny)) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


class TileClassifier:
    """A trained classifier of tiles.

    Attributes:
        classes: names of the outputs, in order.
        scores: how their scores are computed.
    """

    def __init__(self, model: Path, described: Path, views: Sequence[str] | None = None) -> None:
        """Load a model.

        Args:
            model: the file (.keras).
            described: its settings.json.
            views: over which the scores are averaged, with a temperature of 1; None: as described.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        settings = read_model(ClassifierSettings, described)
        self.classes = settings.classes
        given = None if views is None else Scores(views=list(views))
        self.scores = given or settings.scores
        self._model = load_model(model, settings.sha256, described)
        self._run = tf.function(lambda tiles: self._model(tiles, training=False))
        shape = (None, self.tile_size, self.tile_size, 3)
        self._run_any = tf.function(
            lambda tiles: self._model(tiles, training=False),
            input_signature=[tf.TensorSpec(shape, tf.uint8)],
        )

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
        return self._scored(self._run, pixels)[: len(tiles)]

    def score_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Return the class scores of pixels, (n, side, side, 3) uint8: (n, classes) float32.

        Unlike those of `score`, they are not padded: in batches of different n, the scores of a
        tile differ by rounding.
        """
        return self._scored(self._run_any, pixels)

    def _scored(self, run: Callable[[np.ndarray], tf.Tensor], pixels: np.ndarray) -> np.ndarray:
        """Return the scores of pixels, (n, side, side, 3) uint8, view by view."""
        total = np.zeros((len(pixels), len(self.classes)), np.float32)
        for name in self.scores.views:
            total += run(apply_views(pixels, VIEWS.index(name))).numpy()
        return sharpened(total / np.float32(len(self.scores.views)), self.scores.temperature)


def model_of_scores(model: keras.Model, scores: Scores) -> keras.Model:
    """Return a model of the same input that computes the scores as `TileClassifier` does.

    All views are in memory at a time.
    """
    tiles = keras.Input(model.input_shape[1:], dtype="uint8")
    viewed = []
    for number in map(VIEWS.index, scores.views):
        view = keras.ops.rot90(tiles, number % 4, axes=(1, 2)) if number % 4 else tiles
        view = keras.ops.flip(view, axis=2) if number >= 4 else view
        viewed.append(model(keras.ops.cast(view, model.inputs[0].dtype)))
    mean = keras.ops.mean(keras.ops.stack(viewed), axis=0)
    if scores.temperature != 1:
        logits = keras.ops.log(keras.ops.maximum(mean, float(np.finfo(np.float32).tiny)))
        mean = keras.ops.softmax(logits / scores.temperature)
    return keras.Model(tiles, mean)


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
        log: receives lines of progress.
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


class TileScores(NamedTuple):
    """The scores and positions of the tiles of a slide.

    Attributes:
        tiles: x, y, extent and tissue of each tile, as in `gigatile.records.Tile`.
        scores: (n, classes) float32.
    """

    tiles: list[tuple[int, int, float, float]]
    scores: np.ndarray

    def to_table(self, classes: Sequence[str]) -> pd.DataFrame:
        """Return a row per tile: x, y, extent, tissue, p_<class>… ."""
        table = pd.DataFrame(self.tiles, columns=["x", "y", "extent", "tissue"])
        table["tissue"] = table["tissue"].astype(np.float32)
        return table.assign(**{f"p_{name}": self.scores[:, k] for k, name in enumerate(classes)})


def score_tiles(classifier: TileClassifier, tiles: Iterable[Tile]) -> TileScores:
    """Score the tiles of a slide; a batch of them is in memory at a time."""
    described, scores, remaining = [], [], iter(tiles)
    while batch := list(islice(remaining, BATCH)):
        scores.append(classifier.score(batch))
        described += [(tile.x, tile.y, tile.extent, tile.tissue) for tile in batch]
    return TileScores(described, np.concatenate(scores))


def _score_slide(
    classifier: TileClassifier, row: dict[str, str], records: Path, schema: pa.Schema
) -> pa.Table:
    tiles, scores = score_tiles(classifier, read_tiles(records))
    constants = [[row.get(key, "")] * len(tiles) for key in ("slide", "patient", "label")]
    columns = [*constants, *zip(*tiles, strict=True), *scores.T]
    arrays = [pa.array(values, column.type) for values, column in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
