"""Figures equal scikit-learn's, and their intervals are over patients."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk

from gigatile.evaluation.metrics import evaluate
from gigatile.settings.evaluate import EvaluationSettings

CLASSES = ["a", "b", "c"]


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
    return evaluate(calls, CLASSES, EvaluationSettings(resamples=200))


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
        found = level["average_precision"]["per_class"][label]["value"]
        assert found == pytest.approx(precision[-1], abs=1e-6)
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
            one = figures[level][family]["macro"]
            assert one["low"] < one["value"] < one["high"] and one["resamples"] == 200
        for curve in figures[level]["roc_curve"].values():
            band = curve["band"]
            middle = np.interp(band["fpr"], curve["fpr"], curve["tpr"])
            inside = (np.array(band["low"]) <= middle) & (middle <= np.array(band["high"]))
            assert inside.mean() > 0.95


def test_patients_are_resampled_and_not_slides():
    """Copies of a patient's slides tell nothing new: the interval must not shrink."""
    calls = cohort(patients=30, per_patient=1, noise=0.9)
    copies = pd.concat([calls] * 9, ignore_index=True)
    copies["slide"] = [f"s{number}" for number in range(len(copies))]
    settings = EvaluationSettings(resamples=400)
    widths = [
        evaluate(frame, CLASSES, settings)["slide"]["accuracy"]["mean_call"]
        for frame in (calls, copies)
    ]
    one, nine = (width["high"] - width["low"] for width in widths)
    assert nine == pytest.approx(one, rel=0.05)


def test_an_interval_covers_the_truth_as_often_as_it_says():
    """Over many cohorts of one population, about 95 % of the intervals hold its accuracy."""
    truth = (cohort(4000, 1, 0.9, 99).eval("call_mean == label")).mean()
    hits = []
    for seed in range(60):
        calls = cohort(60, 2, 0.9, seed)
        found = evaluate(calls, CLASSES, EvaluationSettings(resamples=100))
        one = found["slide"]["accuracy"]["mean_call"]
        hits.append(one["low"] <= truth <= one["high"])
    assert np.mean(hits) > 0.85


def test_the_seed_alone_decides_the_intervals(calls):
    few = EvaluationSettings(resamples=20)
    assert evaluate(calls, CLASSES, few) == evaluate(calls, CLASSES, few)
    other = evaluate(calls, CLASSES, EvaluationSettings(resamples=20, seed=2))
    assert other["slide"]["accuracy"] != evaluate(calls, CLASSES, few)["slide"]["accuracy"]


def test_figures_that_are_not_defined_are_null():
    """Two of three classes have test slides: what ranks the third is undefined, not 0 or 1."""
    calls = cohort(patients=10, classes=2)
    found = evaluate(calls, CLASSES, EvaluationSettings(resamples=20))
    text = json.dumps(found, allow_nan=False)
    assert "NaN" not in text
    for family in ("roc_auc", "average_precision"):
        assert found["slide"][family]["per_class"]["c"]["value"] is None
        assert found["slide"][family]["macro"]["value"] is None
        assert found["slide"][family]["per_class"]["a"]["value"] is not None
    assert found["slide"]["roc_curve"]["c"] is None
    assert found["slide"]["accuracy"]["mean_call"]["value"] is not None


def test_one_patient_alone_can_be_evaluated():
    calls = cohort(patients=1, per_patient=1)
    found = evaluate(calls, CLASSES, EvaluationSettings(resamples=10))
    assert found["patient"]["n"] == 1
    assert found["slide"]["roc_auc"]["macro"] == {
        "value": None,
        "low": None,
        "high": None,
        "resamples": 0,
    }
