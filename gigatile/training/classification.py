"""The task of classifying tiles."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import keras
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.records.shards import ShardReader
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.training.models import LOGITS, build_model
from gigatile.training.order import VIEWS, Sampling, window_of
from gigatile.training.task import Networks
from gigatile.training.tiles import Tiles


class Classification:
    """Tiles, each of one class: softmax and cross-entropy; see `task.Task`."""

    samples, measure = "tiles", "accuracy"

    def __init__(self, tiles: TileSettings) -> None:
        self._tiles = tiles

    def source(self, reader: ShardReader) -> Tiles:
        """Return the tiles, decoded and under their views."""
        return Tiles(reader)

    def sampling(self, reader: ShardReader, settings: TrainSettings) -> Sampling:
        """Return what decides the order of the tiles."""
        unknown = sorted(set(settings.boost) - set(reader.classes))
        if unknown:
            raise UserError(
                f"train.boost: no such label: {', '.join(unknown)}; the cohort has "
                f"{', '.join(reader.classes)}"
            )
        weights = [settings.boost.get(label, 1.0) for label in reader.classes]
        counts = reader.counts.sum(axis=0)
        if not any(n * weight for n, weight in zip(counts, weights, strict=True)):
            raise UserError("train.boost: leaves no tile to train on")
        return Sampling(
            counts=reader.counts,
            seed=settings.seed,
            window=window_of(settings.shuffle_mb, reader.bytes, len(reader.counts)),
            # From the text of the number, so that 0.1 is a tenth.
            boost=tuple(Fraction(str(weight)) for weight in weights) if settings.boost else (),
            views=() if settings.views == "random" else tuple(map(VIEWS.index, settings.views)),
        )

    def networks(self, reader: ShardReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Return a classifier for tiles of the size that the first one has."""
        size = reader[0].pixels().shape[0]
        model = build_model(settings, size, len(reader.classes), pretrained)
        return Networks(model, keras.Model(model.input, model.get_layer(LOGITS).output))

    def sums(
        self, found: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the weighted sums of cross-entropy and of right calls.

        Args:
            found: (n, classes) logits.
            labels: (n,) int32, numbers of the classes.
            weights: (n,) float32.
        """
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, found)
        right = tf.cast(tf.argmax(found, axis=1, output_type=tf.int32) == labels, weights.dtype)
        return tf.reduce_sum(losses * weights), tf.reduce_sum(right * weights)

    def told(self, reader: ShardReader) -> str:
        """Say how many tiles there are, of how many classes."""
        return f"{len(reader)} tiles of {len(reader.classes)} classes"

    def settings(self) -> Mapping[str, Any]:
        """Return how the tiles were cut."""
        return {"tiles": self._tiles.model_dump()}

    def described(self, reader: ShardReader) -> Mapping[str, Any]:
        """Return the classes in the order of the scores."""
        return {"classes": reader.classes}
