"""Average precision and recall of COCO in all draws of patient weights, for the intervals.

The matches in an image do not depend on the other images. So pycocotools matches once, and
`weighted_precision` repeats its accumulation for many sets of image weights. With all weights 1,
the precisions equal those of pycocotools.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pycocotools.cocoeval import COCOeval

from gigatile.evaluation.coco import ALL_AREAS, IOU50, IOU75, LAST_LIMIT, RECALLS
from gigatile.evaluation.intervals import Draws, Weights

# A recall this close to 1 is 1: all instances are matched, and the rest is rounding of weights.
_FULL_RECALL = 1 - 1e-9
# Largest number of values in an array of detections × resamples.
_MAX_VALUES = 2**22


@dataclass(frozen=True)
class CategoryMatches:
    """The matches of the d detections of a category, in descending order of their scores.

    Attributes:
        image_of: (d,) int64, the index of the image of each detection.
        matched: (10, d) bool, at each IoU threshold, whether it is matched with an instance.
        ignored: (10, d) bool, whether it does not count, because it is matched with a crowd or with
            an instance outside the range of areas.
        instances: (images,) int64, number of instances of each image in the range of areas, without
            crowds.
    """

    image_of: np.ndarray
    matched: np.ndarray
    ignored: np.ndarray
    instances: np.ndarray


@dataclass(frozen=True)
class Unseen:
    """The weights of an unseen patient for a category: three arrays (resamples,), or 0.

    Attributes:
        missed: of its instances that no detection matches.
        detected: of its instances that the detections with the highest scores match, at all IoU
            thresholds.
        false: of its detections without an instance, with the highest scores.
    """

    missed: np.ndarray | float = 0.0
    detected: np.ndarray | float = 0.0
    false: np.ndarray | float = 0.0


@dataclass(frozen=True)
class PrecisionDraws:
    """The average precision of a category in all draws, mean of the thresholds and at two."""

    ap: Draws
    ap50: Draws
    ap75: Draws


def category_matches(
    evaluation: COCOeval, area: int = ALL_AREAS, limit: int = LAST_LIMIT
) -> list[CategoryMatches]:
    """Return the matches of each category.

    Args:
        evaluation: from `match_detections`.
        area: the range of areas: `coco.ALL_AREAS`, `coco.SMALL`, …
        limit: the limit of detections per image: `coco.LAST_LIMIT`, `coco.LIMIT_1`, …
    """
    images = len(evaluation.params.imgIds)
    most = evaluation.params.maxDets[limit]
    areas = len(evaluation.params.areaRng)
    thresholds = len(evaluation.params.iouThrs)
    categories = []
    for k in range(len(evaluation.params.catIds)):
        start = (k * areas + area) * images
        image_of, scores = [np.empty(0, np.int64)], [np.empty(0)]
        matched, ignored = [np.empty((thresholds, 0), bool)], [np.empty((thresholds, 0), bool)]
        instances = np.zeros(images, np.int64)
        for image, matches in enumerate(evaluation.evalImgs[start : start + images]):
            if matches is None:
                continue
            is_ignored = np.asarray(matches["dtIgnore"], bool)[:, :most]
            # Without the detections that never count, such as those outside the range of areas.
            counted = np.flatnonzero(~is_ignored.all(axis=0))
            image_of.append(np.full(len(counted), image))
            scores.append(np.array(matches["dtScores"], np.float64)[counted])
            ignored.append(is_ignored[:, counted])
            matched.append((matches["dtMatches"][:, counted] > 0) & ~ignored[-1])
            instances[image] = np.count_nonzero(np.asarray(matches["gtIgnore"]) == 0)
        # Stable, as in pycocotools: equal scores are in the order of the images.
        order = np.argsort(-np.concatenate(scores), kind="stable")
        categories.append(
            CategoryMatches(
                image_of=np.concatenate(image_of)[order],
                matched=np.concatenate(matched, axis=1)[:, order],
                ignored=np.concatenate(ignored, axis=1)[:, order],
                instances=instances,
            )
        )
    return categories


def weighted_precision(
    matches: CategoryMatches, weights: np.ndarray, unseen: Sequence[Unseen] = (Unseen(),)
) -> np.ndarray:
    """Return the precision of a category at each recall, for many sets of image weights.

    The instances and detections of an image count as often as its weight says. The precision at a
    recall is the highest at this recall or above, and 0 if the recall is not reached, as in
    `COCOeval.accumulate`.

    Args:
        matches: from `category_matches`; at least one instance has a weight above 0.
        weights: (images, resamples) from 0.
        unseen: additional patients, one at a time.

    Returns:
        (len(unseen), 10 IoU thresholds, 101 recall points, resamples) float64.
    """
    # The draws first: their sums over the detections are in order in memory.
    by_draw = np.ascontiguousarray(weights.T)
    resamples = len(by_draw)
    has_instances = np.flatnonzero(matches.instances)
    counts = matches.instances[has_instances].astype(np.float64)
    instances = (by_draw[:, has_instances] * counts).sum(axis=1)
    columns = by_draw[:, matches.image_of]
    detections = np.cumsum(columns, axis=1)

    precision = np.zeros((len(unseen), len(matches.matched), len(RECALLS), resamples))
    for threshold, matched in enumerate(matches.matched):
        # The precision is highest at a matched detection. The first column is none; it becomes the
        # instances of an unseen patient, if all of them are detected.
        hits = np.flatnonzero(matched)
        true, counted = np.zeros((2, resamples, len(hits) + 1))
        np.cumsum(columns[:, hits], axis=1, out=true[:, 1:])
        counted[:, 1:] = detections[:, hits]
        ignored = np.flatnonzero(matches.ignored[threshold])
        if len(ignored):
            sums = np.zeros((resamples, len(ignored) + 1))
            np.cumsum(columns[:, ignored], axis=1, out=sums[:, 1:])
            counted[:, 1:] -= sums[:, np.searchsorted(ignored, hits)]
        for patient, added in enumerate(unseen):
            missed, detected, false = np.broadcast_arrays(
                *(np.reshape(part, (-1, 1)) for part in (added.missed, added.detected, added.false))
            )
            hits = true + detected
            recall = hits / (instances[:, None] + missed + detected)
            # As in pycocotools, the small number avoids a division by 0.
            hits /= counted + (detected + false + np.spacing(1))
            precision[patient, threshold] = _at_recalls(recall, hits).T
    return precision


def _at_recalls(recall: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Return the highest precision at each of `RECALLS` or above: (resamples, 101).

    Args:
        recall, precision: (resamples, n); recall does not decrease along the second axis.
    """
    resamples, count = recall.shape
    points = np.append(RECALLS[:-1], np.nextafter(_FULL_RECALL, 1))
    # A column without precision: the first one that reaches a recall point that is not reached. It
    # also ends the last range of each draw.
    padded = np.zeros((resamples, count + 1))
    padded[:, :-1] = precision
    first = np.full((resamples, len(points) + 1), count)
    for draw in range(resamples):
        first[draw, :-1] = np.searchsorted(recall[draw], points)
    first += (count + 1) * np.arange(resamples)[:, None]
    highest = np.maximum.reduceat(padded.ravel(), first.ravel()).reshape(first.shape)
    return np.maximum.accumulate(highest[:, ::-1], axis=1)[:, :0:-1]


def draw_precision(
    matches: CategoryMatches, weights: Weights, patient_of: np.ndarray
) -> PrecisionDraws:
    """Return the average precision of a category in all draws.

    The unseen patient has as many instances as the patient with the most. At its best, the
    detections with the highest scores are exactly its instances. At its worst, none of its
    instances is matched, and the same number of false detections have the highest scores. Missed
    instances and false detections have half its weight each, as the classes of a ranking do.

    Args:
        matches: of the category, with at least one instance.
        weights: the weights of the images.
        patient_of: (images,) int64, the index of the patient of each image.
    """
    most = np.bincount(patient_of, weights=matches.instances).max()
    missed, false = weights.halves(2).T * most
    detected = weights.unseen * most
    resamples, thresholds = len(detected), len(matches.matched)
    means = np.empty((2, 3, resamples))
    step = max(_MAX_VALUES // max(len(matches.image_of), 2 * thresholds * len(RECALLS)), 1)
    for start in range(0, resamples, step):
        part = slice(start, start + step)
        precision = weighted_precision(
            matches,
            np.ascontiguousarray(weights.cases[part].T),
            (
                Unseen(missed=missed[part], false=false[part]),
                Unseen(detected=detected[part]),
            ),
        ).mean(axis=2)
        means[:, 0, part] = precision.mean(axis=1)
        means[:, 1:, part] = precision[:, (IOU50, IOU75)]
    worst, best = means
    return PrecisionDraws(*(Draws(*ends) for ends in zip(worst, best, strict=True)))


def draw_recall(
    matches: CategoryMatches, weights: Weights, patient_of: np.ndarray, limit: int
) -> Draws:
    """Return the average recall of a category in all draws, the mean of the IoU thresholds.

    The unseen patient has the images and instances of the patient with the most instances. At its
    worst none of them is detected, at its best as many as the limit allows.

    Args:
        matches: of the category, with at least one instance.
        weights: the weights of the images.
        patient_of: (images,) int64, the index of the patient of each image.
        limit: number of detections per image that count.
    """
    counted_cases = np.bincount(
        matches.image_of, weights=matches.matched.mean(axis=0), minlength=len(matches.instances)
    )
    used = np.flatnonzero(matches.instances)
    cases = weights.cases[:, used]
    # Sums, because the rounding of a matrix product depends on the number of threads.
    detected = (cases * counted_cases[used]).sum(axis=1)
    instances = (cases * matches.instances[used]).sum(axis=1)
    most = np.bincount(patient_of, weights=matches.instances)
    allowed = np.bincount(patient_of, weights=np.minimum(matches.instances, limit))
    every = instances + weights.unseen * most.max()
    best = weights.unseen * allowed[most.argmax()]
    return Draws(detected / every, (detected + best) / every)
