"""The figures of evaluation/metrics.json, and the words for a figure that is not defined."""

from pydantic import BaseModel, ConfigDict, model_validator


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Interval(_Figures):
    """A figure and its 95 % interval; None where it is not defined.

    Attributes:
        patients: number of patients behind the figure, in the class with the fewest.
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
            raise ValueError("a figure has neither an interval nor the reason why, or both")
        return self


class Intervals(_Figures):
    """Method and settings of the intervals.

    Attributes:
        least_patients: with fewer there is no interval.
        resamples, seed: the settings.
    """

    least_patients: int
    resamples: int
    seed: int

    def settings(self) -> dict[str, int]:
        """Return the section `evaluate` of the settings."""
        return {"resamples": self.resamples, "seed": self.seed}


class ByClass(_Figures):
    """A figure for each class and their mean."""

    macro: Interval
    per_class: dict[str, Interval]


class Accuracy(_Figures):
    """The share of right calls, by either way of calling."""

    mean_call: Interval
    vote_call: Interval


class Confusion(_Figures):
    """Counts, rows truth and columns call, in the order of the classes."""

    mean_call: list[list[int]]
    vote_call: list[list[int]]


class Band(_Figures):
    """The interval of the true positive rate at each of these false positive rates."""

    fpr: list[float]
    low: list[float]
    high: list[float]


class Curve(_Figures):
    """A ROC curve; the band is None where there are too few patients for one."""

    fpr: list[float]
    tpr: list[float]
    band: Band | None = None


class Level(_Figures):
    """Everything measured over slides, or over patients."""

    n: int
    patients: int
    accuracy: Accuracy
    roc_auc: ByClass
    average_precision: ByClass
    confusion: Confusion
    roc_curve: dict[str, Curve | None]


class Metrics(_Figures):
    """evaluation/metrics.json."""

    classes: list[str]
    intervals: Intervals
    slide: Level
    patient: Level
    inputs: dict[str, str]

    @model_validator(mode="after")
    def _complete(self) -> "Metrics":
        size = len(self.classes)
        for name, level in (("slide", self.slide), ("patient", self.patient)):
            for figure in (level.roc_auc, level.average_precision):
                if missing := [c for c in self.classes if c not in figure.per_class]:
                    raise ValueError(f"{name}: no figures of class {missing[0]!r}")
            for counts in (level.confusion.mean_call, level.confusion.vote_call):
                if len(counts) != size or any(len(row) != size for row in counts):
                    raise ValueError(f"{name}: a confusion matrix is not {size} × {size}")
        return self


def truths(level: Level, classes: list[str]) -> dict[str, int]:
    """Return how many slides (or patients) are truly of each class."""
    return {name: sum(row) for name, row in zip(classes, level.confusion.mean_call, strict=True)}


def why_undefined(level: Level, classes: list[str], unit: str, name: str | None = None) -> str:
    """Say why a figure is not defined, for one class or (name None) for all of them.

    Args:
        unit: what is counted, "slide" or "patient".
    """
    counts = truths(level, classes)
    total = sum(counts.values())
    if not total:
        return f"no test {unit} was scored"
    absent = [one for one in classes if not counts[one]] if name is None else []
    if name is not None and not counts[name]:
        absent = [name]
    if absent:
        listed = ", ".join(f"“{one}”" for one in absent)
        return f"no test {unit} of class {listed}"
    if name is not None and counts[name] == total:
        return f"every test {unit} is of class “{name}”"
    return f"too few test {unit}s"
