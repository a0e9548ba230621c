"""95 % intervals over patients, with the stated coverage for small cohorts too.

The intervals are those of a Bayesian bootstrap (Rubin 1981,
https://doi.org/10.1214/aos/1176345338): each draw gives every patient a random weight from the
exponential distribution, and the metric is computed with these weights. Patients are weighted, not
slides or cases, because those of one patient are not independent (Field and Welsh 2007,
https://doi.org/10.1111/j.1467-9868.2007.00593.x). All weights are above 0, so every draw contains
all classes.

A bootstrap draws only from the test patients. With few patients its intervals are too narrow, and
if every prediction is correct they have no width. So one unseen patient is added, with as many
slides or cases as the patient with the most: the worst possible patient for the lower end, and the
best possible one for the upper end. `low` is the 2.5 % quantile of the draws with the worst
patient, `high` the 97.5 % quantile of those with the best one.

- For the mean of values between two known bounds, this is the bound of Gaffke (2005, Mathematical
  Methods of Statistics 14, 451-467; see Learned-Miller and Thomas 2020,
  https://arxiv.org/abs/1905.06208). For a fraction with one slide per patient it is the interval of
  Clopper and Pearson (1934, https://doi.org/10.1093/biomet/26.4.404).
- ROC AUC, average precision and the ROC curve compare classes. For them, half a patient is added to
  each class, with a weight from the gamma distribution of shape 1/2: two halves weigh as much as
  one patient. The Bayesian bootstrap of a ROC curve is that of Gu, Ghosal and Roy (2008,
  https://doi.org/10.1002/sim.3366), without the added halves.

`benchmarks/coverage.py` measures the coverage of these intervals.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gigatile.evaluation.metrics_file import Interval, Intervals
from gigatile.records.shuffle import key64, random64
from gigatile.settings.evaluate import EvaluationSettings

METHOD = "Bayesian bootstrap over patients with one unseen patient at either extreme"
LEVEL = 0.95
# The quantiles at the ends of an interval.
ENDS = (0.025, 0.975)
# With fewer patients, an interval would contain nearly every value. If all predictions are correct,
# its lower end is 0.48 for five patients and 0.40 for four.
LEAST_PATIENTS = 5


@dataclass(frozen=True)
class Draws:
    """The values of a metric in all draws.

    Attributes:
        worst, best: (resamples,) with the worst and with the best unseen patient.
    """

    worst: np.ndarray
    best: np.ndarray

    def ends(self, value: float) -> tuple[float, float]:
        """Return the ends of the 95 % interval around the value of the cohort."""
        low, high = np.quantile(self.worst, ENDS[0]), np.quantile(self.best, ENDS[1])
        return float(np.fmin(low, value)), float(np.fmax(high, value))

    @staticmethod
    def mean(metrics: "list[Draws]") -> "Draws":
        """Return the draws of the unweighted mean of metrics of the same patients."""
        worst = np.mean([draws.worst for draws in metrics], axis=0)
        return Draws(worst, np.mean([draws.best for draws in metrics], axis=0))


class Weights:
    """The random weights of a cohort's patients; all metrics of the cohort use the same.

    A case here is what is scored: a slide, a patient with all slides, or a volume.

    Attributes:
        cases: (resamples, n) float64 above 0, for each case the weight of its patient.
        unseen: (resamples,) the weight of the unseen patient.
    """

    def __init__(self, patients: np.ndarray, settings: EvaluationSettings) -> None:
        """Draw the weights.

        Args:
            patients: (n,) the patient of each case.
            settings: number of draws, and the seed.
        """
        names, self._patient_of = np.unique(patients, return_inverse=True)
        self._settings = settings
        # The unseen patient has a separate key: its weights do not depend on the other patients.
        self.cases = self._exponential("patients", len(names))[:, self._patient_of]
        self.unseen = self._exponential("unseen", 1)[:, 0]

    def halves(self, classes: int) -> np.ndarray:
        """Return the weight of half an unseen patient of each class: (resamples, classes)."""
        # Exponential times cos² of a uniform angle has the gamma distribution of shape 1/2.
        angles = 2 * np.pi * self._uniform("angles", classes)
        return self._exponential("halves", classes) * np.cos(angles) ** 2

    def patients(self, selected: np.ndarray) -> int:
        """Return the number of patients of the selected cases, (n,) bool."""
        return len(np.unique(self._patient_of[selected]))

    def most_cases(self, selected: np.ndarray) -> int:
        """Return the largest number of selected cases, (n,) bool, of one patient; 0 if none."""
        return int(np.bincount(self._patient_of[selected]).max(initial=0))

    def _exponential(self, name: str, columns: int) -> np.ndarray:
        return -np.log(self._uniform(name, columns))

    def _uniform(self, name: str, columns: int) -> np.ndarray:
        """Return random numbers between 0 and 1, both excluded: (resamples, columns)."""
        shape = (self._settings.resamples, columns)
        key = key64("bayesian bootstrap", name, self._settings.seed)
        bits = random64(key, np.arange(np.prod(shape))) >> np.uint64(11)
        return ((bits.astype(np.float64) + 0.5) / 2**53).reshape(shape)


def draw_mean(values: np.ndarray, weights: Weights, lowest: float, highest: float) -> Draws:
    """Return the draws of a mean over cases.

    Args:
        values: (n,) float64; NaN: not defined, ignored.
        weights: the weights of the cases.
        lowest: the lower bound of the values.
        highest: the upper bound of the values.
    """
    defined = ~np.isnan(values)
    used = weights.cases[:, defined]
    # Sums, because the rounding of a matrix product depends on the number of threads.
    total, weight = (used * values[defined]).sum(axis=1), used.sum(axis=1)
    unseen = weights.unseen * weights.most_cases(defined)
    with np.errstate(invalid="ignore"):
        ends = [(total + unseen * end) / (weight + unseen) for end in (lowest, highest)]
    return Draws(*ends)


def with_interval(
    value: float, draws: Draws | None, patients: int, too_few: str | None = None
) -> Interval:
    """Return a metric with its 95 % interval.

    Args:
        value: the metric of the cohort; NaN: not defined.
        draws: the draws of the metric; None if it is not defined.
        patients: number of patients of the metric, in the class with the fewest.
        too_few: the reason for no interval, from `too_few_patients`.
    """
    low = high = None
    if math.isnan(value):
        too_few = "the figure is not defined"
    elif draws is not None and too_few is None:
        low, high = map(rounded, draws.ends(value))
    return Interval(
        value=None if math.isnan(value) else rounded(value),
        low=low,
        high=high,
        patients=patients,
        no_interval=too_few,
    )


def describe_intervals(settings: EvaluationSettings) -> Intervals:
    """Return the method and settings of the intervals, for metrics.json."""
    return Intervals(
        level=LEVEL,
        method=METHOD,
        least_patients=LEAST_PATIENTS,
        resamples=settings.resamples,
        seed=settings.seed,
    )


def too_few_patients(groups: Mapping[str, int]) -> str | None:
    """Return a message that names the groups with too few patients for an interval, or None.

    Args:
        groups: number of patients of each group; its name follows "patients" in the message.
    """
    small = [
        f"{name} ({count})".strip() for name, count in groups.items() if count < LEAST_PATIENTS
    ]
    return f"fewer than {LEAST_PATIENTS} patients {', '.join(small)}" if small else None


def rounded(value: float) -> float:
    """Round to six decimals, so that all machines write the same JSON."""
    return round(float(value), 6)
