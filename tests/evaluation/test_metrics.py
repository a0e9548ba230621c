"""Figures equal scikit-learn's, and their intervals are over patients."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest
from sklearn import metrics as sk

from gigatile.evaluation.intervals import LEAST_PATIENTS
from gigatile.evaluation.metrics import evaluate
from gigatile.report.slides.metrics import SlideMetrics
from gigatile.settings.evaluate import EvaluationSettings

CLASSES = ["a", "b", "c"]
FEWEST = EvaluationSettings(resamples=1000)


def cohort(patients=40, per_patient=3, noise=0.6, seed=0, classes=3):
    """Return calls of slides whose scores lean to their label; labels differ between patients."""
    random = np.random.default_rng(seed)
    rows = []
    for patient in range(patients):
        label = patient % classes
        for slide in range(per_patient):
            scores = random.dirichlet(np.ones(3)) * noise + (1 - noise) * np.eye(3)[label]
            scores = (scores / scores.sum()).round(6)
            vote = CLASSES[int(random.integers(3))]
            call = CLASSES[int(scores.argmax())]
            rows.append([f"s{patient}-{slide}", f"p{patient}", CLASSES[label], *scores, call, vote])
    columns = ["slide", "patient", "label", "p_a", "p_b", "p_c", "call_mean", "call_vote"]
    return pd.DataFrame(rows, columns=columns)


@pytest.fixture(scope="module")
def calls():
    return cohort(noise=0.85)


@pytest.fixture(scope="module")
def figures(calls):
    return evaluate(calls, CLASSES, FEWEST)


def test_slide_figures_are_scikit_learns(calls, figures):
    level = figures["slide"]
    scores = calls[["p_a", "p_b", "p_c"]].to_numpy()
    assert level["n"] == 120 and level["patients"] == 40
    for name, column in (("mean_call", "call_mean"), ("vote_call", "call_vote")):
        expected = sk.accuracy_score(calls["label"], calls[column])
        assert level["accuracy"][name]["value"] == pytest.approx(expected, abs=1e-6)
        matrix = sk.confusion_matrix(calls["label"], calls[column], labels=CLASSES)
        assert level["confusion"][name] == matrix.tolist()
    macro = sk.roc_auc_score(calls["label"], scores, multi_class="ovr", average="macro")
    assert level["roc_auc"]["macro"]["value"] == pytest.approx(macro, abs=1e-6)
    precision = []
    for number, label in enumerate(CLASSES):
        truth = calls["label"] == label
        auc = level["roc_auc"]["per_class"][label]["value"]
        assert auc == pytest.approx(sk.roc_auc_score(truth, scores[:, number]), abs=1e-6)
        precision.append(sk.average_precision_score(truth, scores[:, number]))
        average_precision = level["average_precision"]["per_class"][label]["value"]
        assert average_precision == pytest.approx(precision[-1], abs=1e-6)
        curve = level["roc_curve"][label]
        assert sk.auc(curve["fpr"], curve["tpr"]) == pytest.approx(auc, abs=1e-4)
    macro = level["average_precision"]["macro"]["value"]
    assert macro == pytest.approx(np.mean(precision), abs=1e-6)


def test_patient_figures_are_of_patients(calls, figures):
    means = calls.groupby(["patient", "label"])[["p_a", "p_b", "p_c"]].mean().reset_index()
    expected = sk.roc_auc_score(
        means["label"], means[["p_a", "p_b", "p_c"]].to_numpy(), multi_class="ovr"
    )
    assert figures["patient"]["n"] == 40
    assert figures["patient"]["roc_auc"]["macro"]["value"] == pytest.approx(expected, abs=1e-6)


def test_intervals_hold_their_figure(figures):
    for level in ("slide", "patient"):
        for family in ("roc_auc", "average_precision"):
            interval = figures[level][family]["macro"]
            assert (
                0 < interval["low"] < interval["value"] < interval["high"] < 1
                and interval["no_interval"] is None
            )
        for curve in figures[level]["roc_curve"].values():
            band = curve["band"]
            middle = np.interp(band["fpr"], curve["fpr"], curve["tpr"])
            inside = (np.array(band["low"]) <= middle) & (middle <= np.array(band["high"]))
            assert inside.all()


def test_patients_are_weighted_and_not_slides():
    """Copies of a patient's slides tell nothing new: the interval must not shrink."""
    calls = cohort(patients=30, per_patient=1, noise=0.9)
    copies = pd.concat([calls] * 9, ignore_index=True)
    copies["slide"] = [f"s{number}" for number in range(len(copies))]
    settings = FEWEST
    widths = [
        evaluate(frame, CLASSES, settings)["slide"]["accuracy"]["mean_call"]
        for frame in (calls, copies)
    ]
    single, nine = (width["high"] - width["low"] for width in widths)
    assert nine == pytest.approx(single, rel=0.05)


def test_the_interval_of_a_share_is_clopper_and_pearsons():
    """With one slide a patient; a seventh is called wrong, then none."""
    calls = cohort(patients=14, per_patient=1, noise=0)
    for wrong in (0, 2, 14):
        calls["call_mean"] = calls["label"]
        calls.loc[calls.index < wrong, "call_mean"] = calls["label"].map(
            {"a": "b", "b": "c", "c": "a"}
        )
        settings = EvaluationSettings(resamples=10_000)
        accuracy = evaluate(calls, CLASSES, settings)["slide"]["accuracy"]["mean_call"]
        expected = binomtest(14 - wrong, 14).proportion_ci(method="exact")
        assert accuracy["low"] == pytest.approx(expected.low, abs=0.01)
        assert accuracy["high"] == pytest.approx(expected.high, abs=0.01)


def test_perfect_calls_of_few_patients_are_not_taken_for_certainty():
    metrics = evaluate(cohort(patients=15, per_patient=2, noise=0), CLASSES, FEWEST)
    for level in ("slide", "patient"):
        for interval in (
            metrics[level]["accuracy"]["mean_call"],
            metrics[level]["roc_auc"]["macro"],
            metrics[level]["average_precision"]["per_class"]["b"],
        ):
            assert (interval["value"], interval["high"]) == (1, 1) and interval["low"] < 0.82
        band = metrics[level]["roc_curve"]["a"]["band"]
        assert band["low"][10] < 0.5 and band["high"][10] == 1


def test_two_classes_have_one_roc_auc():
    """What ranks one above the other ranks the other above the one."""
    calls = cohort(patients=30, per_patient=1, noise=0.9, classes=2)
    calls["p_b"] = 1 - calls["p_a"]
    calls["call_mean"] = calls["call_vote"] = "a"
    each = evaluate(calls, CLASSES[:2], FEWEST)["slide"]["roc_auc"]["per_class"]
    for name in ("value", "low", "high"):
        assert each["a"][name] == pytest.approx(each["b"][name], abs=1e-6)


def test_too_few_patients_have_no_interval_and_the_reason():
    """Fourteen patients: 5 of a, 5 of b, 4 of c, each with many slides."""
    metrics = evaluate(cohort(patients=14, per_patient=6, noise=0.7), CLASSES, FEWEST)
    why = "fewer than 5 patients of class c (4)"
    for level in ("slide", "patient"):
        for family in ("roc_auc", "average_precision"):
            for interval in (
                metrics[level][family]["macro"],
                metrics[level][family]["per_class"]["c"],
            ):
                assert interval["value"] is not None and interval["patients"] == 4
                assert (interval["low"], interval["high"], interval["no_interval"]) == (
                    None,
                    None,
                    why,
                )
            assert metrics[level][family]["per_class"]["a"]["low"] is not None
        assert metrics[level]["roc_curve"]["c"]["band"] is None
        assert metrics[level]["roc_curve"]["a"]["band"] is not None
        assert metrics[level]["accuracy"]["mean_call"]["low"] is not None
    few = evaluate(cohort(patients=4, per_patient=9), CLASSES, FEWEST)["slide"]
    assert few["accuracy"]["mean_call"]["no_interval"] == "fewer than 5 patients (4)"
    assert few["roc_auc"]["per_class"]["a"]["no_interval"] == (
        "fewer than 5 patients of class a (2), of the other classes (2)"
    )


def test_the_seed_alone_decides_the_intervals(calls):
    expected = evaluate(calls, CLASSES, FEWEST)
    assert evaluate(calls, CLASSES, FEWEST) == expected
    mixed = calls.sample(frac=1, random_state=2)
    assert evaluate(mixed, CLASSES, FEWEST)["patient"] == expected["patient"]
    other = evaluate(calls, CLASSES, EvaluationSettings(resamples=1000, seed=2))
    assert other["slide"]["accuracy"] != expected["slide"]["accuracy"]


def test_figures_that_are_not_defined_are_null():
    """Two of three classes have test slides: what ranks the third is undefined, not 0 or 1."""
    calls = cohort(patients=10, classes=2)
    metrics = evaluate(calls, CLASSES, FEWEST)
    text = json.dumps(metrics, allow_nan=False)
    assert "NaN" not in text
    for family in ("roc_auc", "average_precision"):
        assert metrics["slide"][family]["per_class"]["c"]["value"] is None
        assert metrics["slide"][family]["macro"]["value"] is None
        assert metrics["slide"][family]["per_class"]["a"]["value"] is not None
    assert metrics["slide"]["roc_curve"]["c"] is None
    assert metrics["slide"]["accuracy"]["mean_call"]["value"] is not None


def test_one_patient_alone_can_be_evaluated():
    calls = cohort(patients=1, per_patient=1)
    metrics = evaluate(calls, CLASSES, FEWEST)
    assert metrics["patient"]["n"] == 1
    assert metrics["slide"]["roc_auc"]["macro"] == {
        "value": None,
        "low": None,
        "high": None,
        "patients": 0,
        "no_interval": "the figure is not defined",
    }


@pytest.mark.parametrize("patients", [2, 14, 40])
def test_the_report_reads_what_is_written(patients):
    metrics = json.loads(json.dumps(evaluate(cohort(patients), CLASSES, FEWEST), allow_nan=False))
    read = SlideMetrics.model_validate(metrics | {"inputs": {}})
    assert read.intervals.settings() == FEWEST.model_dump(exclude={"hd95"})
    assert read.intervals.least_patients == LEAST_PATIENTS
    assert read.slide.roc_auc.macro.model_dump() == metrics["slide"]["roc_auc"]["macro"]
