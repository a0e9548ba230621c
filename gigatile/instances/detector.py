"""Detect the instances of images with a trained model."""

import copy
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.instances.description import read_description
from gigatile.instances.detection import Detection
from gigatile.instances.mask_grids import paste_mask
from gigatile.instances.mask_rcnn import MaskRCNN
from gigatile.instances.resizing import pad_image, resize_image, resized_shape
from gigatile.instances.seams import join_windows
from gigatile.instances.window_grid import MIN_OVERLAP, WindowGrid
from gigatile.models.mask_rcnn import parts_of
from gigatile.models.saving import load_model
from gigatile.settings.detection import DetectionSettings

# Images are padded to multiples of this many pixels, so that few shapes occur: each one takes
# seconds to compile.
PADDED = 128
# Larger images are divided into overlapping windows, so that memory does not grow with the image:
# side and overlap in pixels after resizing. Instances of up to the overlap are whole in a window.
WINDOW, OVERLAP = 2048, 256


class Detector:
    """A trained model and how it was trained.

    Attributes:
        instances: the section `instances` of the training.
        detection: the section `detection`; what training does not depend on may differ from it.
        sha256: of the model's file.
    """

    def __init__(self, model: Path, described: Path, detection: dict[str, object]) -> None:
        """Load a model.

        Args:
            model: the file (.keras).
            described: its settings.json.
            detection: keys of the section `detection` that training does not depend on.

        Raises:
            UserError: a file is missing or damaged, or the model is not the described one.
        """
        values = read_description(described, detection)
        self.instances, self.detection = values.instances, values.detection
        self.sha256 = values.sha256
        network = load_model(model, self.sha256, described)
        self.model = MaskRCNN(parts_of(network), self.detection)
        self._graph = cache(self._compiled)

    def _compiled(
        self, count: int, height: int, width: int
    ) -> tf.types.experimental.PolymorphicFunction:
        """Return the detection of `count` images of this shape as a graph."""

        @tf.function(
            input_signature=(
                tf.TensorSpec((count, height, width, 3), tf.uint8),
                tf.TensorSpec((count, 2), tf.int32),
            ),
            autograph=False,
        )
        def detect(images: tf.Tensor, sizes: tf.Tensor) -> tuple[tf.Tensor, ...]:
            chosen, masks = self.model.detect(images, sizes)
            return chosen.boxes, chosen.classes, chosen.scores, chosen.exists, masks

        return detect

    @property
    def categories(self) -> Sequence[str]:
        """The names of the categories, by `Detection.category`."""
        return self.instances.categories

    @property
    def limit(self) -> int:
        """The most detections of a window of `for_windows`."""
        return self.detection.detections_per_image

    def for_windows(self, side: int, threshold: float) -> "Detector":
        """Return a detector for windows of a slide.

        The settings limit the proposals and detections of an image, which has about the size of
        `detection.canvas`. A larger window may have more of them.

        Args:
            side: of the windows, in pixels before resizing.
            threshold: the lowest score.
        """
        settings = self.detection
        tall, wide = resized_shape(side, side, settings)
        share = max(1.0, tall * wide / math.prod(settings.canvas))
        names = ("rpn_pre_nms_topk_test", "rpn_post_nms_topk_test", "detections_per_image")
        limits = {name: math.ceil(share * getattr(settings, name)) for name in names}
        lowest = {"score_threshold": max(threshold, settings.score_threshold)}
        return self._with(settings.model_copy(update=limits | lowest))

    def _with(self, detection: DetectionSettings) -> "Detector":
        """Return a detector with the same model and other settings."""
        other = copy.copy(self)
        other.detection = detection
        other.model = MaskRCNN(self.model.parts, detection)
        other._graph = cache(other._compiled)
        return other

    def detect(self, image: np.ndarray) -> list[Detection]:
        """Return the instances of an image, best first: at most `detections_per_image`.

        Args:
            image: (height, width, 3) uint8.
        """
        height, width = image.shape[:2]
        grid = self._windows(height, width)
        if grid is None:
            return self._detect(image)
        windows = (
            (number, self._detect(image[y1:y2, x1:x2]))
            for number, (y1, x1, y2, x2) in enumerate(grid.boxes.tolist())
        )
        joined = sorted(join_windows(grid, windows), key=lambda instance: -instance.score)
        return joined[: self.detection.detections_per_image]

    def _windows(self, height: int, width: int) -> WindowGrid | None:
        """Return the windows of an image, in its pixels; None: it is not larger than a window."""
        settings = self.detection
        if settings.short_edge is not None:
            return None  # resized to at most `max_edge`
        side = max(2 * MIN_OVERLAP, round(WINDOW / settings.scale))
        if max(height, width) <= side:
            return None
        return WindowGrid(height, width, side, max(MIN_OVERLAP, round(OVERLAP / settings.scale)))

    def _detect(self, image: np.ndarray) -> list[Detection]:
        """Return the instances of an image or a window, best first."""
        (detections,) = self.detect_windows([image])
        return detections

    def detect_windows(self, windows: Sequence[np.ndarray]) -> list[list[Detection]]:
        """Return the instances of each window, best first.

        Args:
            windows: (height, width, 3) uint8, all of the same shape.
        """
        height, width = windows[0].shape[:2]
        tall, wide = resized_shape(height, width, self.detection)
        shape = [math.ceil(side / PADDED) * PADDED for side in (tall, wide)]
        canvas = np.empty((len(windows), *shape, 3), np.uint8)
        for index, window in enumerate(windows):
            pad_image(resize_image(window, tall, wide), canvas[index])
        sizes = np.array([[tall, wide]] * len(windows), np.int32)
        try:
            outputs = self._graph(len(windows), *shape)(tf.constant(canvas), tf.constant(sizes))
        except tf.errors.ResourceExhaustedError:
            raise UserError(
                f"{len(windows)} windows of {height} × {width} pixels do not fit into memory; use "
                "smaller ones or another device"
            ) from None
        arrays = [np.asarray(output) for output in outputs]
        return [
            self._pasted([array[index] for array in arrays], (tall, wide), (height, width))
            for index in range(len(windows))
        ]

    def _pasted(
        self, outputs: Sequence[np.ndarray], resized: tuple[int, int], size: tuple[int, int]
    ) -> list[Detection]:
        """Return the detections of an image in its pixels.

        Args:
            outputs: of the model: boxes, classes, scores, exists, masks.
            resized: height and width as the model sees it, without padding.
            size: height and width before resizing.
        """
        boxes, classes, scores, exists, masks = outputs
        (tall, wide), (height, width) = resized, size
        factor = np.array([height / tall, width / wide] * 2)
        detections = []
        for index in np.flatnonzero(exists).tolist():
            box = boxes[index].astype(np.float64) * factor
            mask, top, left = paste_mask(masks[index], box, height, width)
            if mask.any():
                category, score = int(classes[index]), float(scores[index])
                detections.append(Detection(mask, top, left, category, score, box))
        return detections
