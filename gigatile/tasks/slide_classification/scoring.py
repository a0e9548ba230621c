"""Scores of whole slides by a trained classifier, and maps of where they come from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf
from pydantic import JsonValue

from gigatile.json_models import JsonModel, read_model
from gigatile.models.saving import load_model
from gigatile.models.slide_classifier import parts_of
from gigatile.records.manifest import MAX_MPP_RATIO
from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings
from gigatile.settings.whole_slides import WholeSlideSettings
from gigatile.whole_slides.aggregators import Attention
from gigatile.whole_slides.memory import check_window
from gigatile.whole_slides.receptive_field import FieldsBySize
from gigatile.whole_slides.slide_pixels import StoredSlide
from gigatile.whole_slides.two_passes import Picture, TwoPasses, read_ahead


class ClassifierSettings(JsonModel):
    """The part of a classifier's settings.json that is needed to apply it."""

    classes: list[str]
    sha256: str
    mpp: float | None = None
    tiles: dict[str, JsonValue]
    whole_slides: dict[str, JsonValue]


@dataclass(frozen=True)
class SlideScores:
    """The scores of a slide and its map.

    Attributes:
        scores: (classes,) float64, rounded to six decimals.
        positions: a row for each position of the encoder with tissue: x, y, side in pixels of the
            stored tiles; p_<class>…, the class activation; with attention also attention and
            gradcam_<class>….
    """

    scores: np.ndarray
    positions: pd.DataFrame


class SlideClassifier:
    """A trained classifier of whole slides.

    Attributes:
        classes: names of the outputs, in order.
        tiles: the settings of the tiles, as in training.
        mpp: micrometres per pixel of the slides that it was trained on; None if unknown.
    """

    def __init__(self, model: Path, described: Path, window: int, threads: int = 1) -> None:
        """Load `model` (.keras); `described` is its settings.json.

        Args:
            model, described: the files.
            window: side of the windows in pixels.
            threads: to read with.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        settings = read_model(ClassifierSettings, described)
        self.classes, self.mpp = settings.classes, settings.mpp
        self.tiles = check_section(TileSettings, settings.tiles, str(described))
        section = check_section(WholeSlideSettings, settings.whole_slides, str(described))
        network = load_model(model, settings.sha256, described)
        self._parts = parts_of(network, section.aggregator)
        self._fields = FieldsBySize(self._parts.encoder)
        self._passes = TwoPasses(self._parts.encoder, self._parts.aggregator)
        fields = self._fields.get(self.tiles.size, self.tiles.size)
        check_window(self._parts.encoder, fields, window, 1)
        self._window, self._threads = window, threads
        attention = self._parts.aggregator
        self._attention = attention if isinstance(attention, Attention) else None
        self._describe_positions = tf.function(self._activations, reduce_retracing=True)

    def fault_of_scale(self, mpp: float | None) -> str | None:
        """Return why a slide with tiles of this scale cannot be scored; None: it can.

        Args:
            mpp: micrometres per pixel of its tiles; None if unknown.
        """
        if mpp and self.mpp and max(mpp, self.mpp) > MAX_MPP_RATIO * min(mpp, self.mpp):
            return (
                f"its tiles have {mpp:g} µm per pixel, but the model was trained at "
                f"{self.mpp:g}; train and predict with tiles.mpp: {self.mpp:g}"
            )
        return None

    def score(self, slide: StoredSlide) -> np.ndarray:
        """Return the score of each class, (classes,) float64."""
        return self._scores(self._pool(self._picture(slide)))

    def score_with_map(self, slide: StoredSlide) -> SlideScores:
        """Return the scores of a slide and the map of its positions."""
        picture = self._picture(slide)
        state = self._pool(picture)
        importance = self._grad_cam_weights(picture, state)
        fields = self._fields.get(*slide.shape)
        stride = fields[0].stride
        down, across = (field.centres() - field.stride / 2 for field in fields)
        parts = []
        for window, activations in self._over_windows(
            picture,
            lambda embeddings: self._describe_positions(
                embeddings, tf.constant(state), tf.constant(importance)
            ),
        ):
            span = picture.windows[window]
            rows, columns = np.nonzero(picture.tissue_in(span))
            table = {
                "x": across[columns + span.columns.outputs[0]],
                "y": down[rows + span.rows.outputs[0]],
                "side": np.full(len(rows), float(stride)),
            }
            parts.append(pd.DataFrame(table | self._named(activations)))
        positions = pd.concat(parts, ignore_index=True).sort_values(["y", "x"], kind="stable")
        return SlideScores(self._scores(state).round(6), positions.reset_index(drop=True))

    def _picture(self, slide: StoredSlide) -> Picture:
        return slide.picture(self._fields.get(*slide.shape), self._window)

    def _pool(self, picture: Picture) -> np.ndarray:
        (state,) = self._passes.pool([picture])
        return state

    def _scores(self, state: np.ndarray) -> np.ndarray:
        pooled = self._parts.aggregator.pooled(state).astype(np.float32)
        scores = tf.nn.softmax(self._parts.logits(pooled[None]))[0].numpy()
        return scores.astype(np.float64)

    def _over_windows(
        self, picture: Picture, work: Callable[[tf.Tensor], Any]
    ) -> Sequence[tuple[int, Any]]:
        """Return the result of `work` on the embeddings of each window."""
        every = [(0, number) for number in range(len(picture.windows))]
        return [
            (window, work(self._passes.embed(*content)))
            for (_, window), content in read_ahead([picture], every, self._threads)
        ]

    def _grad_cam_weights(self, picture: Picture, state: np.ndarray) -> np.ndarray:
        """Return the mean gradient of each class's logit over the positions: (classes, channels).

        Grad-CAM (Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391), equation 1. For `max`
        and `mean` it is the class activation without its bias, divided by the number of positions;
        so it is computed for attention only. For the others: zeros.
        """
        kernel = self._parts.logits.kernel.numpy().T
        totals, count = np.zeros(kernel.shape), 0
        if self._attention is None:
            return totals.astype(np.float32)

        @tf.function(reduce_retracing=True)
        def gradients(embeddings: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            sums = []
            for of_class in kernel:
                with tf.GradientTape() as tape:
                    tape.watch(embeddings)
                    surrogate = self._parts.aggregator.surrogate(
                        embeddings, tf.constant(0), tf.constant(state), tf.constant(of_class)
                    )
                sums.append(tf.reduce_sum(tape.gradient(surrogate, embeddings), axis=0))
            return tf.stack(sums), tf.shape(embeddings)[0]

        for _, (sums, positions) in self._over_windows(picture, gradients):
            totals, count = totals + sums.numpy(), count + int(positions)
        return (totals / count).astype(np.float32)

    def _activations(
        self, embeddings: tf.Tensor, state: tf.Tensor, importance: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Return class activations (n, classes); with attention also it (n,) and Grad-CAM."""
        activations = tf.nn.softmax(self._parts.logits(embeddings))
        if self._attention is None:
            return (activations,)
        scores = tf.cast(self._attention.scores(embeddings), tf.float64)
        attention = tf.exp(scores - state[2, 0]) / state[1, 0]
        grad_cam = tf.nn.relu(tf.matmul(embeddings, importance, transpose_b=True))
        return activations, attention, grad_cam

    def _named(self, values: tuple[tf.Tensor, ...]) -> dict[str, np.ndarray]:
        activations, *others = (value.numpy() for value in values)
        columns = {f"p_{name}": activations[:, k] for k, name in enumerate(self.classes)}
        if others:
            attention, grad_cam = others
            columns["attention"] = attention
            columns |= {f"gradcam_{name}": grad_cam[:, k] for k, name in enumerate(self.classes)}
        return columns
