"""Figures of instances without overlap, such as nuclei: AJI, panoptic quality, and F1.

Each pixel belongs to at most one instance, as in a label image. Detections are made so by
`count_instances`: those with a low score are left out, and a pixel of several
detections belongs to the one with the highest score. In the truth, it belongs to the smallest
instance, so that a small object in front of a large one is kept. An instance that has lost all its
pixels does not count.

- AJI: Aggregated Jaccard Index, Kumar et al. 2017, https://doi.org/10.1109/TMI.2017.2677499. Each
  instance of the truth is paired with the prediction that has the highest IoU. AJI is the sum of
  the intersections divided by the sum of the unions, to which instances and predictions without a
  partner add their area. A prediction can be the partner of several instances, as in HoVer-Net's
  `get_fast_aji` (https://github.com/vqdang/hover_net). Categories are ignored.
- PQ: panoptic quality, Kirillov et al. 2019, https://arxiv.org/abs/1801.00868. An instance and a
  prediction of the same category match if their IoU is above 0.5, so each has at most one match.
  With TP matches, FP other predictions and FN other instances,
  F1 = TP / (TP + FP / 2 + FN / 2), also called detection quality (DQ),
  SQ = the mean IoU of the matches, segmentation quality, and PQ = F1 · SQ.
- Precision = TP / (TP + FP), recall = TP / (TP + FN).

A prediction without match or partner is ignored if more than half of its pixels are in a crowd (of
its category for PQ, of any for AJI), as in the panoptic evaluation of COCO
(https://github.com/cocodataset/panopticapi). HoVer-Net adds 1e-6 to the number of matches of SQ; it
is left out here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gigatile.evaluation.coco_input import CocoData, mask_pixels
from gigatile.evaluation.intervals import Draws, Weights

SCORE_THRESHOLD = 0.5
# As in HoVer-Net: with the same IoU, the pair with the larger union is preferred.
_EPSILON = 1e-6


@dataclass(frozen=True)
class LabelledInstances:
    """Instances of an image in which no pixel belongs to two of them.

    Attributes:
        labels: (height * width,) int32 in column-major order, 0 or the number of an instance.
        areas: (n + 1,) int64 pixels of each number; 0 if an instance has lost all its pixels.
        classes: (n + 1,) int64, the index of the category of each number; -1 for the background.
    """

    labels: np.ndarray
    areas: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class InstanceCounts:
    """What the figures of n images and k categories are computed from.

    Attributes:
        matched: (n, k) int64, pairs of an instance and a prediction with an IoU above 0.5.
        false: (n, k) int64, predictions without a match.
        missed: (n, k) int64, instances without a match.
        iou: (n, k) float64, sum of the IoU of the pairs.
        intersection, union: (n,) int64 pixels, the sums of AJI.
    """

    matched: np.ndarray
    false: np.ndarray
    missed: np.ndarray
    iou: np.ndarray
    intersection: np.ndarray
    union: np.ndarray


@dataclass(frozen=True)
class Ratio:
    """A figure that is a sum over images divided by another one; see `ratios` and `aji`.

    Attributes:
        numerator, denominator: (images,) float64.
        lowest: the lowest value for an image; the highest is 1.
    """

    numerator: np.ndarray
    denominator: np.ndarray
    lowest: float = 0.0

    @property
    def value(self) -> float:
        """The figure of all images; NaN if it is not defined."""
        total = self.denominator.sum()
        return float(self.numerator.sum() / total) if total else np.nan

    @property
    def by_image(self) -> np.ndarray:
        """The figure of each image: (images,), NaN where it is not defined."""
        with np.errstate(invalid="ignore"):
            return self.numerator / self.denominator

    def draw(self, weights: Weights, patient_of: np.ndarray) -> Draws:
        """Return the figure of all images in all draws.

        The unseen patient has the denominator of the patient with the largest. Its figure is the
        lowest possible one at its worst and 1 at its best.

        Args:
            weights: the weights of the images.
            patient_of: (images,) int64, the index of the patient of each image.
        """
        used = np.flatnonzero(self.denominator)
        cases = weights.cases[:, used]
        # Sums, because the rounding of a matrix product depends on the number of threads.
        total = (cases * self.numerator[used]).sum(axis=1)
        weight = (cases * self.denominator[used]).sum(axis=1)
        unseen = weights.unseen * np.bincount(patient_of, weights=self.denominator).max()
        with np.errstate(invalid="ignore"):
            ends = [(total + unseen * end) / (weight + unseen) for end in (self.lowest, 1.0)]
        return Draws(*ends)


def count_instances(
    data: CocoData, score_threshold: float = SCORE_THRESHOLD
) -> tuple[InstanceCounts, np.ndarray]:
    """Compare the detections of each image with the truth.

    Args:
        data: from `gigatile.evaluation.coco_input.read_coco`.
        score_threshold: the lowest score of a detection that counts.

    Returns:
        The counts, and the number of predictions of each image: (images,) int64.
    """
    truth: list[list[dict[str, Any]]] = [[] for _ in data.images]
    detections: list[list[dict[str, Any]]] = [[] for _ in data.images]
    for annotation in data.annotations:
        truth[annotation["image_id"] - 1].append(annotation)
    for result in data.results:
        if result["score"] >= score_threshold:
            detections[result["image_id"] - 1].append(result)
    images, predicted = [], np.zeros(len(data.images), np.int64)
    for index, (height, width) in enumerate(data.sizes):
        instances = [entry for entry in truth[index] if not entry["iscrowd"]]
        crowds = [entry for entry in truth[index] if entry["iscrowd"]]
        size = int(height * width)
        # Only the area of the mask can be compared; annotations may give any area.
        areas = [-len(mask_pixels(entry["segmentation"])) for entry in instances]
        first = label_pixels(instances, areas, size)
        second = label_pixels(detections[index], [e["score"] for e in detections[index]], size)
        predicted[index] = np.count_nonzero(second.areas[1:])
        images.append(compare_instances(first, second, crowds, len(data.categories)))
    arrays = [
        np.stack([getattr(i, field.name) for i in images]) for field in fields(InstanceCounts)
    ]
    return InstanceCounts(*arrays), predicted


def label_pixels(
    entries: Sequence[Mapping[str, Any]], priorities: Sequence[float], size: int
) -> LabelledInstances:
    """Give each pixel to the instance with the highest priority.

    Args:
        entries: annotations or results of an image, as in `CocoData`.
        priorities: of each; equal ones are in the order of the entries.
        size: number of pixels of the image.
    """
    labels = np.zeros(size, np.int32)
    # The highest priority last, because it overwrites the others.
    for index in np.argsort(-np.asarray(priorities, np.float64), kind="stable")[::-1]:
        labels[mask_pixels(entries[index]["segmentation"])] = index + 1
    classes = [-1, *(entry["category_id"] - 1 for entry in entries)]
    areas = np.bincount(labels, minlength=len(entries) + 1)
    return LabelledInstances(labels, areas, np.array(classes, np.int64))


def overlapping_pairs(
    truth: LabelledInstances, predicted: LabelledInstances
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the pairs of an instance and a prediction that share pixels.

    Returns:
        The numbers of the instances and of the predictions, the pixels that they share, those of
        their union, and whether they match: five arrays (n,).
    """
    both = np.flatnonzero((truth.labels > 0) & (predicted.labels > 0))
    columns = len(predicted.areas)
    pairs, shared = np.unique(
        truth.labels[both].astype(np.int64) * columns + predicted.labels[both], return_counts=True
    )
    first, second = np.divmod(pairs, columns)
    union = truth.areas[first] + predicted.areas[second] - shared
    matches = (2 * shared > union) & (truth.classes[first] == predicted.classes[second])
    return first, second, shared, union, matches


def compare_instances(
    truth: LabelledInstances,
    predicted: LabelledInstances,
    crowds: Sequence[Mapping[str, Any]],
    categories: int,
) -> InstanceCounts:
    """Return the counts of one image, without the axis of images.

    Args:
        truth: the instances of the truth, without crowds.
        predicted: the predictions.
        crowds: the crowds of the truth, as in `CocoData`.
        categories: number of categories.
    """
    first, second, shared, union, matches = overlapping_pairs(truth, predicted)
    crowded, crowded_class = _mostly_in_crowd(predicted, crowds)

    def count(classes: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(classes, weights=values, minlength=categories)

    exists, is_predicted = truth.areas > 0, predicted.areas > 0
    # Number 0 is the background.
    exists[0] = is_predicted[0] = False
    missed, false = exists.copy(), is_predicted & ~crowded_class
    missed[first[matches]] = false[second[matches]] = False

    # For each instance the pair with the highest IoU, and the first one if equal.
    order = np.lexsort((second, -shared / (union + _EPSILON), first))
    best = order[np.unique(first[order], return_index=True)[1]]
    alone, without_partner = exists.copy(), is_predicted & ~crowded
    alone[first[best]] = without_partner[second[best]] = False
    areas_alone = truth.areas[alone].sum() + predicted.areas[without_partner].sum()
    matched_classes = truth.classes[first[matches]]
    return InstanceCounts(
        matched=count(matched_classes),
        false=count(predicted.classes[false]),
        missed=count(truth.classes[missed]),
        iou=count(matched_classes, shared[matches] / union[matches]),
        intersection=shared[best].sum(),
        union=union[best].sum() + areas_alone,
    )


def _mostly_in_crowd(
    predicted: LabelledInstances, crowds: Sequence[Mapping[str, Any]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return which predictions have most of their pixels in crowds.

    Returns:
        Two arrays (predictions + 1,) bool: in crowds of any category, and of its category.
    """
    by_class: dict[int, list[np.ndarray]] = {}
    for crowd in crowds:
        pixels = mask_pixels(crowd["segmentation"])
        by_class.setdefault(crowd["category_id"] - 1, []).append(pixels)

    def covered(masks: Sequence[np.ndarray]) -> np.ndarray:
        pixels = np.unique(np.concatenate(masks)) if masks else np.empty(0, np.int64)
        inside = np.bincount(predicted.labels[pixels], minlength=len(predicted.areas))
        return np.asarray(2 * inside > predicted.areas)

    own = np.zeros(len(predicted.areas), bool)
    for category, masks in by_class.items():
        own |= covered(masks) & (predicted.classes == category)
    return covered([mask for masks in by_class.values() for mask in masks]), own


def aji(counts: InstanceCounts) -> Ratio:
    """Return the Aggregated Jaccard Index."""
    return Ratio(counts.intersection.astype(np.float64), counts.union.astype(np.float64))


def ratios(counts: InstanceCounts, category: int) -> dict[str, Ratio]:
    """Return the figures of a category: pq, f1, sq, precision and recall.

    Without instances and predictions, they are not defined; SQ needs a match, precision a
    prediction and recall an instance.
    """
    matched, false, missed = (
        getattr(counts, name)[:, category].astype(np.float64)
        for name in ("matched", "false", "missed")
    )
    iou = counts.iou[:, category]
    both = matched + false / 2 + missed / 2
    return {
        "pq": Ratio(iou, both),
        "f1": Ratio(matched, both),
        # The IoU of a match is above 0.5.
        "sq": Ratio(iou, matched, lowest=0.5),
        "precision": Ratio(matched, matched + false),
        "recall": Ratio(matched, matched + missed),
    }
