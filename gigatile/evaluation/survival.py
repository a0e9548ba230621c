"""Survival: cumulative hazard, Kaplan-Meier curves, the log-rank test and concordance.

- Nelson-Aalen estimate of the cumulative hazard (Aalen 1978, https://doi.org/10.1214/aos/1176344247).
- Kaplan-Meier estimate of survival with Greenwood's variance on the scale log(-log S) (Kaplan and
  Meier 1958, https://doi.org/10.1080/01621459.1958.10501452; Kalbfleisch and Prentice 1980).
- Log-rank test of two groups (Mantel 1966; Peto and Peto 1972, https://doi.org/10.2307/2344317).
- Harrell's concordance (Harrell et al. 1982, https://doi.org/10.1001/jama.1982.03320430047030).
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2, norm

# Rows of pairs that are compared at the same time.
_ROWS = 256


@dataclass(frozen=True)
class CumulativeHazard:
    """A step function of time, from 0.

    Attributes:
        times: (n,) increasing, of the events.
        values: (n,) from each of them on.
    """

    times: np.ndarray
    values: np.ndarray

    def at(self, times: np.ndarray) -> np.ndarray:
        """Return the cumulative hazard at some times, (n,) float64."""
        steps = np.concatenate([[0.0], self.values])
        hazards: np.ndarray = steps[np.searchsorted(self.times, times, side="right")]
        return hazards


def cumulative_hazard(times: np.ndarray, events: np.ndarray) -> CumulativeHazard:
    """Return the Nelson-Aalen estimate.

    Args:
        times: (n,) to the event, or to the end of the observation.
        events: (n,) whether the event was observed.
    """
    moments, deaths, at_risk = _table(times, events)
    return CumulativeHazard(moments, np.cumsum(deaths / at_risk))


@dataclass(frozen=True)
class SurvivalCurve:
    """A Kaplan-Meier curve, from 1.

    Attributes:
        times: (n,) increasing, of the events.
        values: (n,) survival from each of them on.
        low, high: (n,) ends of the 95 % intervals.
        censored: (m,) increasing, times at which the observation of a patient ended.
    """

    times: np.ndarray
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    censored: np.ndarray


def survival_curve(times: np.ndarray, events: np.ndarray) -> SurvivalCurve:
    """Return the Kaplan-Meier estimate; see `cumulative_hazard`."""
    moments, deaths, at_risk = _table(times, events)
    survival = np.cumprod(1 - deaths / at_risk)
    with np.errstate(divide="ignore", invalid="ignore"):
        greenwood = np.cumsum(deaths / (at_risk * (at_risk - deaths)))
        log = np.log(survival)
        # The interval of log(-log S), which stays between 0 and 1.
        width = norm.ppf(0.975) * np.sqrt(greenwood) / log
        low, high = np.exp(-np.exp(np.log(-log) - width)), np.exp(-np.exp(np.log(-log) + width))
    at_ends = (survival <= 0) | (survival >= 1)
    low, high = np.where(at_ends, survival, low), np.where(at_ends, survival, high)
    return SurvivalCurve(moments, survival, low, high, np.sort(times[~events.astype(bool)]))


def logrank_p(times: np.ndarray, events: np.ndarray, first: np.ndarray) -> float | None:
    """Return the two-sided p of equal hazards in two groups; None: the test is not defined.

    Args:
        times, events: (n,) as for `cumulative_hazard`.
        first: (n,) bool, the patients of one group.
    """
    moments, deaths, at_risk = _table(times, events)
    if not len(moments) or first.all() or not first.any():
        return None
    in_first = times[first]
    first_at_risk = len(in_first) - np.searchsorted(np.sort(in_first), moments, side="left")
    observed = float(events[first].sum())
    expected = float((deaths * first_at_risk / at_risk).sum())
    share = first_at_risk / at_risk
    with np.errstate(divide="ignore", invalid="ignore"):
        variances = deaths * share * (1 - share) * (at_risk - deaths) / (at_risk - 1)
    variance = float(np.where(at_risk > 1, variances, 0).sum())
    if variance <= 0:
        return None
    return float(chi2.sf((observed - expected) ** 2 / variance, 1))


def pair_scores(
    risks: np.ndarray, times: np.ndarray, events: np.ndarray, rows: slice
) -> tuple[np.ndarray, np.ndarray]:
    """Return which pairs can be compared, and how far they agree.

    A pair can be compared if the event of the first patient was observed, before the time of the
    second; of equal times, only if the second one's was not observed.

    Args:
        risks: (n,) higher for an earlier event.
        times, events: (n,) as for `cumulative_hazard`.
        rows: the first patients of the pairs.

    Returns:
        (rows, n) 1 if the pair can be compared, else 0; and 1 if the first patient has the higher
        risk, 1/2 if both have the same, 0 otherwise.
    """
    events = events.astype(bool)
    time, risk = times[rows, None], risks[rows, None]
    later = (times > time) | ((times == time) & ~events)
    comparable = (events[rows, None] & later).astype(np.float64)
    return comparable, comparable * ((risk > risks) + (risk == risks) / 2)


def concordance(risks: np.ndarray, times: np.ndarray, events: np.ndarray) -> float | None:
    """Return Harrell's concordance: 1 is perfect, 1/2 chance; None without comparable pairs."""
    agreeing = comparable = 0.0
    for begin in range(0, len(risks), _ROWS):
        pairs, scores = pair_scores(risks, times, events, slice(begin, begin + _ROWS))
        comparable, agreeing = comparable + float(pairs.sum()), agreeing + float(scores.sum())
    return agreeing / comparable if comparable else None


def _table(times: np.ndarray, events: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the times of events, and the numbers of events and of patients at risk there."""
    events = events.astype(bool)
    moments, deaths = np.unique(times[events], return_counts=True)
    at_risk = len(times) - np.searchsorted(np.sort(times), moments, side="left")
    return moments, deaths.astype(np.float64), at_risk.astype(np.float64)
