"""The content of evaluation/metrics.json: metrics with their intervals, and their inputs.

The fields of a class are in the order of the file.
"""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from gigatile.json_models import JsonModel

SCHEMA = 2


class Interval(JsonModel):
    """A metric and its 95 % interval; None: not defined.

    Attributes:
        patients: number of patients of the metric, in the class with the fewest.
        no_interval: the reason why there is no interval; None if there is one.
    """

    value: float | None
    low: float | None
    high: float | None
    patients: int
    no_interval: str | None

    @model_validator(mode="after")
    def _complete(self) -> "Interval":
        if (self.low is None, self.high is None) != (self.no_interval is not None,) * 2:
            raise ValueError("a metric has neither an interval nor the reason why, or both")
        return self


class Intervals(JsonModel):
    """Method and settings of the intervals.

    Attributes:
        level: the fraction of intervals that contain the true value.
        least_patients: with fewer there is no interval.
        resamples, seed: the settings.
    """

    level: float
    method: str
    least_patients: int
    resamples: int
    seed: int

    def settings(self) -> dict[str, Any]:
        """Return the section `evaluate` of the settings."""
        return {"resamples": self.resamples, "seed": self.seed}


class Metrics(JsonModel):
    """The metrics of a task; a subclass declares `intervals` and `inputs` among its fields.

    Attributes:
        inputs: the SHA-256 of the files that the metrics were computed from.
    """

    if TYPE_CHECKING:
        intervals: Intervals
        inputs: dict[str, str]

    def settings(self) -> dict[str, Any]:
        """Return the section `evaluate` of the settings."""
        return self.intervals.settings()

    def to_json(self) -> dict[str, Any]:
        """Return the object as it is written; None becomes null."""
        return self.model_dump()


class ByClass(JsonModel):
    """A metric for each class and their mean."""

    macro: Interval
    per_class: dict[str, Interval]


class Accuracy(JsonModel):
    """The share of correct predictions, by the highest score and by majority vote of the tiles."""

    mean_call: Interval
    vote_call: Interval | None = Field(None, exclude_if=lambda interval: interval is None)


class Confusion(JsonModel):
    """Counts; rows: labels, columns: predicted classes, both in the order of the classes."""

    mean_call: list[list[int]]
    vote_call: list[list[int]] | None = Field(None, exclude_if=lambda counts: counts is None)


class Band(JsonModel):
    """The interval of the true positive rate at each of these false positive rates."""

    fpr: list[float]
    low: list[float]
    high: list[float]


class Curve(JsonModel):
    """A ROC curve; the band is None with too few patients."""

    fpr: list[float]
    tpr: list[float]
    band: Band | None = None


class Level(JsonModel):
    """All metrics by slide, or by patient; a curve that is not defined is None."""

    n: int
    patients: int
    accuracy: Accuracy
    roc_auc: ByClass
    average_precision: ByClass
    confusion: Confusion
    roc_curve: dict[str, Curve | None]


class SlideMetrics(Metrics):
    """The metrics of a classification of slides."""

    schema_version: int = Field(SCHEMA, alias="schema")
    classes: list[str]
    intervals: Intervals
    slide: Level
    patient: Level
    inputs: dict[str, str]

    @model_validator(mode="after")
    def _complete(self) -> "SlideMetrics":
        size = len(self.classes)
        for name, level in (("slide", self.slide), ("patient", self.patient)):
            for metric in (level.roc_auc, level.average_precision):
                if missing := [c for c in self.classes if c not in metric.per_class]:
                    raise ValueError(f"{name}: no metrics of class {missing[0]!r}")
            for counts in filter(None, (level.confusion.mean_call, level.confusion.vote_call)):
                if len(counts) != size or any(len(row) != size for row in counts):
                    raise ValueError(f"{name}: a confusion matrix is not {size} × {size}")
        return self


class Mean(Interval):
    """A mean over the `n` cases for which the metric is defined, and its interval."""

    n: int


class RegionMeans(JsonModel):
    """The mean of a metric over the regions, and over the cases for each region."""

    mean: Mean
    per_region: dict[str, Mean]


class Empty(JsonModel):
    """Number of cases without a region in the reference, in the prediction, or in both."""

    truth: int
    prediction: int
    both: int


class Lesions(JsonModel):
    """Number of lesions of all cases: in the reference, missed of them, and false positives."""

    reference: int
    missed: int
    false_positives: int


class CaseMetrics(Metrics):
    """The metrics of a segmentation of cases."""

    schema_version: int = Field(SCHEMA, alias="schema")
    regions: list[str]
    intervals: Intervals
    hd95: Literal["surface", "voxels"]
    n: int
    patients: int
    dice: RegionMeans
    hd95_mm: RegionMeans
    sensitivity: RegionMeans
    specificity: RegionMeans
    lesion_dice: RegionMeans
    lesion_hd95_mm: RegionMeans
    lesion_dilation: int
    lesion_mm3: float
    lesions: dict[str, Lesions]
    empty: dict[str, Empty]
    inputs: dict[str, str]

    @model_validator(mode="after")
    def _complete(self) -> "CaseMetrics":
        parts: dict[str, dict[str, Any]] = {
            "dice": self.dice.per_region,
            "hd95_mm": self.hd95_mm.per_region,
            "sensitivity": self.sensitivity.per_region,
            "specificity": self.specificity.per_region,
            "lesion_dice": self.lesion_dice.per_region,
            "lesion_hd95_mm": self.lesion_hd95_mm.per_region,
            "lesions": self.lesions,
            "empty": self.empty,
        }
        for name, part in parts.items():
            if missing := [region for region in self.regions if region not in part]:
                raise ValueError(f"{name}: no metrics of region {missing[0]!r}")
        return self

    def settings(self) -> dict[str, Any]:
        """Return the section `evaluate` of the settings."""
        keys = ("hd95", "lesion_dilation", "lesion_mm3")
        return super().settings() | {key: getattr(self, key) for key in keys}
