"""What the files external/metrics.json of all tasks have in common, and that of slides."""

from pydantic import Field

from gigatile.evaluation.calibration_file import Calibration, PointFigures
from gigatile.evaluation.metrics_file import Interval, SlideMetrics
from gigatile.json_models import Written

SCHEMA = 1


class Difference(Written):
    """A figure of a new cohort minus that of the test split, with its 95 % interval.

    Attributes:
        low, high: None: one of the two figures has no interval.
    """

    value: float | None
    low: float | None
    high: float | None


class LeftOut(Written):
    """A slide, case or image that counts in no figure."""

    id: str
    reason: str


class ExternalFile(Written):
    """The content of external/metrics.json that does not depend on the task.

    Attributes:
        left_out: slides, cases or images that count in no figure.
        compared: whether the new data were compared with the cohort of the model.
        inputs: SHA-256 of the files that the figures were computed from.
    """

    schema_version: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    left_out: list[LeftOut]
    compared: bool
    inputs: dict[str, str]


class Site(Written):
    """The figures of the slides of a site.

    Attributes:
        n, patients: number of slides, and of their patients.
    """

    n: int
    patients: int
    accuracy: Interval
    roc_auc: Interval
    brier: Interval


class ExternalMetrics(ExternalFile):
    """The content of external/metrics.json of slides.

    Attributes:
        metrics, calibration, points: of the new cohort; None: no slide was left.
        differences: from the test split, by the name of the figure.
        sites: by name, at most 40 with the most patients; empty if the sheet names fewer than two.
    """

    classes: list[str]
    metrics: SlideMetrics | None
    calibration: Calibration | None
    points: list[PointFigures]
    differences: dict[str, Difference]
    sites: dict[str, Site]
