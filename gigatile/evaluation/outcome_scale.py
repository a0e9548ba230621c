"""What the output of a model of outcomes means: the targets of its training, its predictions.

A number is standardised with mean and standard deviation of the training split. A time to an event
is trained as a proportional hazard with a known baseline: with the cumulative hazard H of the
training split (Nelson-Aalen), a patient with the log hazard ratio f has the log-likelihood
event · f - H(time) · exp(f), up to a constant: that of a Poisson variable (Whitehead 1980,
https://doi.org/10.2307/2346901). Unlike Cox's partial likelihood, it is a sum over slides, so the
model does not depend on which slides are in a batch, or on the number of ranks.
"""

from typing import Literal

import numpy as np

from gigatile.cohort.outcomes import Outcome
from gigatile.errors import UserError
from gigatile.evaluation.survival import CumulativeHazard, cumulative_hazard
from gigatile.json_models import JsonModel


class OutcomeScale(JsonModel):
    """What the outputs of a model mean: a part of its settings.json.

    Attributes:
        kind: of the outcomes.
        mean, deviation: of the numbers in the training split; None: of times.
        times, hazards: the cumulative hazard of the training split; None: of numbers.
    """

    kind: Literal["number", "survival"]
    mean: float | None = None
    deviation: float | None = None
    times: list[float] | None = None
    hazards: list[float] | None = None

    @classmethod
    def of(cls, outcomes: list[Outcome]) -> "OutcomeScale":
        """Take the scale from the outcomes of the training split.

        Raises:
            UserError: nothing can be learned from them.
        """
        values = np.array([outcome.value for outcome in outcomes])
        if outcomes[0].event is None:
            if values.std() == 0:
                raise UserError("all slides of the training split have the same value")
            return cls(kind="number", mean=float(values.mean()), deviation=float(values.std()))
        events = np.array([outcome.event for outcome in outcomes])
        if not events.any():
            raise UserError("the training split has no event")
        hazard = cumulative_hazard(values, events)
        return cls(kind="survival", times=hazard.times.tolist(), hazards=hazard.values.tolist())

    @property
    def hazard(self) -> CumulativeHazard | None:
        """The cumulative hazard of the training split; None: of numbers."""
        if self.times is None or self.hazards is None:
            return None
        return CumulativeHazard(np.array(self.times), np.array(self.hazards))

    def targets(self, outcomes: list[Outcome]) -> np.ndarray:
        """Return (n, 2) float32: the number and 0, or cumulative hazard and event."""
        values = np.array([outcome.value for outcome in outcomes])
        if self.mean is not None and self.deviation is not None:
            first = (values - self.mean) / self.deviation
            second = np.zeros(len(values))
        else:
            hazard = self.hazard
            assert hazard is not None, "a scale of times has a hazard"
            first = hazard.at(values)
            second = np.array([bool(outcome.event) for outcome in outcomes], float)
        return np.stack([first, second], axis=1).astype(np.float32)

    def prediction(self, output: np.ndarray) -> np.ndarray:
        """Return the number, or the log hazard ratio, of outputs of the model."""
        if self.mean is None or self.deviation is None:
            return output
        scaled: np.ndarray = output * self.deviation + self.mean
        return scaled


class DescribedOutcome(JsonModel):
    """The part of settings.json of a model of outcomes that says what its output means."""

    outcome: OutcomeScale
