"""Every tile of some slides scored once by a trained model."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.evaluation.loading import load_model
from gigatile.files import read_json, write_whole
from gigatile.records import Tile, read_tiles

BATCH = 64


class Scorer:
    """A trained model.

    Attributes:
        classes: what its outputs stand for, in order.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is the settings.json written beside it.

        Raises:
            UserError: a file is missing or damaged, or the model is another one.
        """
        told = read_json(described)
        self.classes: list[str] = told["classes"]
        self._model = load_model(model, told, described)
        self._run = tf.function(lambda tiles: self._model(tiles, training=False))

    @property
    def tile_size(self) -> int:
        """The side of the tiles that the model takes, in pixels."""
        return int(self._model.input_shape[1])

    def score(self, tiles: Sequence[Tile]) -> np.ndarray:
        """Return the class scores of up to `BATCH` tiles: (n, classes) float32.

        Batches are filled up to one shape, so that a tile's scores do not depend on how many
        others its slide has.
        """
        pixels = np.zeros((BATCH, self.tile_size, self.tile_size, 3), np.uint8)
        for number, tile in enumerate(tiles):
            image = tile.pixels()
            if image.shape != pixels.shape[1:]:
                raise UserError(
                    f"slide {tile.slide}: tiles of {image.shape[1]}×{image.shape[0]} px where the "
                    f"model takes {self.tile_size}×{self.tile_size}; tile it with the model's "
                    "settings"
                )
            pixels[number] = image
        return self._run(pixels).numpy()[: len(tiles)]


def score_slides(
    scorer: Scorer,
    slides: Sequence[dict[str, str]],
    records: Path,
    out: Path,
    tell: Callable[[str], None],
) -> None:
    """Score every tile of the slides and write the table of tiles (Parquet), slide after slide.

    Args:
        scorer: the model.
        slides: rows with slide, patient and label.
        records: folder of <slide>.tfrecord.
        out: the table: slide, patient, label, x, y, extent, tissue, p_<class>…; one row group
            per slide.
        tell: takes lines of progress.
    """
    names = [f"p_{label}" for label in scorer.classes]
    schema = pa.schema(
        [(name, pa.string()) for name in ("slide", "patient", "label")]
        + [("x", pa.int64()), ("y", pa.int64()), ("extent", pa.float64())]
        + [(name, pa.float32()) for name in ("tissue", *names)]
    )
    with write_whole(out) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for number, row in enumerate(slides, 1):
            tiles: list[tuple] = []
            scores = []
            for batch in _batched(records / f"{row['slide']}.tfrecord"):
                scores.append(scorer.score(batch))
                tiles += [(t.x, t.y, t.extent, t.tissue) for t in batch]
            x, y, extent, tissue = zip(*tiles, strict=True)
            whose = [[row.get(key, "")] * len(tiles) for key in ("slide", "patient", "label")]
            columns = [*whose, x, y, extent, tissue, *np.concatenate(scores).T]
            arrays = [
                pa.array(values, kind.type) for values, kind in zip(columns, schema, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            tell(f"slide {number}/{len(slides)}: {row['slide']}, {len(tiles)} tiles scored")


def _batched(path: Path) -> Iterator[list[Tile]]:
    tiles = read_tiles(path)
    while batch := list(islice(tiles, BATCH)):
        yield batch
