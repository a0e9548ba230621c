"""Training on whole slides: their classes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.models.networks import Networks
from gigatile.models.slide_classifier import SlideClassifierParts, build_slide_classifier, parts_of
from gigatile.records.slides import SlideReader
from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.settings.whole_slides import WholeSlideSettings
from gigatile.tasks.slide_classification.samples import Slides
from gigatile.training.batches import Batch
from gigatile.training.ranks import Ranks
from gigatile.training.slide_task import ClassTask, SlideTask
from gigatile.training.task import TrainingTask
from gigatile.whole_slides.memory import check_window
from gigatile.whole_slides.receptive_field import FieldsBySize
from gigatile.whole_slides.slide_pixels import StoredSlide
from gigatile.whole_slides.two_passes import Picture, TwoPasses


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Return the task for its settings, as `Task.training` returns them."""
    return SlideClassification(
        check_section(TileSettings, settings["tiles"], "tiles"),
        check_section(WholeSlideSettings, settings["whole_slides"], "whole_slides"),
    )


class WholeSlideTask(SlideTask):
    """What the tasks that train on whole slides share; see `TrainingTask`."""

    shares_samples = True

    def __init__(self, tiles: TileSettings, whole_slides: WholeSlideSettings) -> None:
        super().__init__()
        self._tiles, self._whole_slides = tiles, whole_slides
        self._parts: SlideClassifierParts | None = None
        self._passes: TwoPasses | None = None

    def source(self, reader: SlideReader, augmented: bool = True) -> Slides:
        """Return the reader of slides."""
        self._reader = reader
        return Slides(self.targets(reader))

    def networks(self, reader: SlideReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Build a network of whole slides."""
        networks = build_slide_classifier(
            settings,
            self._whole_slides.aggregator,
            self.outputs(reader),
            pretrained,
            self.activation,
        )
        self._parts = parts_of(networks.trained, self._whole_slides.aggregator)
        self._fields = FieldsBySize(self._parts.encoder)
        # Refuses an encoder that is not local.
        fields = self._fields.get(self._tiles.size, self._tiles.size)
        if self._tiles.size < fields[0].stride:
            raise UserError(
                f"tiles.size: found {self._tiles.size}; must be at least {fields[0].stride}, the "
                f"distance of two positions of {settings.model}"
            )
        check_window(
            self._parts.encoder, fields, self._whole_slides.window, settings.ranks_per_node
        )
        return networks

    def shared_gradients(
        self,
        network: keras.Model,
        batch: Batch,
        scale: Callable[[tf.Tensor], tf.Tensor],
        ranks: Ranks,
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Return this rank's part of the gradients, in two passes over the windows."""
        parts = self._parts
        assert parts is not None
        if self._passes is None:
            self._passes = TwoPasses(
                parts.encoder, parts.aggregator, ranks, window=self._whole_slides.window
            )
        pictures = self._pictures(batch)
        states = self._passes.pool(pictures)
        pooled = tf.constant(
            np.stack([parts.aggregator.pooled(state) for state in states]), tf.float32
        )
        targets = tf.constant(batch.targets[: len(pictures)])
        with tf.GradientTape() as tape:
            tape.watch(pooled)
            sums = self.sums(parts.logits(pooled), targets, tf.ones(len(pictures)))
            loss = scale(sums["loss"])
        head = parts.logits.trainable_variables
        of_pooled, *of_head = tape.gradient(loss, [pooled, *(weight.value for weight in head)])
        of_windows, _ = self._passes.gradients(pictures, states, of_pooled.numpy())
        if not ranks.writes:  # all ranks have computed the same
            of_head = [tf.zeros_like(gradient) for gradient in of_head]
        by_path = {
            weight.path: gradient
            for weight, gradient in zip(
                [*self._passes.variables, *head], [*of_windows, *of_head], strict=True
            )
        }
        return sums, [by_path[weight.path] for weight in network.trainable_variables]

    def _pictures(self, batch: Batch) -> Sequence[Picture]:
        """Return the slides of a batch, without padding, which is at its end."""
        pictures = []
        for number, view, _ in zip(
            batch.inputs["slide"].tolist(),
            batch.inputs["view"].tolist(),
            range(batch.total),
            strict=False,
        ):
            slide = StoredSlide(
                self._reader[number].cells,
                self._tiles.size,
                self._reader.image,
                self._reader.damaged,
                view,
            )
            fields = self._fields.get(*slide.shape)
            pictures.append(slide.picture(fields, self._whole_slides.window))
        return pictures

    def settings(self) -> Mapping[str, Any]:
        """Return how the tiles were extracted, and how slides are seen."""
        whole_slides = self._whole_slides
        seen = whole_slides.model_dump(exclude=set(whole_slides.EXECUTION))
        return {"tiles": self._tiles.model_dump(), "whole_slides": seen}


class SlideClassification(ClassTask, WholeSlideTask):
    """Classes of whole slides: cross-entropy of a softmax; see `TrainingTask`."""

    name = "slide_classification"
