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

# How many draws of weights are summed at the same time; it bounds the memory.
_DRAWS = 512


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


def concordance(risks: np.ndarray, times: np.ndarray, events: np.ndarray) -> float | None:
    """Return Harrell's concordance: 1 is perfect, 1/2 chance; None without comparable pairs."""
    (agreeing,), (comparable,) = weighted_pairs(risks, times, events, np.ones((1, len(risks))))
    return float(agreeing / comparable) if comparable else None


def weighted_pairs(
    risks: np.ndarray, times: np.ndarray, events: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of the pairs that agree, and of those that can be compared.

    A pair can be compared if the event of the first patient was observed, before the time of the
    second; of equal times, only if the second one's was not observed. It agrees if the first
    patient has the higher risk, and by half if both have the same. Its weight is the product of
    the weights of both. This takes n log(n) steps, from the last time to the first.

    Args:
        risks: (n,) higher for an earlier event.
        times, events: (n,) as for `cumulative_hazard`.
        weights: (draws, n) of the patients.

    Returns:
        Both (draws,) float64.
    """
    events = events.astype(bool)
    ranks = np.unique(risks, return_inverse=True)[1]
    # Of equal times, the censored ones are first: they are compared with the events.
    order = np.lexsort((events, -times))
    agreeing, comparable = np.zeros(len(weights)), np.zeros(len(weights))
    for begin in range(0, len(weights), _DRAWS):
        draws = slice(begin, begin + _DRAWS)
        columns = np.ascontiguousarray(weights[draws].T)
        later = _SumsByRank(ranks.max(initial=0) + 1, columns.shape[1])
        waiting: list[int] = []  # events of the present time, which are not compared
        for patient in order:
            if waiting and times[patient] != times[waiting[0]]:
                for other in waiting:
                    later.add(ranks[other], columns[other])
                waiting.clear()
            if not events[patient]:
                later.add(ranks[patient], columns[patient])
                continue
            waiting.append(patient)
            below, up_to = later.below(ranks[patient]), later.below(ranks[patient] + 1)
            agreeing[draws] += columns[patient] * (below + up_to) / 2
            comparable[draws] += columns[patient] * later.total
    return agreeing, comparable


class _SumsByRank:
    """Sums of weights by rank: a binary indexed tree (Fenwick 1994)."""

    def __init__(self, ranks: int, draws: int) -> None:
        self._tree = np.zeros((ranks + 1, draws))
        self.total = np.zeros(draws)

    def add(self, rank: int, weights: np.ndarray) -> None:
        node = int(rank) + 1
        while node < len(self._tree):
            self._tree[node] += weights
            node += node & -node
        self.total += weights

    def below(self, rank: int) -> np.ndarray:
        """Return the sums of the weights with a lower rank."""
        node, total = int(rank), np.zeros_like(self.total)
        while node:
            total += self._tree[node]
            node &= node - 1
        return total


def _table(times: np.ndarray, events: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the times of events, and the numbers of events and of patients at risk there."""
    events = events.astype(bool)
    moments, deaths = np.unique(times[events], return_counts=True)
    at_risk = len(times) - np.searchsorted(np.sort(times), moments, side="left")
    return moments, deaths.astype(np.float64), at_risk.astype(np.float64)
