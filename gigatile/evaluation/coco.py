"""COCO's figures: average precision and average recall of boxes or masks.

pycocotools computes the figures (https://cocodataset.org/#detection-eval), with a faster search for
the same matches. `coco_draws` computes the intervals.
"""

import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from gigatile.evaluation.coco_input import CocoData, read_coco

KINDS = ("bbox", "segm")
MAX_DETECTIONS = 100
# The limits of detections per image of AR1 and AR10; the third limit is a parameter.
LOW_LIMITS = (1, 10)
RECALLS = np.linspace(0, 1, 101)
# Positions of the IoU thresholds 0.5 and 0.75 in 0.5, 0.55, … 0.95.
IOU50, IOU75 = 0, 5
# Positions of the ranges of areas and of the limits of detections in the arrays of pycocotools.
ALL_AREAS, SMALL, MEDIUM, LARGE = range(4)
LIMIT_1, LIMIT_10, LAST_LIMIT = range(3)


@dataclass(frozen=True)
class CocoFigures:
    """The twelve figures of COCO; NaN: not defined, because the truth has no such instance.

    Attributes:
        ap: average precision, the mean over the IoU thresholds 0.5, 0.55, … 0.95.
        ap50, ap75: average precision at the IoU thresholds 0.5 and 0.75.
        ap_small, ap_medium, ap_large: of instances below 32² pixels, up to 96², and above.
        ar_1, ar_10, ar_max: average recall with at most 1, 10 and the maximum number of detections
            per image and category.
        ar_small, ar_medium, ar_large: with the maximum, by area.
    """

    ap: float
    ap50: float
    ap75: float
    ap_small: float
    ap_medium: float
    ap_large: float
    ar_1: float
    ar_10: float
    ar_max: float
    ar_small: float
    ar_medium: float
    ar_large: float


@dataclass(frozen=True)
class PrecisionCurves:
    """Precision at the 101 points of `RECALLS`, mean over the categories that have truth.

    Attributes:
        iou50, iou75: (101,) at the IoU thresholds 0.5 and 0.75; NaN without truth.
        mean: (101,) mean over all IoU thresholds.
    """

    iou50: np.ndarray
    iou75: np.ndarray
    mean: np.ndarray


def average_precision(
    truth: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    kind: str,
    max_detections: int = MAX_DETECTIONS,
) -> dict[str, float | None]:
    """Return ap, ap50 and ap75 (see `CocoFigures`) without intervals; None: not defined.

    Args:
        truth, results: as for `read_coco`.
        kind, max_detections: as for `match_detections`.

    Raises:
        UserError: truth or results are not valid.
    """
    figures = asdict(
        coco_figures(match_detections(read_coco(truth, results), kind, max_detections))
    )
    return {
        name: None if math.isnan(figures[name]) else figures[name]
        for name in ("ap", "ap50", "ap75")
    }


def match_detections(data: CocoData, kind: str, max_detections: int = MAX_DETECTIONS) -> COCOeval:
    """Match detections with the truth and accumulate the matches, with pycocotools.

    The area of a detection is that of its box for `bbox` and that of its mask for `segm`, as on
    COCO's server. The arrays of the result's `eval` have the axes IoU thresholds, recall points
    (only of `precision`), categories, ranges of areas, and limits of detections.

    Args:
        data: from `read_coco`.
        kind: "bbox" or "segm".
        max_detections: at least 1; per image and category, those with the highest scores count.
    """
    kept = ("id", "image_id", "category_id", "area", "iscrowd", "score")
    part = "bbox" if kind == "bbox" else "segmentation"
    lists = []
    for entries in (data.annotations, data.results):
        # Copies, because pycocotools writes into the entries.
        copies = [{key: e[key] for key in (*kept, part) if key in e} for e in entries]
        lists.append(copies)
    for detection in lists[1]:
        detection["iscrowd"] = 0
        if kind == "bbox":
            detection["area"] = detection["bbox"][2] * detection["bbox"][3]
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        truth, detections = (_index(data, entries) for entries in lists)
        evaluation = _SparseEvaluation(truth, detections, kind)
        low_limits = (min(limit, max_detections) for limit in LOW_LIMITS)
        evaluation.params.maxDets = [*low_limits, max_detections]
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation


class _SparseEvaluation(COCOeval):
    """COCOeval with the same matches, which stores and visits only the pairs that can match.

    COCOeval visits all pairs of a detection and an instance 40 times. In an image with 5,000 nuclei
    that takes minutes instead of seconds, and the IoUs of all pairs do not fit in memory for many
    such images.
    """

    def computeIoU(self, imgId: int, catId: int) -> tuple[np.ndarray, ...]:
        """Return the pairs that can match: detections by rank, instances by position, and IoUs."""
        ious = np.asarray(super().computeIoU(imgId, catId))
        # pycocotools returns an empty list without instances or detections.
        ious = ious if ious.size else np.empty((0, 0))
        rows, columns = np.nonzero(ious >= self.params.iouThrs[0])
        return rows, columns, ious[rows, columns]

    def evaluateImg(
        self,
        imgId: int,
        catId: int,
        aRng: Sequence[float],
        maxDet: int,
    ) -> dict[str, Any] | None:
        """Return the matches of the detections of a category in an image, as COCOeval does.

        In the order of their scores, each detection gets the free instance with the highest IoU,
        the last one if equal. An instance that is ignored, because it is a crowd or outside the
        range of areas, is matched only if there is no other. A crowd stays free.
        """
        instances, detections = self._gts[imgId, catId], self._dts[imgId, catId]
        if not instances and not detections:
            return None

        def is_outside(entry: Mapping[str, Any]) -> bool:
            return bool(entry["area"] < aRng[0] or entry["area"] > aRng[1])

        ignored = np.array([bool(i["ignore"]) or is_outside(i) for i in instances], bool)
        # Ignored instances last.
        positions = np.argsort(ignored, kind="stable")
        instances, ignored = [instances[i] for i in positions], ignored[positions]
        by_score = np.argsort([-d["score"] for d in detections], kind="stable")[:maxDet]
        detections = [detections[index] for index in by_score]

        rows, columns, ious = self.ious[imgId, catId]
        columns = np.argsort(positions)[columns]
        order = np.lexsort((columns, rows))
        pairs: dict[int, list[tuple[int, float]]] = {}
        for row, column, iou in zip(
            rows[order].tolist(), columns[order].tolist(), ious[order].tolist(), strict=True
        ):
            pairs.setdefault(row, []).append((column, iou))

        thresholds = self.params.iouThrs
        matched_instances = np.zeros((len(thresholds), len(instances)))
        matched = np.zeros((len(thresholds), len(detections)))
        ignored_detections = np.zeros(matched.shape, bool)
        for number, threshold in enumerate(thresholds):
            for row, candidates in pairs.items():
                highest, best = threshold, -1
                for column, iou in candidates:
                    if matched_instances[number, column] and not instances[column]["iscrowd"]:
                        continue
                    if best > -1 and not ignored[best] and ignored[column]:
                        break
                    if iou >= highest:
                        highest, best = iou, column
                if best > -1:
                    matched[number, row] = instances[best]["id"]
                    matched_instances[number, best] = detections[row]["id"]
                    ignored_detections[number, row] = ignored[best]
        outside = np.array([is_outside(detection) for detection in detections], bool)
        return {
            "image_id": imgId,
            "category_id": catId,
            "aRng": aRng,
            "maxDet": maxDet,
            "dtIds": [detection["id"] for detection in detections],
            "gtIds": [instance["id"] for instance in instances],
            "dtMatches": matched,
            "gtMatches": matched_instances,
            "dtScores": [detection["score"] for detection in detections],
            "gtIgnore": ignored.astype(int),
            "dtIgnore": ignored_detections | ((matched == 0) & outside),
        }


def _index(data: CocoData, entries: list[dict[str, Any]]) -> COCO:
    coco = COCO()
    coco.dataset = {
        "images": [
            {"id": number, "height": int(height), "width": int(width)}
            for number, (height, width) in enumerate(data.sizes, 1)
        ],
        "categories": [{"id": n, "name": name} for n, name in enumerate(data.categories, 1)],
        "annotations": entries,
    }
    coco.createIndex()
    return coco


def coco_figures(evaluation: COCOeval) -> CocoFigures:
    """Return the figures as `COCOeval.summarize` defines them, from `match_detections`.

    `summarize` itself computes AP only for a limit of 100 detections.
    """
    precision, recall = evaluation.eval["precision"], evaluation.eval["recall"]
    ap = [_mean(precision[..., area, LAST_LIMIT]) for area in range(4)]
    ar = [_mean(recall[..., area, LAST_LIMIT]) for area in range(4)]
    return CocoFigures(
        ap=ap[ALL_AREAS],
        ap50=_mean(precision[IOU50, ..., ALL_AREAS, LAST_LIMIT]),
        ap75=_mean(precision[IOU75, ..., ALL_AREAS, LAST_LIMIT]),
        ap_small=ap[SMALL],
        ap_medium=ap[MEDIUM],
        ap_large=ap[LARGE],
        ar_1=_mean(recall[..., ALL_AREAS, LIMIT_1]),
        ar_10=_mean(recall[..., ALL_AREAS, LIMIT_10]),
        ar_max=ar[ALL_AREAS],
        ar_small=ar[SMALL],
        ar_medium=ar[MEDIUM],
        ar_large=ar[LARGE],
    )


def category_precision(evaluation: COCOeval) -> np.ndarray:
    """Return the average precision of each category: (categories,), NaN without truth."""
    precision = evaluation.eval["precision"][..., ALL_AREAS, LAST_LIMIT]
    return np.array([_mean(precision[..., k]) for k in range(precision.shape[-1])])


def precision_curves(evaluation: COCOeval) -> PrecisionCurves:
    """Return the precision-recall curves of all instances, from `match_detections`."""
    precision = evaluation.eval["precision"][..., ALL_AREAS, LAST_LIMIT]
    by_category = precision[..., (precision > -1).all(axis=(0, 1))]
    if not by_category.shape[-1]:
        return PrecisionCurves(*np.full((3, len(RECALLS)), np.nan))
    curves = by_category.mean(axis=-1)
    return PrecisionCurves(curves[IOU50], curves[IOU75], curves.mean(axis=0))


def _mean(values: np.ndarray) -> float:
    """Return the mean of the values that are defined; pycocotools writes -1 for the others."""
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else math.nan
