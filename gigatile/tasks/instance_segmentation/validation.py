"""Validation of Mask R-CNN: the losses, and COCO's average precision, on the validation split."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.evaluation.coco import average_precision
from gigatile.files import read_json
from gigatile.instances.detector import Detector
from gigatile.instances.mask_rcnn import LOSSES
from gigatile.records.instances import decode_annotated
from gigatile.records.shards import ShardReader
from gigatile.records.tfrecord import read_sized
from gigatile.tasks.instance_segmentation.coco_results import CocoTruth, coco_results
from gigatile.tasks.instance_segmentation.definition import CRITERION
from gigatile.tasks.instance_segmentation.samples import Images
from gigatile.training.sample_order import Samples
from gigatile.training.segments import Segment
from gigatile.training.validation import Validation


def validate(segment: Segment, manifest: Path, settings: Mapping[str, Any]) -> Validation:
    """Return the mean losses of the images, and COCO's average precision.

    The losses are those of training, for images without augmentation; of an image that is larger
    than the canvas, a part is used.

    Args:
        segment: the segment of the model.
        manifest: manifest of the shards, which must have the split valid.
        settings: contains the keys of the section `detection` that training does not depend on.

    Raises:
        UserError: a file is missing or damaged, or an image has no annotations.
    """
    detector = Detector(segment.model, segment.described, settings["detection"])
    reader = ShardReader(manifest, "valid")
    described = read_json(segment.described)["train"]
    limit = (described["limit_batches"] or len(reader)) * described["batch_size"]
    images = min(len(reader), limit)
    if not images:
        raise UserError(f"{manifest}: has no image in the split valid")
    means = _mean_losses(detector, reader, images)
    truth, results = CocoTruth(detector.instances.categories), []
    for number in range(images):
        image = decode_annotated(read_sized(*reader.locate(number)))
        if image.instances is None:
            raise UserError(f"image {image.image_id}: has no annotations to validate with")
        size = image.height, image.width
        identifier = truth.add(image.image_id, *size, image.instances)
        results += coco_results(identifier, *size, detector.detect(image.pixels()))
    content = truth.to_json()
    for name, kind in (("mask", "segm"), ("box", "bbox")):
        count = detector.detection.detections_per_image
        for figure, value in average_precision(content, results, kind, count).items():
            means[f"{name}_{figure}"] = value or 0.0
    return Validation("images", images, means, criterion=CRITERION)


def _mean_losses(detector: Detector, reader: ShardReader, images: int) -> dict[str, float]:
    plain = {"flips": "none", "scale_jitter": 0.0, "intensity": 0.0, "train_short_edges": None}
    source = Images(reader, detector.detection.model_copy(update=plain))
    graph = tf.function(detector.model.losses, reduce_retracing=True)
    totals = np.zeros(len(LOSSES))
    for number in range(images):
        # The seed of an image is its number: the sampled proposals are the same in each segment.
        samples = Samples(np.array([number]), np.zeros(1, np.int64), np.array([number], np.uint64))
        input_spec, target_specs = source.specs(samples)
        inputs = np.empty((1, *input_spec.shape), input_spec.dtype)
        targets = {
            name: np.empty((1, *spec.shape), spec.dtype) for name, spec in target_specs.items()
        }
        source.fill(samples, inputs, targets)
        terms = graph(tf.constant(inputs), {k: tf.constant(v) for k, v in targets.items()})
        totals += [float(terms[name][0]) for name in LOSSES]
    means = dict(zip(LOSSES, (totals / images).tolist(), strict=True))
    return {"loss": float(totals.sum() / images), **means}
