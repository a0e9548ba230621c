"""The content of operating_points.json and calibration.json.

The fields of a class are in the order of the file.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from gigatile.evaluation.metrics_file import Interval, Intervals
from gigatile.json_models import Written

SCHEMA = 1
Criterion = Literal["sensitivity", "specificity"]


class OperatingPoint(Written):
    """A threshold: a slide is called positive if its score of the class is at least as high.

    Attributes:
        positive: the class.
        criterion, wanted: what the threshold was chosen for: this sensitivity or specificity, at
            least.
        threshold: None: none was chosen.
        reason: why none was chosen; None if one was.
        sensitivity, specificity: on the slides that it was chosen on.
    """

    positive: str
    criterion: Criterion
    wanted: float = Field(gt=0, le=1)
    threshold: float | None
    reason: str | None
    sensitivity: float | None
    specificity: float | None

    @model_validator(mode="after")
    def _complete(self) -> "OperatingPoint":
        if (self.threshold is None) != (self.reason is not None):
            raise ValueError("an operating point has neither a threshold nor a reason, or both")
        return self


class OperatingPoints(Written):
    """The content of operating_points.json.

    Attributes:
        classes: in the order of the scores.
        split: the thresholds were chosen on its slides.
        slides, patients: their numbers.
        labels: number of slides with each label.
        inputs: SHA-256 of the files that the thresholds were chosen from.
    """

    schema_version: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    classes: list[str]
    split: Literal["valid"]
    slides: int
    patients: int
    labels: dict[str, int]
    points: list[OperatingPoint]
    inputs: dict[str, str]

    @classmethod
    def none(cls, classes: Sequence[str]) -> "OperatingPoints":
        """Return that no threshold was chosen, as for the mean of several models."""
        return cls(
            classes=list(classes),
            split="valid",
            slides=0,
            patients=0,
            labels={},
            points=[],
            inputs={},
        )


class PointFigures(Written):
    """The figures of a cohort at an operating point.

    Attributes:
        called: number of slides that are called positive.
        ppv, npv: share of correct ones among the slides that are called positive, or negative.
    """

    point: OperatingPoint
    called: int
    sensitivity: Interval
    specificity: Interval
    ppv: Interval
    npv: Interval


class Bin(Written):
    """The slides with a score between two edges.

    Attributes:
        low, high: the edges; a score at an edge is in the bin below it.
        slides: their number.
        score: their mean score; None without slides.
        observed: the share of them that has the class.
    """

    low: float
    high: float
    slides: int
    score: float | None
    observed: Interval


class CalibrationError(Interval):
    """An expected calibration error.

    Attributes:
        by_chance: the error that a perfectly calibrated model stays below in 95 % of cohorts with
            these scores and patients.
    """

    by_chance: float | None


class NetBenefit(Written):
    """The net benefit at a threshold of the score.

    Attributes:
        model: of calling a slide positive if its score is at least the threshold.
        all_positive: of calling all slides positive.
    """

    threshold: float
    model: Interval
    all_positive: float


class Calibration(Written):
    """How scores agree with observed shares, and what decisions by them are worth, by slide.

    Attributes:
        brier: the Brier score of all classes, from 0 to 2.
        brier_per_class: of each class against the others, from 0 to 1.
        error: expected calibration error of the highest score.
        error_per_class: of the score of each class.
        curve: the bins of each class.
        net_benefit: the decision curve of each class.
    """

    brier: Interval
    brier_per_class: dict[str, Interval]
    error: CalibrationError
    error_per_class: dict[str, CalibrationError]
    curve: dict[str, list[Bin]]
    net_benefit: dict[str, list[NetBenefit]]


class CalibrationFile(Written):
    """The content of calibration.json.

    Attributes:
        n, patients: number of slides, and of their patients.
        inputs: SHA-256 of the files that the figures were computed from.
    """

    schema_version: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    classes: list[str]
    intervals: Intervals
    n: int
    patients: int
    calibration: Calibration
    points: list[PointFigures]
    inputs: dict[str, str]
