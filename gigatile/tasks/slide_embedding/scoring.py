"""Scores of slides by a trained classifier of embeddings, and maps of where they come from."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import tensorflow as tf
from pydantic import JsonValue

from gigatile.embeddings.encoder_files import check_encoder
from gigatile.embeddings.stored import SlideEmbeddings
from gigatile.json_models import JsonModel, read_model
from gigatile.models.bag_classifier import mixes, parts_of
from gigatile.models.saving import load_model
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings

# Tiles that are processed at the same time, unless their vectors depend on each other.
PART = 4096


class BagSettings(JsonModel):
    """The part of a model's settings.json that is needed to apply it."""

    sha256: str
    encoder_id: str
    tiles: dict[str, JsonValue]
    encoder: dict[str, JsonValue]


class BagModel:
    """A trained model of the embeddings of slides.

    Attributes:
        tiles, encoder: the settings, as in training.
        encoder_id: identifies the encoder of the training, 16 bytes.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is its settings.json.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        settings = read_model(BagSettings, described)
        self.encoder_id = bytes.fromhex(settings.encoder_id)
        self.tiles = check_section(TileSettings, settings.tiles, str(described))
        self.encoder = check_section(EncoderSettings, settings.encoder, str(described))
        self._described = described
        self._tiles, self._logits = parts_of(load_model(model, settings.sha256, described))
        self._mixes = mixes(self._tiles)
        self._of_part = tf.function(self._vectors, reduce_retracing=True)

    def check_encoder(self, encoder: bytes, source: str) -> None:
        """Refuse another encoder than that of the training; see `encoder_files.check_encoder`."""
        check_encoder(encoder, self.encoder_id, source, self._described)

    def _vectors(self, values: tf.Tensor) -> Mapping[str, tf.Tensor]:
        inputs = [values, tf.ones(tf.shape(values)[:2])] if self._mixes else values
        vectors: Mapping[str, tf.Tensor] = self._tiles(inputs, training=False)
        return vectors

    def logits(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Return the logits of a slide, the share of each tile, and the logits of each alone.

        Args:
            values: embeddings, (tiles, dimensions) float32.

        Returns:
            (outputs,); (tiles,), None without attention; (tiles, outputs).
        """
        vectors, attention = [], []
        part = max(1, len(values)) if self._mixes else PART
        for begin in range(0, len(values), part):
            of_tiles = self._of_part(values[None, begin : begin + part])
            vectors.append(of_tiles["vectors"][0].numpy())
            if "scores" in of_tiles:
                attention.append(of_tiles["scores"][0, :, 0].numpy())
        joined = np.concatenate(vectors)
        weights = None
        if attention:
            logits = np.concatenate(attention).astype(np.float64)
            weights = np.exp(logits - logits.max())
            weights /= weights.sum()
        pooled = np.average(joined, axis=0, weights=weights).astype(np.float32)
        both = np.concatenate([pooled[None], joined])
        logits = self._logits(both).numpy()
        return logits[0], weights, logits[1:]


def map_of(
    slide: SlideEmbeddings, columns: Mapping[str, np.ndarray], weights: np.ndarray | None
) -> pd.DataFrame:
    """Return a row for each tile: x, y and side in pixels of level 0, and more columns.

    Args:
        slide: the slide.
        columns: (tiles,) each.
        weights: the share of each tile, (tiles,), for the column `attention`; None: no such column.
    """
    places = {"x": slide.x, "y": slide.y, "side": np.full(len(slide.x), slide.extent)}
    shares = {} if weights is None else {"attention": weights}
    positions = pd.DataFrame({**places, **columns, **shares})
    return positions.sort_values(["y", "x"], kind="stable").reset_index(drop=True)


class _Classes(JsonModel):
    classes: list[str]


class BagClassifier(BagModel):
    """A trained classifier of the embeddings of slides.

    Attributes:
        names, classes: of the outputs, in order.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load a classifier; see `BagModel`."""
        super().__init__(model, described)
        self.names = self.classes = read_model(_Classes, described).classes

    def score(self, values: np.ndarray) -> np.ndarray:
        """Return the score of each class, (classes,) float64.

        Args:
            values: embeddings, (tiles, dimensions) float32.
        """
        scores, *_ = self._scored(values)
        return scores

    def score_with_map(self, slide: SlideEmbeddings) -> tuple[np.ndarray, pd.DataFrame]:
        """Return the scores of a slide, (classes,) float64 with six decimals, and its map.

        Returns:
            The map has a row for each tile: x, y and side in pixels of level 0; p_<class>…, the
            scores that a slide of this tile's vector alone would get; with attention also
            `attention`, the share of the tile.
        """
        scores, weights, alone = self._scored(slide.values)
        columns = {f"p_{name}": alone[:, k] for k, name in enumerate(self.classes)}
        return scores.round(6), map_of(slide, columns, weights)

    def _scored(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Return the scores of a slide, the share of each tile, and the scores of each alone."""
        slide, weights, alone = self.logits(values)
        scores = tf.nn.softmax(np.concatenate([slide[None], alone])).numpy()
        return scores[0].astype(np.float64), weights, scores[1:]
