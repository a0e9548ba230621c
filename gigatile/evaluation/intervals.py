"""95 % intervals over patients, with the stated coverage for small cohorts too.

Each interval is that of a Bayesian bootstrap (Rubin 1981, https://doi.org/10.1214/aos/1176345338):
in each of many draws every patient gets a random weight, from the exponential distribution, and the
figure is computed with these weights. The weights belong to patients because the slides or cases of
a patient are not independent (Field and Welsh 2007,
https://doi.org/10.1111/j.1467-9868.2007.00593.x). All weights are above 0, so every class is in
every draw.

The draws of a bootstrap contain only the patients of the test: with few patients its intervals are
too narrow, and if every call is right they have no width. So one unseen patient is added, with as
many slides or cases as any patient has: for the lower end the worst possible patient, for the upper
end the best possible. `low` is the 2.5 % quantile of the draws with the
worst patient, `high` the 97.5 % quantile with the best one.

- For the mean of values between two known bounds this is the bound of Gaffke
  (2005, Mathematical Methods of Statistics 14, 451-467; see Learned-Miller and Thomas 2020,
  https://arxiv.org/abs/1905.06208). For a fraction with one slide per patient it is the interval of
  Clopper and Pearson (1934, https://doi.org/10.1093/biomet/26.4.404).
- ROC AUC, average precision and the ROC curve compare the classes. There half a patient is added
  to each class, with a weight from the gamma distribution with the shape 1/2: two of them are
  together as heavy as one patient. The Bayesian bootstrap of a ROC curve is that of Gu, Ghosal and
  Roy (2008, https://doi.org/10.1002/sim.3366), without the added halves.

`benchmarks/coverage.py` measures the coverage of these intervals.
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
# With fewer patients an interval would contain nearly every value: if all calls are right, its
# lower end is 0.48 for five patients and 0.40 for four.
LEAST_PATIENTS = 5


@dataclass(frozen=True)
class Draws:
    """The values of a figure: (resamples,) with the worst unseen patient and with the best one."""

    worst: np.ndarray
    best: np.ndarray

    def ends(self, value: float) -> tuple[float, float]:
        """Return the ends of the 95 % interval around the value of the cohort."""
        low, high = np.quantile(self.worst, ENDS[0]), np.quantile(self.best, ENDS[1])
        return float(np.fmin(low, value)), float(np.fmax(high, value))

    @staticmethod
    def mean(several: "list[Draws]") -> "Draws":
        """Return the draws of the unweighted mean of several figures of the same patients."""
        worst = np.mean([draws.worst for draws in several], axis=0)
        return Draws(worst, np.mean([draws.best for draws in several], axis=0))


class Weights:
    """The random weights of a cohort's patients; every figure of the cohort uses the same.

    Attributes:
        cases: (resamples, n) float64 above 0, the weight of each case, which is its patient's.
        unseen: (resamples,) the weight of the unseen patient.
    """

    def __init__(self, patients: np.ndarray, settings: EvaluationSettings) -> None:
        """Draw the weights.

        Args:
            patients: (n,) the patient of each case.
            settings: number of draws and their seed.
        """
        names, self._patient_of = np.unique(patients, return_inverse=True)
        self._settings = settings
        # The unseen patient has its own key: more patients do not change its weights.
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
        """Return the largest number of cases `within` of one patient; 0 if there are none."""
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
        values: (n,) float64; NaN: not defined, left out of the mean.
        weights: the weights of the cases.
        lowest, highest: the bounds of the values.
    """
    defined = ~np.isnan(values)
    used = weights.cases[:, defined]
    # Sums and not a matrix product, whose rounding depends on the number of threads.
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
        value: the figure of the cohort; NaN: not defined.
        draws: the draws of the figure; None: no interval.
        patients: number of patients behind the figure, in the class with the fewest.
        too_few: the reason for no interval, from `too_few_patients`.

    Returns:
        value, low, high, patients, no_interval (None, or the reason).
    """
    interval: dict[str, Any] = dict.fromkeys(("value", "low", "high"))
    if np.isnan(value):
        too_few = "the figure is not defined"
    else:
        interval["value"] = plain(value)
        if draws is not None and too_few is None:
            low, high = draws.ends(value)
            interval |= {"low": plain(low), "high": plain(high)}
    return interval | {"patients": patients, "no_interval": too_few}


def describe(settings: EvaluationSettings) -> dict[str, Any]:
    """Return the method and settings of the intervals, for metrics.json."""
    rule = {"level": 0.95, "method": METHOD, "least_patients": LEAST_PATIENTS}
    return {"intervals": rule | settings.model_dump(include={"resamples", "seed"})}


def too_few_patients(groups: Mapping[str, int]) -> str | None:
    """Return a message naming the groups with too few patients for an interval, or None.

    Args:
        groups: number of patients of each group; its name follows "patients" in the message.
    """
    small = [
        f"{name} ({count})".strip() for name, count in groups.items() if count < LEAST_PATIENTS
    ]
    return f"fewer than {LEAST_PATIENTS} patients {', '.join(small)}" if small else None


def plain(value: float) -> float:
    """Round to six decimals for JSON, so that all machines write the same."""
    return round(float(value), 6)
