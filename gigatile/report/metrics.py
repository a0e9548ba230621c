"""Figures of evaluation/metrics.json with their intervals, for all tasks."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Figures(BaseModel):
    """A part of metrics.json; keys that the report does not show are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Interval(Figures):
    """A figure and its 95 % interval; None: not defined.

    Attributes:
        patients: number of patients of the figure, in the class with the fewest.
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


class Intervals(Figures):
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


class Metrics(Figures):
    """evaluation/metrics.json: what all tasks have."""

    intervals: Intervals
    inputs: dict[str, str]

    def settings(self) -> dict[str, Any]:
        """Return the section `evaluate` of the settings."""
        return self.intervals.settings()
