"""Metrics of detected instances: evaluation/metrics.json of an instance segmentation.

COCO's figures are those of `coco`, with the intervals of `coco_draws`; the others are those of
`instances`. All intervals are over patients (see `intervals`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from pycocotools.cocoeval import COCOeval
from pydantic import Field, model_validator

from gigatile.errors import UserError
from gigatile.evaluation.coco import (
    ALL_AREAS,
    LARGE,
    LAST_LIMIT,
    LIMIT_1,
    LIMIT_10,
    MAX_DETECTIONS,
    MEDIUM,
    RECALLS,
    SMALL,
    CocoFigures,
    PrecisionCurves,
    category_precision,
    coco_figures,
    match_detections,
    precision_curves,
)
from gigatile.evaluation.coco_draws import (
    category_matches,
    draw_precision,
    draw_recall,
)
from gigatile.evaluation.coco_input import CocoData, read_coco
from gigatile.evaluation.instances import (
    SCORE_THRESHOLD,
    InstanceCounts,
    aji,
    count_instances,
    ratios,
)
from gigatile.evaluation.intervals import (
    Draws,
    Weights,
    describe_intervals,
    draw_mean,
    rounded,
    too_few_patients,
    with_interval,
)
from gigatile.evaluation.metrics_file import ByClass, Interval, Intervals, Mean, Metrics
from gigatile.json_models import JsonModel
from gigatile.settings.evaluate import EvaluationSettings

SCHEMA = 1
# COCO's figures of recall: the name after "ar_", the range of areas and the limit of detections.
# Those of precision have the last limit.
RANGES = (
    ("1", ALL_AREAS, LIMIT_1),
    ("10", ALL_AREAS, LIMIT_10),
    ("max", ALL_AREAS, LAST_LIMIT),
    ("small", SMALL, LAST_LIMIT),
    ("medium", MEDIUM, LAST_LIMIT),
    ("large", LARGE, LAST_LIMIT),
)
# Of each category for which a figure is defined: the draws and the number of patients.
DrawsOfCategories = dict[str, tuple[Draws, int]]


class PrecisionRecall(JsonModel):
    """Precision at each recall, at IoU 0.5, at IoU 0.75, and the mean of all thresholds.

    A curve is the mean over the categories; None without truth.
    """

    recall: list[float]
    iou50: list[float] | None
    iou75: list[float] | None
    mean: list[float] | None


class CocoMetrics(JsonModel):
    """The twelve figures of COCO for boxes or masks (see `coco.CocoFigures`).

    Attributes:
        per_category: average precision of each category.
        curves: the precision-recall curves.
    """

    ap: Interval
    ap50: Interval
    ap75: Interval
    ap_small: Interval
    ap_medium: Interval
    ap_large: Interval
    ar_1: Interval
    ar_10: Interval
    ar_max: Interval
    ar_small: Interval
    ar_medium: Interval
    ar_large: Interval
    per_category: dict[str, Interval]
    curves: PrecisionRecall


class PairCounts(JsonModel):
    """Number of matched instances, of other predictions, and of other instances."""

    matched: int
    false: int
    missed: int


class InstanceMetrics(JsonModel):
    """The figures of instances without overlap (see `instances`).

    Attributes:
        predictions: number of detections with the score and at least one pixel that is not in a
            detection with a higher score.
        aji: of all images together.
        aji_of_images: the mean over the images with an instance or a prediction.
        counts: by category.
    """

    score_threshold: float
    predictions: int
    aji: Interval
    aji_of_images: Mean
    pq: ByClass
    f1: ByClass
    sq: ByClass
    precision: ByClass
    recall: ByClass
    counts: dict[str, PairCounts]


class DetectionMetrics(Metrics):
    """The metrics of an instance segmentation.

    Attributes:
        max_detections: per image and category, for COCO's figures.
        n: number of images.
        instances, crowds: of the truth.
        detections: of all scores.
        instances_of_categories: number of instances of each category, without crowds.
    """

    schema_version: int = Field(SCHEMA, alias="schema")
    categories: list[str]
    intervals: Intervals
    max_detections: int
    n: int
    patients: int
    instances: int
    crowds: int
    detections: int
    instances_of_categories: dict[str, int]
    box: CocoMetrics
    mask: CocoMetrics
    separate: InstanceMetrics
    inputs: dict[str, str]

    def settings(self) -> dict[str, Any]:
        """Return the section `evaluate` of the settings."""
        return self.intervals.settings() | {"score_threshold": self.separate.score_threshold}

    @model_validator(mode="after")
    def _complete(self) -> "DetectionMetrics":
        parts: dict[str, dict[str, Any]] = {
            "box": self.box.per_category,
            "mask": self.mask.per_category,
            "pq": self.separate.pq.per_class,
            "f1": self.separate.f1.per_class,
            "sq": self.separate.sq.per_class,
            "precision": self.separate.precision.per_class,
            "recall": self.separate.recall.per_class,
            "counts": self.separate.counts,
            "instances_of_categories": self.instances_of_categories,
        }
        for name, part in parts.items():
            if missing := [category for category in self.categories if category not in part]:
                raise ValueError(f"{name}: no metrics of category {missing[0]!r}")
        return self


def evaluate_detections(
    truth: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    patients: Mapping[Any, str],
    settings: EvaluationSettings,
    max_detections: int = MAX_DETECTIONS,
    score_threshold: float = SCORE_THRESHOLD,
    inputs: Mapping[str, str] | None = None,
) -> DetectionMetrics:
    """Compute all metrics of detected instances.

    The mean over categories leaves out those for which a figure is not defined: without truth for
    COCO's figures. It has no interval if another category has too few patients.

    Args:
        truth: annotations in COCO's format; see `coco_input.read_coco`.
        results: detections in COCO's format.
        patients: the patient of each image, by its id.
        settings: number of draws for the intervals, and their seed.
        max_detections: for COCO's figures, per image and category.
        score_threshold: for the other figures, the lowest score of a detection.
        inputs: the SHA-256 of the files of truth and detections, by name.

    Raises:
        UserError: truth or results are not valid, or an image has no patient.
    """
    data = read_coco(truth, results)
    without = [image for image in data.images if image not in patients]
    if without:
        raise UserError(
            f"{len(without)} of {len(data.images)} images have no patient, first {without[0]!r}"
        )
    names = np.array([patients[image] for image in data.images])
    weights = Weights(names, settings)
    patient_of = np.unique(names, return_inverse=True)[1]
    instances = [entry for entry in data.annotations if not entry["iscrowd"]]
    by_category = np.bincount(
        [entry["category_id"] - 1 for entry in instances], minlength=len(data.categories)
    )
    return DetectionMetrics(
        categories=list(data.categories),
        intervals=describe_intervals(settings),
        max_detections=max_detections,
        n=len(data.images),
        patients=len(np.unique(names)),
        instances=len(instances),
        crowds=len(data.annotations) - len(instances),
        detections=len(data.results),
        instances_of_categories=dict(zip(data.categories, by_category.tolist(), strict=True)),
        box=_coco_metrics(data, "bbox", max_detections, weights, patient_of),
        mask=_coco_metrics(data, "segm", max_detections, weights, patient_of),
        separate=_instance_metrics(data, score_threshold, weights, patient_of),
        inputs=dict(inputs or {}),
    )


def _coco_metrics(
    data: CocoData, kind: str, max_detections: int, weights: Weights, patient_of: np.ndarray
) -> CocoMetrics:
    evaluation = match_detections(data, kind, max_detections)
    draws = _draws_of_figures(evaluation, data.categories, weights, patient_of)
    means = {
        name: _mean_of_categories(value, draws[name])
        for name, value in asdict(coco_figures(evaluation)).items()
    }
    per_category = {}
    for name, value in zip(data.categories, category_precision(evaluation), strict=True):
        drawn, count = draws["ap"].get(name, (None, 0))
        too_few = too_few_patients({f"of category {name}": count})
        per_category[name] = with_interval(value, drawn, count, too_few)
    curves = _curves(precision_curves(evaluation))
    return CocoMetrics.model_validate({**means, "per_category": per_category, "curves": curves})


def _draws_of_figures(
    evaluation: COCOeval, categories: Sequence[str], weights: Weights, patient_of: np.ndarray
) -> dict[str, DrawsOfCategories]:
    """Return the draws of COCO's twelve figures, from `match_detections`."""
    draws: dict[str, DrawsOfCategories] = {field.name: {} for field in fields(CocoFigures)}
    for name, area, limit in RANGES:
        most = evaluation.params.maxDets[limit]
        for category, matches in zip(
            categories, category_matches(evaluation, area, limit), strict=True
        ):
            count = weights.patients(matches.instances > 0)
            if not count:
                continue
            drawn = {f"ar_{name}": draw_recall(matches, weights, patient_of, most)}
            if limit == LAST_LIMIT:
                precision = draw_precision(matches, weights, patient_of)
                drawn |= vars(precision) if area == ALL_AREAS else {f"ap_{name}": precision.ap}
            for figure, values in drawn.items():
                draws[figure][category] = values, count
    return draws


def _mean_of_categories(value: float, drawn: DrawsOfCategories) -> Interval:
    """Return the mean of a figure over the categories for which it is defined.

    Args:
        value: the mean; NaN if there is no such category.
        drawn: of these categories.
    """
    if not drawn:
        return with_interval(value, None, 0)
    name, (_, fewest) = min(drawn.items(), key=lambda item: item[1][1])
    too_few = too_few_patients({f"of category {name}": fewest})
    return with_interval(value, Draws.mean([draws for draws, _ in drawn.values()]), fewest, too_few)


def _instance_metrics(
    data: CocoData, score_threshold: float, weights: Weights, patient_of: np.ndarray
) -> InstanceMetrics:
    counts, predictions = count_instances(data, score_threshold)
    index = aji(counts)
    by_image = index.by_image
    defined = ~np.isnan(by_image)
    count = weights.patients(defined)
    too_few = too_few_patients({"": count})
    mean = with_interval(
        float(by_image[defined].mean()) if count else math.nan,
        draw_mean(by_image, weights, 0, 1),
        count,
        too_few,
    )
    return InstanceMetrics(
        score_threshold=score_threshold,
        predictions=int(predictions.sum()),
        aji=with_interval(index.value, index.draw(weights, patient_of), count, too_few),
        aji_of_images=Mean(**mean.model_dump(), n=int(defined.sum())),
        **_ratio_metrics(data.categories, counts, weights, patient_of),
        counts={
            name: PairCounts(
                matched=int(counts.matched[:, k].sum()),
                false=int(counts.false[:, k].sum()),
                missed=int(counts.missed[:, k].sum()),
            )
            for k, name in enumerate(data.categories)
        },
    )


def _ratio_metrics(
    categories: Sequence[str], counts: InstanceCounts, weights: Weights, patient_of: np.ndarray
) -> dict[str, ByClass]:
    by_category = {name: ratios(counts, k) for k, name in enumerate(categories)}
    metrics = {}
    for metric in ("pq", "f1", "sq", "precision", "recall"):
        per_category, values = {}, []
        draws: DrawsOfCategories = {}
        for name in categories:
            ratio = by_category[name][metric]
            count = weights.patients(ratio.denominator > 0)
            drawn = ratio.draw(weights, patient_of) if count else None
            per_category[name] = with_interval(
                ratio.value, drawn, count, too_few_patients({f"of category {name}": count})
            )
            if drawn is not None:
                values.append(ratio.value)
                draws[name] = drawn, count
        macro = _mean_of_categories(float(np.mean(values)) if values else math.nan, draws)
        metrics[metric] = ByClass(macro=macro, per_class=per_category)
    return metrics


def _curves(curves: PrecisionCurves) -> PrecisionRecall:
    defined = not np.isnan(curves.mean).any()

    def to_list(values: np.ndarray) -> list[float] | None:
        return [rounded(value) for value in values] if defined else None

    return PrecisionRecall(
        recall=[rounded(value) for value in RECALLS],
        iou50=to_list(curves.iou50),
        iou75=to_list(curves.iou75),
        mean=to_list(curves.mean),
    )
