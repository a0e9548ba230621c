"""Whether a slide, case or image looks unlike those that a model was trained and chosen on.

A conformal test (Vovk, Gammerman and Shafer 2005; as a test for outliers Laxhammar and Falkman
2010). The slide joins the n others, and for each of the n + 1 the Mahalanobis distance from their
mean is computed. Its rank gives a p-value: if all are drawn alike, each rank is equally likely, so
that a slide is called unlike with a probability of at most `max(LEVEL, 1 / (n + 1))`, however the
figures are distributed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# The probability by which a slide like the others is called unlike.
LEVEL = 0.01
# With fewer to compare with, nothing is said.
LEAST = 10
# Distances that differ by less are equal, so that rounding changes no rank.
_SAME = 1e-9

# Figures of how a slide, case or image looks, by name.
Appearance = Mapping[str, float]


@dataclass(frozen=True)
class Deviation:
    """A figure, and the range of it in the data that the model was trained and chosen on.

    Attributes:
        deviations: how far it is from their mean, in standard deviations.
    """

    name: str
    value: float
    low: float
    high: float
    deviations: float


@dataclass(frozen=True)
class AppearanceTest:
    """The result for one slide, case or image.

    Attributes:
        p: the fraction, of it and those it was compared with, that are at least as far away.
        compared: number of those it was compared with.
        as_far: how many of these are at least as far away.
        deviations: its figures, the most deviating one first.
    """

    p: float
    compared: int
    as_far: int
    deviations: Sequence[Deviation]

    @property
    def is_unlike(self) -> bool:
        """Whether it is too far away for chance."""
        return self.p <= level_of(self.compared)


def level_of(compared: int) -> float:
    """Return the probability by which a slide like the others is called unlike.

    Args:
        compared: number of slides that it is compared with.
    """
    return max(LEVEL, 1 / (compared + 1))


class TrainingAppearances:
    """How the slides, cases or images look that a model was trained and chosen on."""

    def __init__(self, members: Sequence[Appearance]) -> None:
        """Take their figures; some may lack some figures or all."""
        self._members = [dict(each) for each in members if each]
        self._tables: dict[tuple[str, ...], np.ndarray] = {}

    def __len__(self) -> int:
        """Return the number of members with figures."""
        return len(self._members)

    @property
    def members(self) -> list[dict[str, float]]:
        """The figures in an order that does not depend on that of the members."""
        return sorted(self._members, key=lambda each: sorted(each.items()))

    def compare(self, appearance: Appearance) -> AppearanceTest | None:
        """Compare another slide, case or image.

        Returns:
            None: it has no figures, or there are fewer than `LEAST` to compare it with. These are
            the members with all figures that it has.
        """
        names = tuple(appearance)
        if not names:
            return None
        if names not in self._tables:
            rows = [
                [member[name] for name in names]
                for member in self._members
                if all(name in member for name in names)
            ]
            self._tables[names] = np.array(rows, np.float64).reshape(-1, len(names))
        table = self._tables[names]
        if len(table) < LEAST:
            return None
        row = np.array([appearance[name] for name in names])
        distances, deviations = _distances(np.vstack([table, row]))
        rank = int(np.count_nonzero(distances >= distances[-1] * (1 - _SAME)))
        lows, highs = table.min(0).tolist(), table.max(0).tolist()
        figures = [
            Deviation(*each)
            for each in zip(names, row.tolist(), lows, highs, deviations[-1].tolist(), strict=True)
        ]
        figures.sort(key=lambda each: -abs(each.deviations))
        return AppearanceTest(rank / len(distances), len(table), rank - 1, figures)


def _distances(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the squared Mahalanobis distance of each row, and its standardised figures.

    The correlations are shrunk towards 0, more if there are few rows, so that they can be inverted.

    Args:
        table: (n, figures) float64.
    """
    sd = table.std(0)
    standardised = (table - table.mean(0)) / np.where(sd > 0, sd, 1)
    count, size = table.shape
    weight = size / (count + size)
    correlations = standardised.T @ standardised / count
    shrunk = (1 - weight) * correlations + weight * np.eye(size)
    return np.einsum("ij,ij->i", standardised @ np.linalg.inv(shrunk), standardised), standardised
