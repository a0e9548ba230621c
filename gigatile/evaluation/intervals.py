"""95 % intervals over patients that hold on small cohorts too.

Each interval is that of a Bayesian bootstrap (Rubin 1981, https://doi.org/10.1214/aos/1176345338):
in each of many draws every patient gets a random weight, from the exponential distribution, and the
figure is computed with these weights. Patients are weighted and not slides or cases, since those of
one patient are not independent (Field and Welsh 2007,
https://doi.org/10.1111/j.1467-9868.2007.00593.x). All weights are above 0, so every class is in
every draw.

A bootstrap alone knows nothing worse than the worst patient that it was given: its intervals are
too narrow on few patients and have no width where every call is right. So one patient is added who
was not seen: for the lower end the worst there can be, for the upper end the best, with as many
slides or cases as the largest of those seen. `low` is the 2.5 % quantile of the draws with the
worst patient, `high` the 97.5 % quantile with the best one.

- For a mean of values that have a lowest and a highest possible value this is the bound of Gaffke
  (2005, Mathematical Methods of Statistics 14, 451-467; see Learned-Miller and Thomas 2020,
  https://arxiv.org/abs/1905.06208). Of a share with one slide a patient it is the interval of
  Clopper and Pearson (1934, https://doi.org/10.1093/biomet/26.4.404).
- ROC AUC, average precision and the ROC curve compare the classes. There half a patient is added
  to each class, with a weight from the gamma distribution with the shape 1/2: two of them are
  together as heavy as one patient. The Bayesian bootstrap of a ROC curve is that of Gu, Ghosal and
  Roy (2008, https://doi.org/10.1002/sim.3366), without the added halves.

`benchmarks/coverage.py` measures how often these intervals hold the truth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigatile.records.shuffle import key64, random64
from gigatile.settings.evaluate import EvaluationSettings

METHOD = "Bayesian bootstrap over patients with one unseen patient at either extreme"
# The 2.5 % and the 97.5 % quantile leave 95 % between them.
ENDS = (0.025, 0.975)
# With fewer patients an interval would hold nearly every value: of five right calls its lower end
# is 0.48, of four 0.40.
LEAST_PATIENTS = 5


@dataclass(frozen=True)
class Draws:
    """A figure in every draw: (resamples,) with the worst unseen patient, and with the best."""

    worst: np.ndarray
    best: np.ndarray

    def ends(self, value: float) -> tuple[float, float]:
        """Return the ends of the 95 % interval around the value of the cohort."""
        low, high = np.quantile(self.worst, ENDS[0]), np.quantile(self.best, ENDS[1])
        return float(np.fmin(low, value)), float(np.fmax(high, value))

    @staticmethod
    def mean(several: "list[Draws]") -> "Draws":
        """Return the draws of the unweighted mean of several figures of the same patients."""
        worst = np.mean([one.worst for one in several], axis=0)
        return Draws(worst, np.mean([one.best for one in several], axis=0))


class Weights:
    """The random weights of a cohort's patients; every figure of the cohort uses the same.

    Attributes:
        cases: (resamples, n) float64 above 0, the weight of each case: that of its patient.
        unseen: (resamples,) the weight of one unseen patient.
    """

    def __init__(self, patients: np.ndarray, settings: EvaluationSettings) -> None:
        """Draw the weights.

        Args:
            patients: (n,) the patient of each case.
            settings: number of draws and their seed.
        """
        names, self._patient_of = np.unique(patients, return_inverse=True)
        self._settings = settings
        # Adding a patient must not change the weights of the unseen ones: each has its own key.
        self.cases = self._exponential("patients", len(names))[:, self._patient_of]
        self.unseen = self._exponential("unseen", 1)[:, 0]

    def halves(self, classes: int) -> np.ndarray:
        """Return the weight of half an unseen patient of each class: (resamples, classes)."""
        angles = 2 * np.pi * self._uniform("angles", classes)
        return self._exponential("halves", classes) * np.cos(angles) ** 2

    def patients(self, within: np.ndarray) -> int:
        """Return how many patients have a case `within`: (n,) bool."""
        return len(np.unique(self._patient_of[within]))

    def most_cases(self, within: np.ndarray) -> int:
        """Return the number of cases `within` of the patient who has most of them; 0 of none."""
        return int(np.bincount(self._patient_of[within]).max(initial=0))

    def _exponential(self, name: str, columns: int) -> np.ndarray:
        return -np.log(self._uniform(name, columns))

    def _uniform(self, name: str, columns: int) -> np.ndarray:
        """Return random numbers above 0 and below 1: (resamples, columns)."""
        shape = (self._settings.resamples, columns)
        key = key64("bayesian bootstrap", name, self._settings.seed)
        bits = random64(key, np.arange(np.prod(shape))) >> np.uint64(11)
        return ((bits.astype(np.float64) + 0.5) / 2**53).reshape(shape)


def draw_mean(values: np.ndarray, weights: Weights, lowest: float, highest: float) -> Draws:
    """Return the draws of a mean over cases.

    Args:
        values: (n,) float64; NaN where it is not defined: left out of the mean.
        weights: of the cases.
        lowest, highest: the values that an unseen case could have at worst.
    """
    defined = ~np.isnan(values)
    used = weights.cases[:, defined]
    # Sums by numpy itself: a product of matrices depends on the number of threads.
    total, weight = (used * values[defined]).sum(axis=1), used.sum(axis=1)
    unseen = weights.unseen * weights.most_cases(defined)
    with np.errstate(invalid="ignore"):
        ends = [(total + unseen * end) / (weight + unseen) for end in (lowest, highest)]
    return Draws(*ends)


def with_interval(
    value: float, draws: Draws | None, patients: int, too_few: str | None = None
) -> dict[str, Any]:
    """Return a figure with its 95 % interval; None where it is not defined, never a NaN.

    Args:
        value: the figure of the cohort; NaN where it is not defined.
        draws: of the same figure; None where there is no interval.
        patients: how many the figure rests on: of the side with the fewest.
        too_few: why there is no interval, from `too_few_patients`.

    Returns:
        value, low, high, patients, no_interval (None, or why there is none).
    """
    found: dict[str, Any] = dict.fromkeys(("value", "low", "high"))
    if np.isnan(value):
        too_few = "the figure is not defined"
    else:
        found["value"] = plain(value)
        if draws is not None and too_few is None:
            low, high = draws.ends(value)
            found |= {"low": plain(low), "high": plain(high)}
    return found | {"patients": patients, "no_interval": too_few}


def describe(settings: EvaluationSettings) -> dict[str, Any]:
    """Return how the intervals were made, for metrics.json."""
    rule = {"level": 0.95, "method": METHOD, "least_patients": LEAST_PATIENTS}
    return {"intervals": rule | settings.model_dump(include={"resamples", "seed"})}


def too_few_patients(groups: Mapping[str, int]) -> str | None:
    """Say which groups have too few patients for an interval; None if none has.

    Args:
        groups: how many patients each has; the name of a group follows "patients", or is empty.
    """
    small = [
        f"{name} ({count})".strip() for name, count in groups.items() if count < LEAST_PATIENTS
    ]
    return f"fewer than {LEAST_PATIENTS} patients {', '.join(small)}" if small else None


def plain(value: float) -> float:
    """Round for JSON: six decimals are beyond what a cohort can tell and the same everywhere."""
    return round(float(value), 6)
