"""The 95 % intervals hold the truth on small cohorts: a few cells of benchmarks/coverage.py."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
from clones import ROOT
from scipy.stats import binom

from gigatile.evaluation.intervals import Weights, draw_mean

spec = spec_from_file_location("coverage_benchmark", ROOT / "benchmarks/coverage.py")
assert spec and spec.loader
simulated = module_from_spec(spec)
sys.modules[spec.name] = simulated
spec.loader.exec_module(simulated)

HOLDS = 0.93


def coverage(shape, patients, cohorts, evaluated, population):
    truth = population(shape)
    covered = simulated.coverage(shape, patients, cohorts, evaluated, truth)
    return {name: share for name, (share, _) in covered.items()}


@pytest.mark.parametrize(
    ("shape", "patients"),
    [
        ("3 classes, strong", 5),
        ("2 classes, 1 of 5 patients wrong, 3 slides", 5),
        ("2 classes, 1:6 patients, weak", 10),
    ],
)
def test_figures_of_slides_hold_and_the_percentile_bootstrap_does_not(shape, patients):
    cohort_shape, slides = simulated.SLIDES[shape], simulated.truth_of_slides
    ours = coverage(cohort_shape, patients, 150, simulated.figures_of_slides, slides)
    levels = {name.rsplit(", ", 1)[1] for name in ours}
    assert levels == ({"slide", "patient"} if cohort_shape.slides > 1 else {"patient"})
    assert len(ours) == 9 * len(levels)
    assert {name: share for name, share in ours.items() if share < HOLDS} == {}
    percentile = coverage(cohort_shape, patients, 150, simulated.percentile_bootstrap, slides)
    assert percentile["roc_auc, macro, patient"] < HOLDS


@pytest.mark.parametrize(
    ("shape", "patients"), [("1 of 20 regions missed", 5), ("Dice skewed, 3 cases a patient", 10)]
)
def test_means_of_volumes_hold(shape, patients):
    cohort_shape = simulated.VOLUMES[shape]
    ours = coverage(
        cohort_shape, patients, 60, simulated.figures_of_volumes, simulated.truth_of_volumes
    )
    assert len(ours) == 8
    assert {name: share for name, share in ours.items() if share < HOLDS} == {}


@pytest.mark.parametrize("patients", [5, 12, 40])
def test_a_share_of_patients_holds_at_every_truth(patients):
    """Counted, not simulated: the chance of each number of right calls is known."""
    weights = Weights(np.arange(patients), simulated.SETTINGS)
    right = np.arange(patients + 1)
    ends = np.array(
        [
            draw_mean((np.arange(patients) < some).astype(float), weights, 0, 1).ends(
                some / patients
            )
            for some in right
        ]
    )
    for truth in np.arange(0.02, 0.985, 0.02):
        holds = (ends[:, 0] <= truth) & (truth <= ends[:, 1])
        assert binom.pmf(right, patients, truth)[holds].sum() > HOLDS


def test_below_the_least_number_of_patients_there_is_no_interval():
    random = np.random.default_rng(1)
    for shape in simulated.SLIDES.values():
        assert list(simulated.figures_of_slides(shape, 4, random)) == []
    for shape in simulated.VOLUMES.values():
        assert list(simulated.figures_of_volumes(shape, 4, random)) == []
