"""The coverage of the 95 % intervals on small cohorts: a few cells of benchmarks/coverage.py."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
from clones import ROOT
from scipy.stats import binom

from gigatile.evaluation.intervals import Weights, draw_mean

spec = spec_from_file_location("coverage_benchmark", ROOT / "benchmarks/coverage.py")
assert spec and spec.loader
simulation = module_from_spec(spec)
sys.modules[spec.name] = simulation
spec.loader.exec_module(simulation)

MIN_COVERAGE = 0.93


def coverage(shape, patients, cohorts, evaluated, population):
    true_values = population(shape)
    coverages = simulation.coverage(shape, patients, cohorts, evaluated, true_values)
    return {name: share for name, (share, _) in coverages.items()}


@pytest.mark.parametrize(
    ("shape", "patients"),
    [
        ("3 classes, strong", 5),
        ("2 classes, 1 of 5 patients wrong, 3 slides", 5),
        ("2 classes, 1:6 patients, weak", 10),
    ],
)
def test_intervals_of_slides_cover_unlike_the_percentile_bootstrap(shape, patients):
    cohort_shape, slides = simulation.SLIDES[shape], simulation.truth_of_slides
    coverages = coverage(cohort_shape, patients, 150, simulation.figures_of_slides, slides)
    levels = {name.rsplit(", ", 1)[1] for name in coverages}
    assert levels == ({"slide", "patient"} if cohort_shape.slides > 1 else {"patient"})
    assert len(coverages) == 9 * len(levels)
    assert {name: share for name, share in coverages.items() if share < MIN_COVERAGE} == {}
    percentile = coverage(cohort_shape, patients, 150, simulation.percentile_bootstrap, slides)
    assert percentile["roc_auc, macro, patient"] < MIN_COVERAGE


@pytest.mark.parametrize(
    ("shape", "patients"), [("3 classes, weak", 5), ("1 of 5 patients wrong, 3 slides", 10)]
)
def test_intervals_of_calibration_and_thresholds_cover(shape, patients):
    (cohort_shape,) = (item for name, item in simulation.SLIDES.items() if name.endswith(shape))
    coverages = coverage(
        cohort_shape, patients, 60, simulation.scores_of_slides, simulation.truth_of_scores
    )
    assert len(coverages) == 14
    assert {name: share for name, share in coverages.items() if share < 0.9} == {}


@pytest.mark.parametrize(
    ("shape", "patients"), [("1 of 20 regions missed", 5), ("Dice skewed, 3 cases a patient", 10)]
)
def test_intervals_of_volumes_cover(shape, patients):
    cohort_shape = simulation.VOLUMES[shape]
    coverages = coverage(
        cohort_shape, patients, 60, simulation.figures_of_volumes, simulation.truth_of_volumes
    )
    assert len(coverages) == 16
    assert {name: share for name, share in coverages.items() if share < MIN_COVERAGE} == {}


@pytest.mark.parametrize("patients", [5, 12, 40])
def test_interval_of_a_fraction_covers_every_true_value(patients):
    """Computed, not simulated: the number of correct predictions has a binomial distribution."""
    weights = Weights(np.arange(patients), simulation.SETTINGS)
    counts = np.arange(patients + 1)
    ends = np.array(
        [
            draw_mean((np.arange(patients) < correct).astype(float), weights, 0, 1).ends(
                correct / patients
            )
            for correct in counts
        ]
    )
    for fraction in np.arange(0.02, 0.985, 0.02):
        covered = (ends[:, 0] <= fraction) & (fraction <= ends[:, 1])
        assert binom.pmf(counts, patients, fraction)[covered].sum() > MIN_COVERAGE


def test_too_few_patients_have_no_interval():
    random = np.random.default_rng(1)
    for shape in simulation.SLIDES.values():
        assert list(simulation.figures_of_slides(shape, 4, random)) == []
    for shape in simulation.VOLUMES.values():
        assert list(simulation.figures_of_volumes(shape, 4, random)) == []
