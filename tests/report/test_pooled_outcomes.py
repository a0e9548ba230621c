"""Folds of numbers and of times to events are pooled, with the proof of those of classes."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from built_folds import restate
from slide_runs import Plan, build_run

from gigatile.cohort.outcomes import Outcome
from gigatile.cohort.samples import Sample
from gigatile.cohort.splits import assign, prove_splits
from gigatile.errors import UserError
from gigatile.evaluation.compared_runs import compare_runs
from gigatile.evaluation.outcome_table import read_outcome_table
from gigatile.evaluation.outcomes import evaluate_outcomes, median_risk
from gigatile.evaluation.survival import concordance
from gigatile.files import read_json, sha256_of, write_json
from gigatile.json_models import write_model
from gigatile.provenance.output_records import record_path, write_output_record
from gigatile.report.pooled_folds import CALIBRATED, pool_folds
from gigatile.report.pooled_predictions import MADE_FROM
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.split import SplitSettings
from gigatile.tables import read_table, write_table

METRICS, SLIDES = "evaluation/metrics.json", "evaluation/slides.tsv"
VALIDATED = "validation/slides.tsv"
SETTINGS = EvaluationSettings(resamples=1000)
# The risks of each fold's model have another origin.
ORIGINS = {1: 0.0, 2: 7.0, 3: -4.0}


def outcome_of(patient: int, kind: str) -> Outcome:
    if kind == "number":
        return Outcome(10.0 + patient, None)
    return Outcome(30.0 - patient, patient % 4 != 0)


def predicted(patient: int, kind: str, fold: int) -> float:
    """Return a prediction that is nearly in order: later patients have larger numbers and risks."""
    noise = float(np.random.default_rng(patient).normal(0, 2))
    return round(patient + noise + (10 if kind == "number" else ORIGINS[fold]), 6)


def build(folder: Path, fold: int, kind: str, held_out: float = 0) -> Path:
    """Build the run of a fold: 24 patients with a slide each."""
    settings = SplitSettings(folds=3, fold=fold, seed=44, held_out=held_out)
    members = [
        Sample(f"S{n}", f"P{n}", str(outcome_of(n, kind)), Path(f"{n}"), None, "", "", 2)
        for n in range(24)
    ]
    splits = assign(members, settings)
    plans = [
        Plan(each.slide, each.patient, each.label, splits[each.patient], columns=3, rows=3)
        for each in members
    ]
    run = build_run(folder / f"fold-{fold}", plans, classes=[each.label for each in members])
    write_model(run / "splits.json", prove_splits(members, splits, settings, "ab" * 32))
    rows = [
        (p.slide, p.patient, p.label, 9, predicted(int(p.slide[1:]), kind, fold))
        for p in plans
        if p.split == "test"
    ]
    write_table(run / SLIDES, ("slide", "patient", "label", "tiles", "predicted"), rows)
    names = (SLIDES, "model/model.keras", "tiles.tsv")
    threshold = None
    if kind == "survival":
        # With a median of 12, and the origin of the model.
        rows = [(f"V{n}", f"V{n}", "1.0 event", 9, 12 + n + ORIGINS[fold]) for n in (-3, 0, 5)]
        (run / "validation").mkdir()
        write_table(run / VALIDATED, ("slide", "patient", "label", "tiles", "predicted"), rows)
        names += (VALIDATED,)
        threshold = median_risk(read_outcome_table(run / VALIDATED))
    inputs = {name: sha256_of(run / name) for name in names}
    table = read_outcome_table(run / SLIDES)
    write_model(run / METRICS, evaluate_outcomes(table, threshold, SETTINGS, inputs))
    return run


@pytest.fixture(scope="module", params=["number", "survival"])
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def made(kind, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(kind)
    for fold in (1, 2, 3):
        build(folder, fold, kind)
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> list[Path]:
    shutil.copytree(made, tmp_path / "runs")
    return [tmp_path / f"runs/fold-{fold}" for fold in (1, 2, 3)]


def numbers_of(table: pd.DataFrame) -> list[int]:
    return [int(slide[1:]) for slide in table["slide"]]


def test_all_patients_are_evaluated_together(runs, kind, tmp_path):
    """Risks of several models are compared relative to the threshold of each."""
    pooled = pool_folds(runs)
    written = pooled.write(tmp_path / "folds")
    assert len(pooled.slides) == 24 == pooled.proof.patients
    assert not (tmp_path / "folds" / CALIBRATED).exists(), "there are no scores of classes"
    own = read_json(runs[1] / METRICS)["concordance"]
    of_fold = pooled.proof.folds[1].figures["concordance"].to_json()
    assert all(of_fold[name] == own[name] for name in ("value", "low", "high", "patients"))
    table = read_outcome_table(tmp_path / "folds" / SLIDES)
    slides = numbers_of(table)
    origin = 12.0 if kind == "survival" else 0.0
    expected = [predicted(n, kind, 1) - origin for n in slides]
    np.testing.assert_allclose(table["predicted"], expected, atol=2e-6)
    outcomes = [outcome_of(n, kind) for n in slides]
    values = np.array([outcome.value for outcome in outcomes])
    events = np.array([outcome.event is not False for outcome in outcomes])
    risks = np.array(expected) * (-1 if kind == "number" else 1)
    agreement = concordance(risks, values, events)
    assert agreement > 0.8
    assert written.figures["concordance"].value == pytest.approx(agreement, abs=1e-6)
    if kind == "survival":
        survival = written.metrics.survival
        assert survival.threshold == 0
        assert survival.high_risk.patients == sum(value > 0 for value in expected)
    else:
        errors = np.abs(table["predicted"] - values).mean()
        assert written.figures["mean absolute error"].value == pytest.approx(errors, abs=1e-6)


def test_pooled_folds_are_compared_like_runs(runs, tmp_path):
    pool_folds(runs).write(tmp_path / "folds")
    pool_folds(runs[::-1]).write(tmp_path / "again")
    for name in (SLIDES, METRICS, "folds.json"):
        assert (tmp_path / "folds" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    compared = compare_runs([tmp_path / "folds", tmp_path / "again"])
    assert compared.figures[0].figure == "concordance"
    assert (compared.figures[0].difference, compared.figures[0].p) == (0, 1)


def test_held_out_patients_are_tested_with_the_mean_of_all_models(kind, tmp_path):
    runs = [build(tmp_path, fold, kind, held_out=0.4) for fold in (1, 2, 3)]
    tables = [pd.read_csv(run / SLIDES, sep="\t") for run in runs]
    for number, (run, table) in enumerate(zip(runs, tables, strict=True)):
        table["predicted"] += 0.5 * number
        table.sample(frac=1, random_state=number).to_csv(run / SLIDES, sep="\t", index=False)
        restate(run, METRICS, SLIDES)
    pooled = pool_folds(runs)
    pooled.write(tmp_path / "mean")
    assert pooled.proof.scores == "mean"
    table = read_outcome_table(tmp_path / "mean" / SLIDES)
    origin = 12.0 if kind == "survival" else 0.0
    expected = [predicted(n, kind, 1) - origin + 0.5 for n in numbers_of(table)]
    np.testing.assert_allclose(table["predicted"], expected, atol=2e-6)


def test_new_slides_get_the_mean_of_all_models(runs, kind, tmp_path):
    for fold, run in enumerate(runs, 1):
        folder = run / "predictions"
        folder.mkdir()
        rows = [[f"N{n}", f"N{n}", 9, predicted(n, kind, fold) + fold] for n in range(3)]
        write_table(folder / "slides.tsv", ["slide", "patient", "tiles", "predicted"], rows)
        write_table(folder / "tiles.tsv", ["slide", "sha256"], [[r[0], f"of {r[0]}"] for r in rows])
        columns = ["slide", "in_cohort", "patient", "split", "same", "equal_images"]
        write_table(folder / "in_cohort.tsv", columns, [["N2", "", "", "", "pixels", 3]])
        write_output_record(record_path(run, "prediction_pages"), [folder / "in_cohort.tsv"])
        files = ("model/model.keras", "predictions/tiles.tsv", "predictions/slides.tsv")
        inputs = {name: sha256_of(run / name) for name in files}
        write_json(run / MADE_FROM, {"inputs": inputs})
    pooled = pool_folds(runs)
    pooled.write(tmp_path / "folds")
    table = pd.read_csv(tmp_path / "folds/predictions/slides.tsv", sep="\t")
    origin = 12.0 if kind == "survival" else 0.0
    expected = [predicted(n, kind, 1) + 2 - origin for n in range(3)]
    np.testing.assert_allclose(table["predicted"], expected, atol=2e-6)
    np.testing.assert_allclose(table["deviation"], np.std([1, 2, 3]), atol=1e-6)
    assert table["in_cohort"].tolist() == ["no", "no", "yes"]
    assert pooled.predictions.agreement == "the models deviate by up to 0.8165"
    assert read_json(tmp_path / "folds" / MADE_FROM)["kind"] == kind


def test_a_test_patient_who_trains_is_found(runs):
    rows = read_table(runs[0] / "tiles.tsv")
    patient = next(row["patient"] for row in rows if row["split"] == "test")
    new = {"slide": "S999", "patient": patient, "split": "train"}
    rows.append(rows[0] | new | {"state": "failed", "tiles": "0", "reason": "none"})
    write_table(runs[0] / "tiles.tsv", list(rows[0]), [list(row.values()) for row in rows])
    restate(runs[0], METRICS, "tiles.tsv")
    with pytest.raises(UserError, match=f"fold-1: patient {patient} is tested, and in train or va"):
        pool_folds(runs)


def test_an_edited_prediction_is_found(runs):
    text = (runs[2] / SLIDES).read_text()
    (runs[2] / SLIDES).write_text(text.replace("\t9\t", "\t9\t1", 1))
    with pytest.raises(UserError, match=r"computed from another version of evaluation/slides\.tsv"):
        pool_folds(runs)


def test_another_threshold_is_found(tmp_path):
    """It would shift all risks of a fold."""
    runs = [build(tmp_path, fold, "survival") for fold in (1, 2, 3)]
    content = read_json(runs[1] / METRICS)
    content["survival"]["threshold"] += 1
    write_json(runs[1] / METRICS, content)
    with pytest.raises(UserError, match=r"fold-2: the threshold in .* is not the median risk of v"):
        pool_folds(runs)
    content["survival"]["threshold"] -= 1
    write_json(runs[1] / METRICS, content)
    (runs[1] / VALIDATED).write_text((runs[1] / VALIDATED).read_text().replace("V-3", "V3"))
    with pytest.raises(UserError, match=r"computed from another version of validation/slides\.tsv"):
        pool_folds(runs)


def test_edited_figures_are_found(runs):
    """The record of the evaluation has the checksum of its files."""
    write_output_record(record_path(runs[0], "evaluate"), [runs[0] / SLIDES, runs[0] / METRICS])
    pool_folds(runs)
    content = read_json(runs[0] / METRICS)
    content["concordance"]["value"] = 1.0
    content["concordance"]["low"] = 0.99
    write_json(runs[0] / METRICS, content)
    with pytest.raises(
        UserError, match=r"evaluation/metrics\.json was changed after the evaluation"
    ):
        pool_folds(runs)


def test_folds_of_another_kind_are_refused(tmp_path):
    numbers = [build(tmp_path / "n", fold, "number") for fold in (1, 2)]
    times = build(tmp_path / "t", 3, "survival")
    with pytest.raises(UserError, match="fold-3 has another kind of outcomes than fold-1"):
        pool_folds([*numbers, times])
