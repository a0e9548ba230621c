"""Training of instance segmentation: Mask R-CNN."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.instances.mask_rcnn import LOSSES, MaskRCNN
from gigatile.models.mask_rcnn import build_mask_rcnn, parts_of
from gigatile.models.networks import Networks
from gigatile.records.shards import ShardReader
from gigatile.settings.detection import DetectionSettings
from gigatile.settings.instances import InstanceSettings
from gigatile.settings.section import check_section
from gigatile.settings.train import TrainSettings
from gigatile.tasks.instance_segmentation.samples import Images
from gigatile.training.sample_order import Sampling, window_size
from gigatile.training.task import TrainingTask


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Return the task for its settings, as `Task.training` returns them."""
    return InstanceSegmentation(
        check_section(InstanceSettings, settings["instances"], "instances"),
        check_section(DetectionSettings, settings["detection"], "detection"),
    )


class InstanceSegmentation(TrainingTask):
    """Images with boxes, classes and masks; see `TrainingTask`."""

    name, samples, metrics = "instance_segmentation", "images", LOSSES

    def __init__(self, instances: InstanceSettings, detection: DetectionSettings) -> None:
        self._instances, self._detection = instances, detection

    def source(self, reader: ShardReader, augmented: bool = True) -> Images:
        """Return the reader of images."""
        return Images(reader, self._detection)

    def sampling(self, reader: ShardReader, settings: TrainSettings) -> Sampling:
        """Return what the order of the images depends on: each once per epoch."""
        if not len(reader):
            raise UserError("no image to train on")
        window = window_size(settings.shuffle_mb, reader.bytes, len(reader.counts))
        return Sampling(counts=reader.counts, seed=settings.seed, window=window)

    def networks(self, reader: ShardReader, settings: TrainSettings, pretrained: bool) -> Networks:
        """Build a Mask R-CNN for the categories of the settings."""
        return build_mask_rcnn(
            settings,
            len(self._instances.categories),
            len(self._detection.anchor_ratios),
            self._detection.frozen_stages,
            pretrained,
        )

    def gradients(
        self,
        network: keras.Model,
        inputs: tf.Tensor,
        targets: Mapping[str, tf.Tensor],
        weights: tf.Tensor,
        scale: Callable[[tf.Tensor], tf.Tensor],
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Return the sums of the losses, and the gradients; see `TrainingTask.gradients`."""
        model = MaskRCNN(parts_of(network), self._detection)
        with tf.GradientTape() as tape:
            sums = self.sums(model.losses(inputs, targets), targets, weights)
            loss = scale(sums["loss"])
        variables = [weight.value for weight in network.trainable_variables]
        unconnected = tf.UnconnectedGradients.ZERO
        return sums, tape.gradient(loss, variables, unconnected_gradients=unconnected)

    def sums(
        self, outputs: Mapping[str, tf.Tensor], targets: Any, weights: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Return the weighted sums of the terms of the loss, and of all together.

        Args:
            outputs: of `MaskRCNN.losses`.
            targets: not used.
            weights: (n,) float32.
        """
        terms = {name: tf.reduce_sum(outputs[name] * weights) for name in LOSSES}
        return {"loss": tf.add_n(list(terms.values())), **terms}

    def describe_data(self, reader: ShardReader) -> str:
        """Return the number of images and of categories."""
        return f"{len(reader)} images, {len(self._instances.categories)} categories"

    def settings(self) -> Mapping[str, Any]:
        """Return how images were prepared, and how the model sees them."""
        detection = self._detection.model_dump(exclude=set(self._detection.INFERENCE))
        return {
            "instances": self._instances.model_dump(exclude={"stall_minutes", "jobs"}),
            "detection": detection,
        }
