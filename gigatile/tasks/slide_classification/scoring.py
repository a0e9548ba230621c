"""Scores of whole slides by a trained network, and maps of where they come from."""

from abc import ABC, abstractmethod
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


class NetworkSettings(JsonModel):
    """The part of a model's settings.json that is needed to apply it."""

    sha256: str
    mpp: float | None = None
    tiles: dict[str, JsonValue]
    whole_slides: dict[str, JsonValue]


@dataclass(frozen=True)
class SlideScores:
    """The scores of a slide and its map.

    Attributes:
        scores: (outputs,) float64, rounded to six decimals.
        positions: a row for each position of the encoder with tissue: x, y, side in pixels of the
            stored tiles; what the model would predict for a slide of this position alone; with
            attention also attention, and of a classifier gradcam_<class>….
    """

    scores: np.ndarray
    positions: pd.DataFrame


class WholeSlideNetwork(ABC):
    """A trained network of whole slides.

    Attributes:
        names: of the outputs, in order.
        tiles: the settings of the tiles, as in training.
        mpp: micrometres per pixel of the slides that it was trained on; None if unknown.
    """

    names: Sequence[str]

    def __init__(self, model: Path, described: Path, window: int, threads: int = 1) -> None:
        """Load `model` (.keras); `described` is its settings.json.

        Args:
            model, described: the files.
            window: side of the windows in pixels.
            threads: to read with.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        settings = read_model(NetworkSettings, described)
        self.mpp = settings.mpp
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
        self._of_positions = tf.function(self._logits_of_positions, reduce_retracing=True)

    @abstractmethod
    def scores_of(self, logits: np.ndarray) -> np.ndarray:
        """Return the scores of a slide, (outputs,) float64, from its logits, (outputs,)."""

    @abstractmethod
    def columns_of(self, logits: np.ndarray) -> dict[str, np.ndarray]:
        """Return columns of the map, (n,) each, from the logits of positions, (n, outputs)."""

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

    def logits(self, slide: StoredSlide) -> np.ndarray:
        """Return the logits of a slide, (outputs,) float32."""
        return self._logits(self._pool(self._picture(slide)))

    def score_with_map(self, slide: StoredSlide) -> SlideScores:
        """Return the scores of a slide and the map of its positions."""
        picture = self._picture(slide)
        state = self._pool(picture)
        fields = self._fields.get(*slide.shape)
        stride = fields[0].stride
        down, across = (field.centres() - field.stride / 2 for field in fields)
        parts = []
        for window, values in self._over_windows(picture, self._describe(picture, state)):
            span = picture.windows[window]
            rows, columns = np.nonzero(picture.tissue_in(span))
            table = {
                "x": across[columns + span.columns.outputs[0]],
                "y": down[rows + span.rows.outputs[0]],
                "side": np.full(len(rows), float(stride)),
            }
            parts.append(pd.DataFrame(table | values))
        positions = pd.concat(parts, ignore_index=True).sort_values(["y", "x"], kind="stable")
        scores = self.scores_of(self._logits(state))
        return SlideScores(scores.round(6), positions.reset_index(drop=True))

    def _picture(self, slide: StoredSlide) -> Picture:
        return slide.picture(self._fields.get(*slide.shape), self._window)

    def _pool(self, picture: Picture) -> np.ndarray:
        (state,) = self._passes.pool([picture])
        return state

    def _logits(self, state: np.ndarray) -> np.ndarray:
        pooled = self._parts.aggregator.pooled(state).astype(np.float32)
        logits: np.ndarray = self._parts.logits(pooled[None])[0].numpy()
        return logits

    def _over_windows(
        self, picture: Picture, work: Callable[[tf.Tensor], Any]
    ) -> Sequence[tuple[int, Any]]:
        """Return the result of `work` on the embeddings of each window."""
        every = [(0, number) for number in range(len(picture.windows))]
        return [
            (window, work(self._passes.embed(*content)))
            for (_, window), content in read_ahead([picture], every, self._threads)
        ]

    def _describe(
        self, picture: Picture, state: np.ndarray
    ) -> Callable[[tf.Tensor], dict[str, np.ndarray]]:
        """Return the function from embeddings of positions, (n, channels), to columns of the map.

        Args:
            picture: the slide.
            state: of the aggregator, of the whole slide.
        """

        def columns(embeddings: tf.Tensor) -> dict[str, np.ndarray]:
            logits, *attention = self._of_positions(embeddings, tf.constant(state))
            shares = {"attention": attention[0].numpy()} if attention else {}
            return self.columns_of(logits.numpy()) | shares

        return columns

    def _logits_of_positions(
        self, embeddings: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """Return logits (n, outputs), and with attention its shares, (n,)."""
        logits = self._parts.logits(embeddings)
        if self._attention is None:
            return (logits,)
        scores = tf.cast(self._attention.scores(embeddings), tf.float64)
        return logits, tf.exp(scores - state[2, 0]) / state[1, 0]


class _Classes(JsonModel):
    classes: list[str]


class SlideClassifier(WholeSlideNetwork):
    """A trained classifier of whole slides.

    Attributes:
        names, classes: of the outputs, in order.
    """

    def __init__(self, model: Path, described: Path, window: int, threads: int = 1) -> None:
        """Load a classifier; see `WholeSlideNetwork`."""
        super().__init__(model, described, window, threads)
        self.names = self.classes = read_model(_Classes, described).classes

    def score(self, slide: StoredSlide) -> np.ndarray:
        """Return the score of each class, (classes,) float64."""
        return self.scores_of(self.logits(slide))

    def scores_of(self, logits: np.ndarray) -> np.ndarray:
        """Return the score of each class."""
        scores: np.ndarray = tf.nn.softmax(logits).numpy()
        return scores.astype(np.float64)

    def columns_of(self, logits: np.ndarray) -> dict[str, np.ndarray]:
        """Return p_<class>…, the class activations."""
        activations = tf.nn.softmax(logits).numpy()
        return {f"p_{name}": activations[:, k] for k, name in enumerate(self.classes)}

    def _describe(
        self, picture: Picture, state: np.ndarray
    ) -> Callable[[tf.Tensor], dict[str, np.ndarray]]:
        """Return the function from embeddings to columns, with attention also gradcam_<class>…."""
        columns = super()._describe(picture, state)
        if self._attention is None:
            return columns
        importance = self._grad_cam_weights(picture, state)

        def with_grad_cam(embeddings: tf.Tensor) -> dict[str, np.ndarray]:
            grad_cam = np.maximum(embeddings.numpy() @ importance.T, 0)
            of_classes = {f"gradcam_{name}": grad_cam[:, k] for k, name in enumerate(self.classes)}
            return columns(embeddings) | of_classes

        return with_grad_cam

    def _grad_cam_weights(self, picture: Picture, state: np.ndarray) -> np.ndarray:
        """Return the mean gradient of each class's logit over the positions: (classes, channels).

        Grad-CAM (Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391), equation 1. For `max`
        and `mean` it is the class activation without its bias, divided by the number of positions;
        so it is computed for attention only.
        """
        kernel = self._parts.logits.kernel.numpy().T
        totals, count = np.zeros(kernel.shape), 0

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
