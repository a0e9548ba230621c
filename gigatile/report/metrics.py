"""Metrics with their intervals, as in evaluation/metrics.json of every task."""

from typing import Any

from pydantic import model_validator

from gigatile.json_models import JsonModel


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
        least_patients: with fewer there is no interval.
        resamples, seed: the settings.
    """

    least_patients: int
    resamples: int
    seed: int

    def settings(self) -> dict[str, int]:
        """Return the section `evaluate` of the settings."""
        return {"resamples": self.resamples, "seed": self.seed}


class Metrics(JsonModel):
    """evaluation/metrics.json: what all tasks have."""

    intervals: Intervals
    inputs: dict[str, str]

    def settings(self) -> dict[str, Any]:
        """Return the section `evaluate` of the settings."""
        return self.intervals.settings()
