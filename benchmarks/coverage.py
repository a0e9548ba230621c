#!/usr/bin/env python3
"""Measures the coverage of the 95 % intervals on simulated cohorts with known true values.

For each type of cohort and each number of patients, the benchmark draws many test cohorts and
evaluates them with the workflow's own functions. It prints the coverage (the fraction of the
intervals that contain the true value) and the mean width, and the same for the percentile bootstrap
over patients.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from gigatile.evaluation import ranking
from gigatile.evaluation.calibration import calibrate, calibration_error
from gigatile.evaluation.calibration_file import OperatingPoint
from gigatile.evaluation.intervals import LEAST_PATIENTS, Draws, Weights, draw_mean
from gigatile.evaluation.metrics import draw_class, evaluate_level
from gigatile.evaluation.metrics_file import Interval, RegionMeans
from gigatile.evaluation.operating_points import figures_at
from gigatile.evaluation.segmentation import evaluate_cases
from gigatile.evaluation.two_cohorts import difference
from gigatile.settings.evaluate import EvaluationSettings

PATIENTS = (2, 3, 5, 10, 20, 50)
# The fewest draws that the settings allow; with more draws the intervals vary less.
SETTINGS = EvaluationSettings(resamples=1000)
# Patients for the true values: the standard error of a true accuracy is 0.0014 at most.
POPULATION = 120_000
# False positive rates at which the band around the ROC curve is tested.
RATES = np.array([0.1, 0.3, 0.6])
DIAGONAL = 373.13

# Thresholds of the first class at which sensitivity and the like are tested.
POINTS = [
    OperatingPoint(
        positive="0",
        criterion="sensitivity",
        wanted=0.9,
        threshold=threshold,
        reason=None,
        sensitivity=None,
        specificity=None,
    )
    for threshold in (0.2, 0.6)
]

# Name and interval of a figure.
Intervals = Iterator[tuple[str, tuple[float, float]]]


@dataclass(frozen=True)
class Slides:
    """A type of slide cohort.

    Attributes:
        ratio: patients of each class, as multiples of the number of patients per class.
        signal: difference between the score of the true class and the scores of the others, in
            standard deviations.
        slides: number of slides of a patient.
        many: fraction of the patients with that many slides; the others have one.
        alike: correlation between the scores of a patient's slides.
        wrong: fraction of the patients with slides that resemble another class.
    """

    ratio: tuple[int, ...]
    signal: float
    slides: int = 1
    many: float = 1.0
    alike: float = 0.0
    wrong: float = 0.0

    def draw(self, patients: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return labels (patients,) and scores (patients, slides, classes); NaN: no such slide."""
        classes = len(self.ratio)
        labels = np.repeat(np.arange(classes), np.array(self.ratio) * patients)
        sign = np.where(random.random(len(labels)) < self.wrong, -1, 1)[:, None]
        of_patient = sign * self.signal * np.eye(classes)[labels]
        of_patient += np.sqrt(self.alike) * random.standard_normal((len(labels), classes))
        noise = random.standard_normal((len(labels), self.slides, classes))
        heights = np.exp(of_patient[:, None] + np.sqrt(1 - self.alike) * noise)
        heights[random.random(len(labels)) >= self.many, 1:] = np.nan
        return labels, heights / heights.sum(axis=2, keepdims=True)


SLIDES = {
    "3 classes, weak": Slides((1, 1, 1), 0.4),
    "3 classes, 3 slides a patient": Slides((1, 1, 1), 1.2, 3, alike=0.7),
    "3 classes, strong": Slides((1, 1, 1), 2.3),
    "3 classes, nearly perfect": Slides((1, 1, 1), 3.3),
    "1:3:3 patients": Slides((1, 3, 3), 1.2),
    "2 classes, 1 of 5 patients wrong, 3 slides": Slides((1, 1), 4.0, 3, alike=0.9, wrong=0.2),
    "3 classes, 1 of 7 patients with 20 slides": Slides((1, 1, 1), 1.2, 20, 0.15, 0.95),
    "2 classes, 1:6 patients, weak": Slides((1, 6), 0.5),
    "6 classes, weak": Slides((1,) * 6, 0.4),
}


@dataclass(frozen=True)
class Volumes:
    """A type of volume cohort; each volume has two regions.

    Attributes:
        dice: the two parameters of the beta distribution of Dice, for regions that are not missed.
        missed: fraction of the patients with a missed region: Dice is 0, HD95 is the diagonal.
        absent: fraction of the cases without the region, in truth and prediction: Dice is 1, HD95
            is 0.
        cases: number of cases of a patient.
    """

    dice: tuple[float, float]
    missed: float = 0.0
    absent: float = 0.0
    cases: int = 1

    def draw(self, patients: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the values of each figure: (patients, cases, regions)."""
        shape = (patients, self.cases, 2)
        level = random.beta(*self.dice, (patients, 1, 2))
        dice = np.clip(level + 0.02 * random.standard_normal(shape) * (self.cases > 1), 0, 1)
        distance = np.minimum(random.lognormal(np.log(6), 0.8, shape), DIAGONAL)
        sensitivity, specificity = random.beta(9, 1, shape), random.beta(2000, 2, shape)
        missed = np.broadcast_to(random.random((patients, 1, 2)) < self.missed, shape)
        dice[missed], distance[missed], sensitivity[missed] = 0, DIAGONAL, 0
        absent = random.random(shape) < self.absent
        dice[absent], distance[absent], sensitivity[absent] = 1, 0, np.nan
        return {
            "dice": dice,
            "hd95_mm": distance,
            "sensitivity": sensitivity,
            "specificity": specificity,
        }


VOLUMES = {
    "Dice near 0.9": Volumes((18, 2)),
    "1 of 20 regions missed": Volumes((18, 2), missed=0.05),
    "1 of 7 missed, 1 of 5 absent": Volumes((18, 2), missed=0.15, absent=0.2),
    "Dice skewed, 3 cases a patient": Volumes((2, 0.5), missed=0.03, cases=3),
}


def levels(scores: np.ndarray, labels: np.ndarray) -> dict[str, tuple[np.ndarray, ...]]:
    """Return patients, true classes, scores and calls by vote, per slide and per patient."""
    patients, slides, classes = scores.shape
    kept = ~np.isnan(scores[:, :, 0])
    called = scores.argmax(axis=2)
    votes = ((called[:, :, None] == np.arange(classes)) & kept[:, :, None]).sum(axis=1)
    mean, people = np.nanmean(scores, axis=1), np.arange(patients)
    whole = (people, labels, mean, (votes + mean / 10).argmax(axis=1))
    if slides == 1:
        return {"patient": whole}
    apart = np.repeat(people, slides).reshape(-1, slides)[kept], scores[kept]
    return {"slide": (apart[0], labels[apart[0]], apart[1], called[kept]), "patient": whole}


def accuracy_of_slides(
    shape: Slides, patients: int, random: np.random.Generator, others: bool = False
) -> Intervals:
    """Evaluate one simulated cohort; yield nothing if it has too few patients for an interval.

    Args:
        shape: the type of cohort.
        patients: number of patients per class.
        random: source of the cohort's random numbers.
        others: also evaluate ROC AUC, average precision and the ROC curve, which takes longer.
    """
    if patients < LEAST_PATIENTS:
        return
    labels, scores = shape.draw(patients, random)
    for level, (people, truth, ranked, voted) in levels(scores, labels).items():
        weights = Weights(people, SETTINGS)
        for name, predicted in (("mean", ranked.argmax(axis=1)), ("vote", voted)):
            right = (predicted == truth).astype(np.float64)
            yield f"accuracy by {name}, {level}", draw_mean(right, weights, 0, 1).ends(right.mean())
        if not others:
            continue
        classes = ranked.shape[1]
        drawn = [
            draw_class(truth == number, ranked[:, number], weights, number, classes)
            for number in range(classes)
        ]
        for name in ("roc_auc", "average_precision"):
            each = [getattr(draws, name) for draws in drawn]
            for which, draws in (("macro", Draws.mean(each)), ("first class", each[0])):
                low, high = draws.ends(np.nan)
                yield f"{name}, {which}, {level}", (low, high)
        for rate, low, high in zip(RATES, *drawn[0].band(RATES), strict=True):
            yield f"ROC band at {rate:.1f}, {level}", (low, high)


def figures_of_slides(shape: Slides, patients: int, random: np.random.Generator) -> Intervals:
    """Evaluate all figures of one simulated cohort, as `accuracy_of_slides`."""
    return accuracy_of_slides(shape, patients, random, others=True)


@cache
def truth_of_slides(shape: Slides) -> dict[str, float]:
    """Return the figures of a population, computed with scikit-learn."""
    labels, scores = shape.draw(POPULATION // sum(shape.ratio), np.random.default_rng(0))
    figures = {}
    for level, (_, truth, ranked, voted) in levels(scores, labels).items():
        figures[f"accuracy by mean, {level}"] = (ranked.argmax(axis=1) == truth).mean()
        figures[f"accuracy by vote, {level}"] = (voted == truth).mean()
        for name, measure in (
            ("roc_auc", roc_auc_score),
            ("average_precision", average_precision_score),
        ):
            each = [measure(truth == n, ranked[:, n]) for n in range(ranked.shape[1])]
            figures[f"{name}, macro, {level}"] = np.mean(each)
            figures[f"{name}, first class, {level}"] = each[0]
        fpr, tpr, _ = roc_curve(truth == 0, ranked[:, 0])
        for rate in RATES:
            figures[f"ROC band at {rate:.1f}, {level}"] = np.interp(rate, fpr, tpr)
    return {name: float(value) for name, value in figures.items()}


def _table(labels: np.ndarray, scores: np.ndarray) -> pd.DataFrame:
    """Return slides.tsv of a simulated cohort; the classes are named by their numbers."""
    (people, truth, ranked, voted) = next(iter(levels(scores, labels).values()))
    names = [f"p_{number}" for number in range(ranked.shape[1])]
    table = pd.DataFrame(ranked, columns=names)
    return table.assign(
        patient=people,
        label=truth.astype(str),
        call_mean=ranked.argmax(axis=1).astype(str),
        call_vote=voted.astype(str),
    )


def scores_of_slides(shape: Slides, patients: int, random: np.random.Generator) -> Intervals:
    """Evaluate calibration, operating points, and the differences from a second cohort."""
    if patients < LEAST_PATIENTS:
        return
    table, classes = (
        _table(*shape.draw(patients, random)),
        [str(n) for n in range(len(shape.ratio))],
    )
    measured = calibrate(table, classes, SETTINGS)
    intervals: dict[str, Interval] = {
        "Brier score": measured.brier,
        "Brier score, first class": measured.brier_per_class["0"],
        "calibration error": measured.error,
        "calibration error, first class": measured.error_per_class["0"],
    }
    for item in figures_at(POINTS, table, SETTINGS):
        threshold = item.point.threshold
        intervals |= {
            f"sensitivity at {threshold:g}": item.sensitivity,
            f"specificity at {threshold:g}": item.specificity,
            f"PPV at {threshold:g}": item.ppv,
            f"NPV at {threshold:g}": item.npv,
        }
    for name, interval in intervals.items():
        if interval.low is not None and interval.high is not None:
            yield name, (interval.low, interval.high)
    level = evaluate_level(table, classes, SETTINGS)
    other = evaluate_level(_table(*shape.draw(2 * patients, random)), classes, SETTINGS)
    for name, new, old in (
        ("accuracy", level.accuracy.mean_call, other.accuracy.mean_call),
        ("roc_auc", level.roc_auc.macro, other.roc_auc.macro),
    ):
        between = difference(new, old)
        if between.low is not None and between.high is not None:
            yield f"difference of {name}", (between.low, between.high)


@cache
def truth_of_scores(shape: Slides) -> dict[str, float]:
    """Return the figures of a population; two cohorts of the same one do not differ."""
    labels, scores = shape.draw(POPULATION // sum(shape.ratio), np.random.default_rng(0))
    (_, truth, ranked, _) = next(iter(levels(scores, labels).values()))
    right = truth[:, None] == np.arange(ranked.shape[1])
    squares, slides = (ranked - right) ** 2, np.arange(len(truth))
    best = ranked.argmax(axis=1)
    figures = {
        "Brier score": squares.sum(axis=1).mean(),
        "Brier score, first class": squares[:, 0].mean(),
        "calibration error": calibration_error(
            ranked[slides, best], right[slides, best].astype(float)
        ),
        "calibration error, first class": calibration_error(
            ranked[:, 0], right[:, 0].astype(float)
        ),
        "difference of accuracy": 0.0,
        "difference of roc_auc": 0.0,
    }
    for point in POINTS:
        called, positive = ranked[:, 0] >= point.threshold, right[:, 0]
        text = f"{point.threshold:g}"
        figures |= {
            f"sensitivity at {text}": called[positive].mean(),
            f"specificity at {text}": (~called[~positive]).mean(),
            f"PPV at {text}": positive[called].mean(),
            f"NPV at {text}": (~positive[~called]).mean(),
        }
    return {name: float(value) for name, value in figures.items()}


def figures_of_volumes(shape: Volumes, patients: int, random: np.random.Generator) -> Intervals:
    """Evaluate one simulated cohort of volumes, and the differences from a second cohort."""
    figures = _means_of_volumes(shape, patients, random)
    others = _means_of_volumes(shape, 2 * patients, random)
    for name, mean in figures.items():
        for title, interval in (
            (name, mean),
            (f"difference of {name}", difference(mean, others[name])),
        ):
            if interval.low is not None and interval.high is not None:
                yield title, (interval.low, interval.high)


def _means_of_volumes(
    shape: Volumes, patients: int, random: np.random.Generator
) -> dict[str, Interval]:
    drawn = shape.draw(patients, random)
    size = drawn["dice"].shape
    patient, case, region = (axis.ravel() for axis in np.indices(size))
    table = pd.DataFrame({name: values.ravel() for name, values in drawn.items()})
    table["case"] = [f"{p:03}-{c}" for p, c in zip(patient, case, strict=True)]
    table["patient"] = [f"{p:03}" for p in patient]
    table["region"] = np.array(["r0", "r1"])[region]
    table["diagonal_mm"], table["empty"] = DIAGONAL, ""
    table["lesion_dice"], table["lesion_hd95_mm"] = table["dice"], table["hd95_mm"]
    for name in ("lesions", "missed_lesions", "false_positive_lesions"):
        table[name] = 1
    evaluated = evaluate_cases(table, ["r0", "r1"], SETTINGS, {})
    figures: dict[str, Interval] = {}
    for metric in drawn:
        means: RegionMeans = getattr(evaluated, metric)
        figures |= {f"{metric}, one region": means.per_region["r0"], f"{metric}, mean": means.mean}
    return figures


@cache
def truth_of_volumes(shape: Volumes) -> dict[str, float]:
    """Return the means of a population."""
    means_by_name = {}
    for figure, values in shape.draw(POPULATION, np.random.default_rng(0)).items():
        means = np.nanmean(values, axis=(0, 1))
        means_by_name |= {f"{figure}, one region": means[0], f"{figure}, mean": means.mean()}
    truth = {name: float(value) for name, value in means_by_name.items()}
    return truth | dict.fromkeys((f"difference of {name}" for name in truth), 0.0)


def percentile_bootstrap(shape: Slides, patients: int, random: np.random.Generator) -> Intervals:
    """Evaluate one simulated cohort with the percentile bootstrap over patients."""
    labels, scores = shape.draw(patients, random)
    for level, (people, truth, ranked, _) in levels(scores, labels).items():
        drawn = random.multinomial(len(labels), np.ones(len(labels)) / len(labels), 1000)[:, people]
        right = ranked.argmax(axis=1) == truth
        # The macro AUC of a resample without patients of a class is NaN and does not count.
        each = [
            ranking.roc_auc(*ranking.curve_counts(truth == n, ranked[:, n], drawn))
            for n in range(ranked.shape[1])
        ]
        resampled = {
            f"accuracy by mean, {level}": (drawn * right).sum(axis=1) / drawn.sum(axis=1),
            f"roc_auc, macro, {level}": np.mean(each, axis=0),
        }
        for name, values in resampled.items():
            low, high = np.nanpercentile(values, (2.5, 97.5))
            yield name, (low, high)


def coverage(
    shape: Any,
    patients: int,
    cohorts: int,
    evaluated: Callable[[Any, int, np.random.Generator], Intervals],
    truth: dict[str, float],
) -> dict[str, tuple[float, float]]:
    """Return coverage and mean width of the intervals of each figure that has intervals."""
    held: dict[str, list[bool]] = {}
    widths: dict[str, list[float]] = {}
    for number in range(cohorts):
        random = np.random.default_rng([number, patients])
        for name, (low, high) in evaluated(shape, patients, random):
            held.setdefault(name, []).append(low <= truth[name] <= high)
            widths.setdefault(name, []).append(high - low)
    return {name: (float(np.mean(held[name])), float(np.mean(widths[name]))) for name in held}


def _print_table(
    title: str, sizes: list[int], rows: dict[int, dict[str, tuple[float, float]]]
) -> None:
    print(f"\n{title}")
    print(f"{'':36}" + "".join(f"{size:>16}" for size in sizes))
    for name in dict.fromkeys(name for cells in rows.values() for name in cells):
        cells = []
        for size in sizes:
            cell = rows[size].get(name)
            digits = 1 if name.startswith("hd95") else 3
            cells.append("no interval" if cell is None else f"{cell[0]:.3f} ({cell[1]:.{digits}f})")
        print(f"{name:36}" + "".join(f"{cell:>16}" for cell in cells))


def standard_error(share: float, cohorts: int) -> float:
    """Return the standard error of a fraction of simulated cohorts."""
    return float(np.sqrt(share * (1 - share) / cohorts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cohorts", type=int, default=100, help="per type and size (100)")
    parser.add_argument(
        "--patients", type=int, nargs="+", default=list(PATIENTS), help="per class, or in all"
    )
    parser.add_argument("--each", action="store_true", help="also print a table for each type")
    parser.add_argument(
        "--accuracy",
        action="store_true",
        help="accuracy of slides only, fast enough for thousands of cohorts",
    )
    args = parser.parse_args()
    sizes = args.patients
    kinds: list[tuple[str, dict[str, Any], Any, Any]] = [
        ("slides, patients per class", SLIDES, figures_of_slides, truth_of_slides),
        ("calibration and thresholds", SLIDES, scores_of_slides, truth_of_scores),
        ("volumes, patients", VOLUMES, figures_of_volumes, truth_of_volumes),
        ("slides, percentile bootstrap", SLIDES, percentile_bootstrap, truth_of_slides),
    ]
    if args.accuracy:
        kinds = [("slides, patients per class", SLIDES, accuracy_of_slides, truth_of_slides)]
    print(f"coverage (mean width), {args.cohorts} cohorts of each type and size")
    print(
        "standard error of a coverage: "
        + ", ".join(
            f"{standard_error(share, args.cohorts):.4f} at {share}" for share in (0.93, 0.95, 0.98)
        )
    )
    lowest = {}
    for kind, shapes, evaluated, population in kinds:
        all_shapes: dict[int, dict[str, list[tuple[float, float]]]] = {s: {} for s in sizes}
        for title, shape in shapes.items():
            truth = population(shape)
            rows = {size: coverage(shape, size, args.cohorts, evaluated, truth) for size in sizes}
            if args.each:
                _print_table(f"{kind}: {title}", sizes, rows)
            for size, cells in rows.items():
                for name, cell in cells.items():
                    all_shapes[size].setdefault(name, []).append(cell)
        worst = {
            size: {
                name: (min(share for share, _ in several), float(np.mean([w for _, w in several])))
                for name, several in cells.items()
            }
            for size, cells in all_shapes.items()
        }
        _print_table(f"{kind}: lowest of {len(shapes)} types, mean width", sizes, worst)
        shares = [share for size in sizes if size >= 5 for share, _ in worst[size].values()]
        lowest[kind] = min(shares, default=np.nan)
    print("\nlowest coverage from 5 patients per class upwards:")
    for kind, share in lowest.items():
        print(f"{share:.3f}  {kind}")


if __name__ == "__main__":
    main()
