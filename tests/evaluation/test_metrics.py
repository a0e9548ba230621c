"""Metrics of slides equal scikit-learn's, and their intervals are over patients."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest
from sklearn import metrics as sk

from gigatile.evaluation.intervals import LEAST_PATIENTS
from gigatile.evaluation.metrics import evaluate
from gigatile.evaluation.metrics_file import SlideMetrics
from gigatile.settings.evaluate import EvaluationSettings

CLASSES = ["a", "b", "c"]
FEWEST = EvaluationSettings(resamples=1000)


def metrics_of(predictions, classes=CLASSES, settings=FEWEST) -> dict:
    """Return the content of metrics.json."""
    return evaluate(predictions, classes, settings, inputs={}).to_json()


def cohort(patients=40, per_patient=3, noise=0.6, seed=0, classes=3):
    """Return predictions of slides, better with less noise; a patient has one label."""
    random = np.random.default_rng(seed)
    rows = []
    for patient in range(patients):
        label = patient % classes
        for slide in range(per_patient):
            scores = random.dirichlet(np.ones(3)) * noise + (1 - noise) * np.eye(3)[label]
            scores = (scores / scores.sum()).round(6)
            vote = CLASSES[int(random.integers(3))]
            best = CLASSES[int(scores.argmax())]
            rows.append([f"s{patient}-{slide}", f"p{patient}", CLASSES[label], *scores, best, vote])
    columns = ["slide", "patient", "label", "p_a", "p_b", "p_c", "call_mean", "call_vote"]
    return pd.DataFrame(rows, columns=columns)


@pytest.fixture(scope="module")
def predictions():
    return cohort(noise=0.85)


@pytest.fixture(scope="module")
def metrics(predictions):
    return metrics_of(predictions)


def test_slide_metrics_equal_scikit_learns(predictions, metrics):
    level = metrics["slide"]
    scores = predictions[["p_a", "p_b", "p_c"]].to_numpy()
    assert level["n"] == 120 and level["patients"] == 40
    for name, column in (("mean_call", "call_mean"), ("vote_call", "call_vote")):
        expected = sk.accuracy_score(predictions["label"], predictions[column])
        assert level["accuracy"][name]["value"] == pytest.approx(expected, abs=1e-6)
        matrix = sk.confusion_matrix(predictions["label"], predictions[column], labels=CLASSES)
        assert level["confusion"][name] == matrix.tolist()
    macro = sk.roc_auc_score(predictions["label"], scores, multi_class="ovr", average="macro")
    assert level["roc_auc"]["macro"]["value"] == pytest.approx(macro, abs=1e-6)
    precision = []
    for number, label in enumerate(CLASSES):
        positive = predictions["label"] == label
        auc = level["roc_auc"]["per_class"][label]["value"]
        assert auc == pytest.approx(sk.roc_auc_score(positive, scores[:, number]), abs=1e-6)
        precision.append(sk.average_precision_score(positive, scores[:, number]))
        average_precision = level["average_precision"]["per_class"][label]["value"]
        assert average_precision == pytest.approx(precision[-1], abs=1e-6)
        curve = level["roc_curve"][label]
        assert sk.auc(curve["fpr"], curve["tpr"]) == pytest.approx(auc, abs=1e-4)
    macro = level["average_precision"]["macro"]["value"]
    assert macro == pytest.approx(np.mean(precision), abs=1e-6)


def test_patient_metrics_use_the_mean_scores_of_patients(predictions, metrics):
    means = predictions.groupby(["patient", "label"])[["p_a", "p_b", "p_c"]].mean().reset_index()
    expected = sk.roc_auc_score(
        means["label"], means[["p_a", "p_b", "p_c"]].to_numpy(), multi_class="ovr"
    )
    assert metrics["patient"]["n"] == 40
    assert metrics["patient"]["roc_auc"]["macro"]["value"] == pytest.approx(expected, abs=1e-6)


def test_intervals_contain_their_metric(metrics):
    for level in ("slide", "patient"):
        for family in ("roc_auc", "average_precision"):
            interval = metrics[level][family]["macro"]
            assert (
                0 < interval["low"] < interval["value"] < interval["high"] < 1
                and interval["no_interval"] is None
            )
        for curve in metrics[level]["roc_curve"].values():
            band = curve["band"]
            middle = np.interp(band["fpr"], curve["fpr"], curve["tpr"])
            inside = (np.array(band["low"]) <= middle) & (middle <= np.array(band["high"]))
            assert inside.all()


def test_intervals_weight_patients_not_slides():
    """Copies of slides add no information: the interval must not shrink."""
    predictions = cohort(patients=30, per_patient=1, noise=0.9)
    copies = pd.concat([predictions] * 9, ignore_index=True)
    copies["slide"] = [f"s{number}" for number in range(len(copies))]
    intervals = [
        metrics_of(frame)["slide"]["accuracy"]["mean_call"] for frame in (predictions, copies)
    ]
    single, nine = (interval["high"] - interval["low"] for interval in intervals)
    assert nine == pytest.approx(single, rel=0.05)


def test_interval_of_a_fraction_is_clopper_and_pearsons():
    """With one slide per patient, of which none, two or all are wrong."""
    predictions = cohort(patients=14, per_patient=1, noise=0)
    for wrong in (0, 2, 14):
        predictions["call_mean"] = predictions["label"]
        predictions.loc[predictions.index < wrong, "call_mean"] = predictions["label"].map(
            {"a": "b", "b": "c", "c": "a"}
        )
        settings = EvaluationSettings(resamples=10_000)
        metrics = metrics_of(predictions, settings=settings)
        accuracy = metrics["slide"]["accuracy"]["mean_call"]
        expected = binomtest(14 - wrong, 14).proportion_ci(method="exact")
        assert accuracy["low"] == pytest.approx(expected.low, abs=0.01)
        assert accuracy["high"] == pytest.approx(expected.high, abs=0.01)


def test_perfect_predictions_of_few_patients_have_wide_intervals():
    metrics = metrics_of(cohort(patients=15, per_patient=2, noise=0))
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
    """The scores of two classes rank the slides in opposite orders."""
    predictions = cohort(patients=30, per_patient=1, noise=0.9, classes=2)
    predictions["p_b"] = 1 - predictions["p_a"]
    predictions["call_mean"] = predictions["call_vote"] = "a"
    each = metrics_of(predictions, CLASSES[:2])["slide"]["roc_auc"]["per_class"]
    for name in ("value", "low", "high"):
        assert each["a"][name] == pytest.approx(each["b"][name], abs=1e-6)


def test_too_few_patients_have_a_reason_instead_of_an_interval():
    """Fourteen patients: 5 of a, 5 of b, 4 of c, each with many slides."""
    metrics = metrics_of(cohort(patients=14, per_patient=6, noise=0.7))
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
    few = metrics_of(cohort(patients=4, per_patient=9))["slide"]
    assert few["accuracy"]["mean_call"]["no_interval"] == "fewer than 5 patients (4)"
    assert few["roc_auc"]["per_class"]["a"]["no_interval"] == (
        "fewer than 5 patients of class a (2), of the other classes (2)"
    )


def test_intervals_depend_on_the_seed_not_on_the_row_order(predictions):
    expected = metrics_of(predictions)
    assert metrics_of(predictions) == expected
    shuffled = predictions.sample(frac=1, random_state=2)
    assert metrics_of(shuffled)["patient"] == expected["patient"]
    other = metrics_of(predictions, settings=EvaluationSettings(resamples=1000, seed=2))
    assert other["slide"]["accuracy"] != expected["slide"]["accuracy"]


def test_undefined_metrics_are_null():
    """A class without test slides has no ROC AUC, rather than 0 or 1."""
    predictions = cohort(patients=10, classes=2)
    metrics = metrics_of(predictions)
    text = json.dumps(metrics, allow_nan=False)
    assert "NaN" not in text
    for family in ("roc_auc", "average_precision"):
        assert metrics["slide"][family]["per_class"]["c"]["value"] is None
        assert metrics["slide"][family]["macro"]["value"] is None
        assert metrics["slide"][family]["per_class"]["a"]["value"] is not None
    assert metrics["slide"]["roc_curve"]["c"] is None
    assert metrics["slide"]["accuracy"]["mean_call"]["value"] is not None


def test_one_patient_can_be_evaluated():
    predictions = cohort(patients=1, per_patient=1)
    metrics = metrics_of(predictions)
    assert metrics["patient"]["n"] == 1
    assert metrics["slide"]["roc_auc"]["macro"] == {
        "value": None,
        "low": None,
        "high": None,
        "patients": 0,
        "no_interval": "the figure is not defined",
    }


@pytest.mark.parametrize("patients", [2, 14, 40])
def test_written_metrics_can_be_read(patients):
    metrics = json.loads(json.dumps(metrics_of(cohort(patients)), allow_nan=False))
    read = SlideMetrics.model_validate(metrics)
    assert read.intervals.settings() == FEWEST.model_dump(include={"resamples", "seed"})
    assert read.intervals.least_patients == LEAST_PATIENTS
    assert read.slide.roc_auc.macro.model_dump() == metrics["slide"]["roc_auc"]["macro"]
