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


class ClassifierSettings(JsonModel):
    """The part of a classifier's settings.json that is needed to apply it."""

    classes: list[str]
    sha256: str
    encoder_id: str
    tiles: dict[str, JsonValue]
    encoder: dict[str, JsonValue]


class BagClassifier:
    """A trained classifier of the embeddings of slides.

    Attributes:
        classes: names of the outputs, in order.
        tiles, encoder: the settings, as in training.
        encoder_id: identifies the encoder of the training, 16 bytes.
    """

    def __init__(self, model: Path, described: Path) -> None:
        """Load `model` (.keras); `described` is its settings.json.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        settings = read_model(ClassifierSettings, described)
        self.classes, self.encoder_id = settings.classes, bytes.fromhex(settings.encoder_id)
        self.tiles = check_section(TileSettings, settings.tiles, str(described))
        self.encoder = check_section(EncoderSettings, settings.encoder, str(described))
        self._described = described
        self._tiles, self._logits = parts_of(load_model(model, settings.sha256, described))
        self._mixes = mixes(self._tiles)
        self._of_part = tf.function(self._vectors, reduce_retracing=True)

    def check_encoder(self, encoder: bytes, source: str) -> None:
        """Refuse another encoder than that of the training; see `encoder_files.check_encoder`."""
        check_encoder(encoder, self.encoder_id, source, self._described)

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
        columns = {"x": slide.x, "y": slide.y, "side": np.full(len(slide.x), slide.extent)}
        columns |= {f"p_{name}": alone[:, k] for k, name in enumerate(self.classes)}
        if weights is not None:
            columns["attention"] = weights
        positions = pd.DataFrame(columns).sort_values(["y", "x"], kind="stable")
        return scores.round(6), positions.reset_index(drop=True)

    def _vectors(self, values: tf.Tensor) -> Mapping[str, tf.Tensor]:
        inputs = [values, tf.ones(tf.shape(values)[:2])] if self._mixes else values
        vectors: Mapping[str, tf.Tensor] = self._tiles(inputs, training=False)
        return vectors

    def _scored(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Return the scores of a slide, the share of each tile, and the scores of each alone."""
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
        scores = tf.nn.softmax(self._logits(both)).numpy()
        return scores[0].astype(np.float64), weights, scores[1:]
