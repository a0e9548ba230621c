"""Tests whether the loss of slides and of tissue depends on the label.

A model can learn from missing data: if the thin tissue of one label is dropped as background, the
remaining tiles do not represent the label. Two fractions are compared between the labels:

- refused slides, of all slides;
- dropped tiles, for any reason, of all tiles with tissue. Glass does not count: a tile without
  tissue is neither lost nor kept, so a small biopsy on a large slide loses nothing.

At the edge of a specimen about half of the tiles have too little tissue, and a small specimen has
more edge. So the part that the edge explains is subtracted from a patient's fraction of dropped
tiles: a slope, the same for all labels (least squares through the origin over all patients), times
the fraction of tiles with tissue that have a neighbour without tissue.

Tissue that ends at the border of a tile reaches into the next tile by a pixel of the overview, and
further if it is darker. Such rims are no loss. So the shares, and the difference between two
labels, leave out tiles that were dropped with less tissue than `LEAST_TISSUE`. The test counts them
if that difference is large enough: without them chance decides how many of the tiles at the edge of
a thin biopsy count.

The test is a permutation test (Fisher 1935; Phipson and Smyth 2010 for the p value,
https://doi.org/10.2202/1544-6115.1585). Tiles of a slide and slides of a patient are not
independent, so the test permutes the labels of patients: between patients with one label, and
within a patient with several labels. The statistic is the sum of squares between the labels of the
patients' fractions. Every patient counts once for each label.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gigatile.errors import UserError
from gigatile.records.shuffle import key64, random64

# Bonferroni: two tests.
ALPHA = 0.05 / 2
# Smaller differences between two labels are not relevant.
LEAST_DIFFERENCE = 0.02
# Fraction of a tile. Of 16 × 16 pixels of the overview, two sides of one pixel are 12 %.
LEAST_TISSUE = 0.125
# The test leaves out labels with fewer patients.
LEAST_PATIENTS = 5
PERMUTATIONS = 1999
SEED = 1


@dataclass(frozen=True)
class SlideLoss:
    """The losses of a slide.

    Attributes:
        refused: whether the slide has no tiles.
        holding: number of tiles that have tissue or were not dropped as background.
        dropped: number of these tiles that were dropped.
        edge: number of the tiles with tissue that have a neighbour without tissue.
        rims: number of tiles dropped as background with less tissue than `LEAST_TISSUE`.
    """

    slide: str
    patient: str
    label: str
    refused: bool
    holding: int = 0
    dropped: int = 0
    edge: int = 0
    rims: int = 0


@dataclass(frozen=True)
class LossTest:
    """The result of one test.

    Attributes:
        unit: `slides` or `tiles`.
        shares: for each label (lost, all); labels without slides are absent.
        p: p value, None with too few patients.
        difference: largest difference between two labels of the mean over patients; for tiles,
            beyond what the edges of the specimens explain.
    """

    unit: str
    shares: dict[str, tuple[int, int]]
    p: float | None
    difference: float

    @property
    def warns(self) -> bool:
        """Whether the loss depends on the label, by a relevant difference."""
        return self.p is not None and self.p <= ALPHA and self.difference >= LEAST_DIFFERENCE


def read_loss(
    path: Path, slide: str, patient: str, label: str, refused: bool, columns: int
) -> SlideLoss:
    """Read the losses of a slide from its table of tiles.

    The tiles of a refused slide count only if all were dropped: if the slide was refused for
    another reason, such as a damaged file, its tiles were not checked.

    Args:
        columns: of the slide's grid; 0: no grid.

    Raises:
        UserError: the file is missing, damaged, or of another grid.
    """
    try:
        table = pq.read_table(path, columns=["tissue", "dropped"])
        tissue = np.asarray(table["tissue"], np.float64)
        reasons = table["dropped"]
        dropped = np.asarray(pc.not_equal(reasons, ""), bool)
        background = np.asarray(pc.equal(reasons, "background"), bool)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, KeyError, ValueError) as error:
        reason = str(error).split("\n")[0].replace(str(path), path.name)
        raise UserError(
            f"{path}: damaged, or not the table of a slide's tiles ({reason})"
        ) from None
    if columns == 0 or not len(tissue) or (refused and not dropped.all()):
        return SlideLoss(slide, patient, label, refused)
    if len(tissue) % columns:
        raise UserError(
            f"{path}: {len(tissue)} tiles do not fill rows of {columns}, the slide's grid; one of "
            "the two is out of date"
        )
    holding = (tissue > 0) | ~background
    return SlideLoss(
        slide,
        patient,
        label,
        refused,
        int(holding.sum()),
        int((dropped & holding).sum()),
        int(at_edge(holding.reshape(-1, columns)).sum()),
        int((background & (tissue > 0) & (tissue < LEAST_TISSUE)).sum()),
    )


def at_edge(holding: np.ndarray) -> np.ndarray:
    """Return the tiles with tissue and one of 4 neighbours without: (rows, columns) bool.

    Tiles beyond the grid are unknown and are no edge.
    """
    around = np.pad(holding, 1, constant_values=True)
    inside = around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    return holding & ~inside


def compare_losses(losses: Sequence[SlideLoss]) -> list[LossTest]:
    """Test whether the share of slides refused, and that of tiles dropped, depends on the label."""
    slides = _Counts(losses, lambda loss: (int(loss.refused), 1, 0)).test("slides")
    held = [loss for loss in losses if loss.holding > loss.rims]
    tiles = _Counts(
        held, lambda loss: (loss.dropped - loss.rims, loss.holding - loss.rims, loss.edge)
    ).test("tiles")
    if tiles.difference >= LEAST_DIFFERENCE:
        with_rims = _Counts(held, lambda loss: (loss.dropped, loss.holding, loss.edge))
        tiles = replace(tiles, p=with_rims.test("tiles").p)
    return [slides, tiles]


class _Counts:
    """The counts of each patient and label."""

    def __init__(
        self, losses: Sequence[SlideLoss], counts: Callable[[SlideLoss], tuple[int, int, int]]
    ) -> None:
        sums: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(3, np.int64))
        for loss in losses:
            sums[loss.patient, loss.label] += counts(loss)
        # Sorted, so that the random numbers do not depend on the order of the sheet.
        self._sums = dict(sorted(sums.items()))

    def test(self, unit: str) -> LossTest:
        shares: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(3, np.int64))
        for (_, label), counts in self._sums.items():
            shares[label] += counts
        whole = {label: (int(n[0]), int(n[1])) for label, n in sorted(shares.items())}
        patients = Counter(label for _, label in self._sums)
        cases = [case for case in self._sums if patients[case[1]] >= LEAST_PATIENTS]
        names = sorted({label for _, label in cases})
        if len(names) < 2:
            return LossTest(unit, whole, None, 0.0)
        counts = np.array([self._sums[case] for case in cases], np.float64)
        lost, edge = counts[:, 0] / counts[:, 1], counts[:, 2] / counts[:, 1]
        if edge.any():
            lost = lost - (edge @ lost) / (edge @ edge) * edge
        labels = np.array([names.index(label) for _, label in cases])
        several = Counter(patient for patient, _ in cases)
        group_of = {p: k for k, p in enumerate((p for p in several if several[p] > 1), 1)}
        groups = np.array([group_of.get(patient, 0) for patient, _ in cases])
        means = np.bincount(labels, lost) / np.bincount(labels)
        p = permutation_p_value(lost, labels, groups, unit)
        return LossTest(unit, whole, p, float(np.ptp(means)))


def permutation_p_value(
    values: np.ndarray, labels: np.ndarray, groups: np.ndarray, name: str
) -> float:
    """Return the p value of the hypothesis that `values` do not depend on `labels`.

    Args:
        values: (n,) float64.
        labels: (n,) int64, from 0; each occurs.
        groups: (n,) int64; labels are permuted within groups.
        name: of the test; the random numbers depend on it and on `SEED`.
    """
    sizes = np.bincount(labels)
    centred = values - values.mean()

    def between(arrangement: np.ndarray) -> float:
        return float((np.bincount(arrangement, centred) ** 2 / sizes).sum())

    # Equal arrangements can differ in the last bits.
    measured = between(labels) * (1 - 1e-9)
    by_group = np.argsort(groups, kind="stable")
    several_groups = bool((groups != groups[0]).any())
    counters = np.arange(len(values))
    shuffled = np.empty_like(labels)
    as_large = 0
    for number in range(PERMUTATIONS):
        # The random numbers are a bijection of the counters, so no two are equal.
        order = np.argsort(random64(key64("losses", name, SEED, number), counters))
        if several_groups:
            order = order[np.argsort(groups[order], kind="stable")]
        shuffled[by_group] = labels[order]
        as_large += between(shuffled) >= measured
    return (1 + as_large) / (1 + PERMUTATIONS)


def loss_warnings(tests: Sequence[LossTest]) -> list[str]:
    """Return a sentence for each test that warns."""
    return [_sentence(test) for test in tests if test.warns]


def _sentence(test: LossTest) -> str:
    shares = sorted(test.shares.items(), key=lambda item: -item[1][0] / item[1][1])
    listed = ", ".join(
        f"{label} {lost / total:.1%} ({lost:,} of {total:,} {test.unit})"
        for label, (lost, total) in shares
    )
    event = "Slides are refused" if test.unit == "slides" else "Tiles with tissue are dropped"
    return f"{event} more often for some labels than for others: {listed}; p = {test.p:.2g}."


def loss_rows(tests: Sequence[LossTest]) -> list[dict[str, Any]]:
    """Return a row of the table for each test."""
    return [
        {
            "name": {"slides": "Slides refused", "tiles": "Tiles with tissue dropped"}[test.unit],
            "shares": test.shares,
            "p": "too few patients" if test.p is None else f"{test.p:.2g}",
        }
        for test in tests
    ]
