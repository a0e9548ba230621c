"""An ensemble is evaluated on new slides by its mean predictions, as a model is by its own."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from bundles import make_bundle

from gigatile.bundle.contents import CALIBRATION, MANIFEST, METRICS, Bundle, open_bundle
from gigatile.bundle.copying import write_manifest
from gigatile.bundle.ensemble_validation import check_figures, validate_ensemble
from gigatile.bundle.ensembles import FOLDS, Ensemble, write_ensemble
from gigatile.errors import UserError
from gigatile.evaluation.calibration import evaluate_scores
from gigatile.evaluation.calibration_file import OperatingPoints
from gigatile.evaluation.external import evaluate_external
from gigatile.evaluation.external_file import ExternalMetrics
from gigatile.evaluation.external_outcomes import ExternalOutcomeMetrics
from gigatile.evaluation.metrics import evaluate
from gigatile.evaluation.outcomes import evaluate_outcomes
from gigatile.files import sha256_of
from gigatile.json_models import read_model, write_model
from gigatile.report.known_samples import COLUMNS
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.tables import write_table

SETTINGS = EvaluationSettings(resamples=1000)
CLASSES = ["luad", "lusc"]
NAMES = [f"N{number:02}" for number in range(12)]


def scores(count: int, seed: int) -> pd.DataFrame:
    """Return slides with labels, and scores that are often right."""
    random = np.random.default_rng(seed)
    labels = [CLASSES[number % 2] for number in range(count)]
    first = np.clip(0.7 - 0.4 * (np.arange(count) % 2) + random.normal(0, 0.2, count), 0, 1)
    first = first.round(3)
    return pd.DataFrame(
        {
            "slide": [f"N{number:02}" for number in range(count)],
            "patient": [f"Q{number:02}" for number in range(count)],
            "label": labels,
            "p_luad": first,
            "p_lusc": (1 - first).round(3),
            "call_mean": [CLASSES[int(value < 0.5)] for value in first],
        }
    )


def outcomes(count: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    true = random.normal(50, 20, count).round(1)
    return pd.DataFrame(
        {
            "slide": [f"N{number:02}" for number in range(count)],
            "patient": [f"Q{number:02}" for number in range(count)],
            "label": [str(value) for value in true],
            "tiles": 9,
            "predicted": (true + random.normal(0, 8, count)).round(3),
        }
    )


def write(path: Path, table: pd.DataFrame) -> None:
    write_table(path, list(table.columns), table.to_numpy(object).tolist())


def add_predictions(run: Path, known: tuple[str, ...] = (), compared: bool = True) -> Path:
    """Write what the run of a model has."""
    (run / "predictions/external").mkdir(parents=True)
    states = [(name, "tiled", "") for name in NAMES] + [("bad", "failed", "no slide")]
    write_table(run / "predictions/tiles.tsv", ("slide", "state", "reason"), states)
    rows = [(name, "P1", "Q1", "train", "pixels", 9) for name in known]
    write_table(run / "predictions/in_cohort.tsv", ("slide", *COLUMNS), rows)
    alone = evaluate_external(
        scores(0, 1),
        {},
        [],
        OperatingPoints.none(CLASSES),
        None,  # type: ignore[arg-type]
        SETTINGS,
        compared=compared,
        inputs={},
    )
    write_model(run / "predictions/external/metrics.json", alone)
    return run


def write_sheet(path: Path, truth: pd.DataFrame, column: str) -> Path:
    rows = [
        (name, f"{name}.svs", f"Q{name[1:]}", value)
        for name, value in zip(NAMES, truth["label"], strict=True)
    ]
    rows.append(("bad", "bad.svs", "Q99", truth["label"][0]))
    write_table(path, ("slide", "path", "patient", column), rows)
    return path


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    return [make_bundle(folder / f"{n}", name=f"fold-{n}", seed=n) for n in (1, 2)]


@pytest.fixture
def ensemble(bundles: list[Bundle], tmp_path: Path) -> Ensemble:
    """Return an ensemble with figures of 40 test slides."""
    pooled, tested = tmp_path / "pooled", scores(40, 1)
    (pooled / "evaluation").mkdir(parents=True)
    (pooled / FOLDS).write_text("{}")
    write_model(pooled / "evaluation" / METRICS, evaluate(tested, CLASSES, SETTINGS, {}))
    calibration = evaluate_scores(tested, OperatingPoints.none(CLASSES), SETTINGS, {})
    write_model(pooled / "evaluation" / CALIBRATION, calibration)
    return write_ensemble(bundles, pooled, tmp_path / "lung")


def test_figures_are_those_of_the_mean(ensemble: Ensemble, tmp_path: Path) -> None:
    mean = scores(12, 2)
    write(tmp_path / "lung-out/predictions/slides.tsv", mean.drop(columns="label"))
    # A slide that is in the cohort of one model only does not count.
    runs = [
        add_predictions(tmp_path / "fold-1"),
        add_predictions(tmp_path / "fold-2", ("N03",)),
    ]
    sheet = write_sheet(tmp_path / "sheet.tsv", mean, "label")
    page = validate_ensemble(ensemble, tmp_path / "lung-out", runs, sheet, SETTINGS)
    measured = read_model(ExternalMetrics, page.parent / METRICS)
    counted = mean[mean["slide"] != "N03"].reset_index(drop=True)
    assert measured.metrics == evaluate(counted, CLASSES, SETTINGS, {})
    reasons = {item.id: item.reason for item in measured.left_out}
    assert reasons == {"N03": "in the cohort: same pixels", "bad": "no slide"}
    old = json.loads((ensemble.folder / METRICS).read_text())["slide"]["roc_auc"]["macro"]["value"]
    assert measured.metrics is not None
    difference = measured.metrics.slide.roc_auc.macro.value - old
    assert measured.differences["ROC AUC"].value == pytest.approx(difference, abs=1e-6)
    assert measured.points == [] and measured.compared
    assert measured.inputs["predictions/slides.tsv"] == sha256_of(
        tmp_path / "lung-out/predictions/slides.tsv"
    )
    text = page.read_text()
    assert "The mean of 2 models." in text
    assert 'href="../../../fold-1/predictions/pages/index.html"' in text
    assert "Operating points" not in text and "Calibration" in text


def test_one_run_that_was_not_compared_is_enough(ensemble: Ensemble, tmp_path: Path) -> None:
    mean = scores(12, 2)
    write(tmp_path / "out/predictions/slides.tsv", mean.drop(columns="label"))
    runs = [
        add_predictions(tmp_path / "fold-1"),
        add_predictions(tmp_path / "fold-2", compared=False),
    ]
    sheet = write_sheet(tmp_path / "sheet.tsv", mean, "label")
    page = validate_ensemble(ensemble, tmp_path / "out", runs, sheet, SETTINGS)
    assert not read_model(ExternalMetrics, page.parent / METRICS).compared
    assert "Not compared with the cohort" in page.read_text()


def test_a_sheet_of_slides_of_the_cohort_has_no_figures(ensemble: Ensemble, tmp_path: Path) -> None:
    mean = scores(12, 2)
    write(tmp_path / "out/predictions/slides.tsv", mean.drop(columns="label"))
    runs = [add_predictions(tmp_path / f"fold-{n}", tuple(NAMES)) for n in (1, 2)]
    sheet = write_sheet(tmp_path / "sheet.tsv", mean, "label")
    page = validate_ensemble(ensemble, tmp_path / "out", runs, sheet, SETTINGS)
    measured = read_model(ExternalMetrics, page.parent / METRICS)
    assert measured.metrics is None and len(measured.left_out) == 13
    assert "No new slide counts" in page.read_text()


def test_an_ensemble_without_calibration_is_refused(ensemble: Ensemble) -> None:
    """As one that was written by an earlier release."""
    check_figures(ensemble)
    (ensemble.folder / CALIBRATION).unlink()
    with pytest.raises(UserError, match=r"has no calibration\.json.*; write the ensemble again"):
        check_figures(ensemble)


def test_outcomes(bundles: list[Bundle], tmp_path: Path) -> None:
    made = []
    for bundle in bundles:
        folder = tmp_path / "bundles" / bundle.manifest.name
        shutil.copytree(bundle.folder, folder)
        content = json.loads((folder / MANIFEST).read_text())
        changed = content | {"task": "whole_slide_outcome", "classes": []}
        (folder / MANIFEST).write_text(json.dumps(changed))
        write_manifest(folder, open_bundle(folder, check=False).manifest)
        made.append(open_bundle(folder))
    pooled = tmp_path / "pooled"
    (pooled / "evaluation").mkdir(parents=True)
    (pooled / FOLDS).write_text("{}")
    tested = evaluate_outcomes(outcomes(40, 1), None, SETTINGS, {})
    write_model(pooled / "evaluation" / METRICS, tested)
    ensemble = write_ensemble(made, pooled, tmp_path / "ages")
    check_figures(ensemble)
    mean = outcomes(12, 2)
    write(tmp_path / "out/predictions/slides.tsv", mean.drop(columns="label"))
    runs = [add_predictions(tmp_path / f"fold-{n}") for n in (1, 2)]
    sheet = write_sheet(tmp_path / "sheet.tsv", mean, "value")
    page = validate_ensemble(ensemble, tmp_path / "out", runs, sheet, SETTINGS)
    measured = read_model(ExternalOutcomeMetrics, page.parent / METRICS)
    assert measured.metrics == evaluate_outcomes(mean, None, SETTINGS, {})
    assert {item.id for item in measured.left_out} == {"bad"}
    assert measured.differences["concordance"].value == pytest.approx(
        measured.metrics.concordance.value - tested.concordance.value, abs=1e-6
    )
    text = page.read_text()
    assert "The mean of 2 models." in text and "../../../fold-1/predictions/pages/slides/" in text
