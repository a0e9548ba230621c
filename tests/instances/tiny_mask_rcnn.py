"""A Mask R-CNN with random weights, and images with a few instances drawn by hand."""

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from gigatile.instances.mask_rcnn import MaskRCNN
from gigatile.models.mask_rcnn import build_mask_rcnn, parts_of
from gigatile.settings.detection import DetectionSettings
from gigatile.settings.train import TrainSettings

CANVAS = 64
SETTINGS = DetectionSettings(
    canvas=(CANVAS, CANVAS),
    anchor_sizes=(9, 14, 23, 34, 50),
    rpn_batch_size_per_image=8,
    roi_batch_size_per_image=12,
    rpn_pre_nms_topk_train=8,
    rpn_post_nms_topk_train=20,
    rpn_pre_nms_topk_test=30,
    rpn_post_nms_topk_test=15,
    detections_per_image=10,
    score_threshold=0.05,
    nms_threshold=0.4,
)
# Layers with small initial weights, and factors with which their outputs are like those of a
# trained model.
FACTORS = {"objectness": 20, "deltas": 5, "classes": 20, "box_deltas": 200, "mask_logits": 300}


def build_tiny_network(categories: int = 2, mixed: bool = False, **changed: float) -> keras.Model:
    """Build the Keras model; `changed` are factors other than those of `FACTORS`."""
    factors = FACTORS | changed
    settings = TrainSettings(model="mask_small", seed=5, mixed_precision=mixed)
    network = build_mask_rcnn(settings, categories, len(SETTINGS.anchor_ratios), 0).model
    parts = parts_of(network)
    for part in (parts.trunk, parts.box_head, parts.mask_head):
        for layer in part.layers:
            for weight in layer.weights[:1] if layer.name in factors else ():
                weight.assign(weight * factors[layer.name])
    return network


def build_tiny_model(categories: int = 2, **changed: float) -> MaskRCNN:
    """Build a model; see `build_tiny_network`."""
    return MaskRCNN(parts_of(build_tiny_network(categories, **changed)), SETTINGS)


@dataclass
class Image:
    """An image with its instances: masks (height, width) bool, and their classes from 1."""

    pixels: np.ndarray
    masks: list[np.ndarray]
    classes: list[int]
    seed: int

    @property
    def boxes(self) -> np.ndarray:
        return np.array([box_of(mask) for mask in self.masks], np.float32).reshape(-1, 4)


def box_of(mask: np.ndarray) -> list[int]:
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    return [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]


def ellipse(height: int, width: int, box: tuple[float, ...]) -> np.ndarray:
    y, x = np.ogrid[:height, :width]
    centre = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    radii = (box[2] - box[0]) / 2, (box[3] - box[1]) / 2
    down, across = (y + 0.5 - centre[0]) / radii[0], (x + 0.5 - centre[1]) / radii[1]
    return down**2 + across**2 <= 1


def draw_image(height: int, width: int, seed: int, *instances: tuple[int, tuple]) -> Image:
    """Return an image of noise with an ellipse for each (class, box)."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    masks = [ellipse(height, width, box) for _, box in instances]
    for mask in masks:
        pixels[mask] = pixels[mask] // 4 + 150
    return Image(pixels, masks, [number for number, _ in instances], seed)


def draw_images() -> list[Image]:
    """Return four images: whole, padded, without instances, and with instances of a pixel."""
    whole = draw_image(
        *(CANVAS, CANVAS, 1),
        *[(1, (3, 5, 22, 18)), (2, (30, 20, 61, 57)), (1, (10, 37, 19, 60)), (2, (40, 2, 53, 17))],
    )
    padded = draw_image(45, 38, 2, (2, (8, 9, 29, 22)), (1, (20, 24, 43, 37)))
    empty = draw_image(CANVAS, 50, 3)
    tiny = draw_image(CANVAS, CANVAS, 4, (1, (7, 9, 8, 10)), (2, (63, 63, 64, 64)))
    return [whole, padded, empty, tiny]


def batch_of(images: list[Image], slots: int = 0, more_pixels: int = 3, canvas=(CANVAS, CANVAS)):
    """Return inputs (n, *canvas, 3) float32 and the targets of `MaskRCNN.losses`."""
    slots = max(slots, *(len(image.masks) for image in images), 1)
    inputs = np.full((len(images), *canvas, 3), 117, np.float32)
    shapes = {"boxes": (slots, 4), "classes": (slots,), "crops": (slots, 4), "offsets": (slots,)}
    targets = {name: np.zeros((len(images), *shape), np.int32) for name, shape in shapes.items()}
    targets["boxes"] = targets["boxes"].astype(np.float32)
    targets["sizes"] = np.array([image.pixels.shape[:2] for image in images], np.int32)
    targets["seeds"] = np.array([(image.seed, -image.seed) for image in images], np.int32)
    coded = []
    for index, image in enumerate(images):
        height, width = image.pixels.shape[:2]
        inputs[index, :height, :width] = image.pixels
        count, offset, parts = len(image.masks), 0, []
        targets["boxes"][index, :count] = image.boxes
        targets["crops"][index, :count] = image.boxes
        targets["classes"][index, :count] = image.classes
        for slot, (mask, crop) in enumerate(zip(image.masks, image.boxes.astype(int), strict=True)):
            targets["offsets"][index, slot] = offset
            parts.append(mask[crop[0] : crop[2], crop[1] : crop[3]].ravel())
            offset += parts[-1].size
        coded.append(np.concatenate([*parts, []]))
    length = max(map(len, coded)) + more_pixels
    padded = [np.pad(part, (0, length - len(part))) for part in coded]
    targets["pixels"] = np.array(padded, np.uint8)
    return tf.constant(inputs), {name: tf.constant(array) for name, array in targets.items()}
