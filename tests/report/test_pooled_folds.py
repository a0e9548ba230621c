"""Folds are pooled only if each patient is tested once, and no fold trains on its test patients."""

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from built_folds import build_fold, restate
from sklearn.metrics import roc_auc_score
from slide_runs import CLASSES

from gigatile.errors import UserError
from gigatile.evaluation.calibration_file import CalibrationFile
from gigatile.evaluation.compared_runs import compare_runs
from gigatile.files import read_json, sha256_of, write_json
from gigatile.json_models import read_model
from gigatile.report.pooled_folds import CALIBRATED, pool_folds
from gigatile.settings.initial_weights import INITIAL_WEIGHTS
from gigatile.tables import read_table, write_table

METRICS, TABLE, MANIFEST = "evaluation/metrics.json", "tiles.tsv", "shards/manifest.json"


def test_all_patients_are_evaluated_together(runs: list[Path]) -> None:
    pooled = pool_folds(runs)
    proof = pooled.proof
    assert (proof.patients, proof.scores, len(pooled.slides), proof.doubts) == (
        *(18, "one model", 18, []),
    )
    assert [(fold.fold, fold.run, fold.patients) for fold in proof.folds] == [
        (1, "fold-1", 6),
        (2, "fold-2", 6),
        (3, "fold-3", 6),
    ]
    slides = pd.concat(pd.read_csv(run / "evaluation/slides.tsv", sep="\t") for run in runs)
    metrics = pooled.write(runs[0].parent / "folds").metrics
    for name, area in metrics.slide.roc_auc.per_class.items():
        expected = roc_auc_score(slides["label"] == name, slides[f"p_{name}"])
        assert area.value == pytest.approx(expected, abs=1e-6)
    calibration = read_model(CalibrationFile, runs[0].parent / "folds" / CALIBRATED)
    scores = slides[[f"p_{name}" for name in CLASSES]].to_numpy()
    labels = pd.get_dummies(slides["label"])[list(CLASSES)].to_numpy(float)
    squares = (scores - labels) ** 2
    assert (calibration.n, calibration.points) == (18, [])
    assert calibration.calibration.brier.value == pytest.approx(squares.sum() / 18, abs=1e-6)
    own = read_json(runs[1] / METRICS)["slide"]["accuracy"]["mean_call"]
    assert proof.folds[1].figures["accuracy"].value == own["value"]
    for name in ("splits.json", TABLE, MANIFEST, "model/model.keras", METRICS):
        assert proof.inputs[f"fold-2/{name}"] == sha256_of(runs[1] / name)
    assert proof == pool_folds(runs[::-1]).proof


# --- Edits, each with all checksums that record the edited file


def edit_table(run: Path, change: Callable[[list[dict[str, str]]], object]) -> None:
    """Edit the table of slides; the test results state that they are of the edited one."""
    rows = read_table(run / TABLE)
    change(rows)
    write_table(run / TABLE, list(rows[0]), [list(row.values()) for row in rows])
    restate(run, METRICS, TABLE)


def move(run: Path, patient: str, split: str) -> None:
    """Move a patient to another split in the table of slides."""
    edit_table(
        run,
        lambda rows: [row.update(split=split) for row in rows if row["patient"] == patient],
    )


def add(run: Path, slide: str, patient: str, split: str) -> None:
    """Add a slide that could not be used, so that the shards stay those of the table."""

    def change(rows: list[dict[str, str]]) -> None:
        new = {"slide": slide, "patient": patient, "split": split}
        rows.append(rows[0] | new | {"state": "failed", "tiles": "0", "reason": "none"})

    edit_table(run, change)


def patient_in(run: Path, split: str) -> str:
    return next(row["patient"] for row in read_table(run / TABLE) if row["split"] == split)


def refused(runs: list[Path], *faults: str) -> None:
    with pytest.raises(UserError) as caught:
        pool_folds(runs)
    for fault in faults:
        assert re.search(fault, str(caught.value)), str(caught.value)


# --- Runs that are no folds of one cross-validation


def test_missing_and_doubled_folds_are_named(runs: list[Path], tmp_path: Path) -> None:
    refused(runs[:2], "fold 3 is missing")
    again = shutil.copytree(runs[1], tmp_path / "again")
    refused([*runs, again], "fold 2 is given 2 times")
    refused([runs[0], again], "fold 3 is missing")
    refused([runs[0], runs[0]], "runs of the same name: fold-1, fold-1")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"seed": 45}, "fold-3 has another seed than fold-1"),
        ({"folds": 4}, "fold-3 has another number of folds than fold-1"),
        ({"by": "site"}, "fold-3 has another split.by than fold-1"),
        ({"held_out": 0.3}, "fold-3 has another split.held_out than fold-1"),
        ({"sheet_sha256": "cd" * 32}, "fold-3 has another sample sheet than fold-1"),
    ],
)
def test_folds_of_other_splits_are_refused(
    runs: list[Path], change: Mapping[str, object], fault: str
) -> None:
    path = runs[2] / "splits.json"
    write_json(path, read_json(path) | change)
    refused(runs, fault)


def test_runs_without_folds_are_refused(runs: list[Path]) -> None:
    path = runs[1] / "splits.json"
    content = read_json(path)
    write_json(path, {key: content[key] for key in content.keys() - {"folds", "fold"}})
    refused(runs, r"fold-2 was not split into folds \(split.folds\)")


@pytest.mark.parametrize("name", ["splits.json", TABLE, MANIFEST, "model/model.keras"])
def test_incomplete_runs_are_refused(runs: list[Path], name: str) -> None:
    (runs[0] / name).unlink()
    refused(runs, f"fold-1/{name}: cannot be read: No such file")


# --- Planted leaks


def test_a_patient_who_is_tested_twice_is_found(runs: list[Path]) -> None:
    patient = patient_in(runs[0], "test")
    move(runs[1], patient, "test")
    refused(runs, f"fold-1 and fold-2 both test patient {patient}")


def test_a_test_patient_who_trains_is_found(runs: list[Path]) -> None:
    patient = patient_in(runs[2], "test")
    add(runs[2], "S999", patient, "train")
    refused(runs, f"fold-3: patient {patient} is tested, and in train or valid")


@pytest.mark.parametrize("spelled", [str.lower, lambda name: name.replace("P", "P ")])
def test_another_spelling_of_a_test_patient_is_found(
    runs: list[Path], spelled: Callable[[str], str]
) -> None:
    other = spelled("P00")
    for run in runs:
        add(run, "S999", other, "valid")
    refused(runs, f"patient {' / '.join(sorted(('P00', other)))} is tested, and in train or valid")


def test_a_patient_who_is_tested_in_no_fold_is_found(runs: list[Path]) -> None:
    patient = patient_in(runs[0], "test")
    move(runs[0], patient, "train")
    refused(
        runs,
        f"patient '{patient}' is in the test split of no fold",
        f"scored slide S{patient} is no test",
    )


def unscored(run: Path) -> str:
    """Remove the last scored slide of a run, and return its name."""
    path = run / "evaluation/slides.tsv"
    rows = read_table(path)
    missing = rows.pop()["slide"]
    write_table(path, list(rows[0]), [list(row.values()) for row in rows])
    restate(run, METRICS, "evaluation/slides.tsv")
    return missing


def test_a_test_slide_without_a_score_is_found(runs: list[Path]) -> None:
    missing = unscored(runs[1])
    refused(runs, f"fold-2: test slide '{missing}' was not scored")


def test_a_patient_of_one_fold_only_is_found(runs: list[Path]) -> None:
    add(runs[1], "N", "PN", "train")
    refused(runs, "fold-2: patient 'PN' is only in some folds")


def test_a_slide_that_was_scored_as_another_patients_is_found(runs: list[Path]) -> None:
    patient = patient_in(runs[1], "test")
    edit_table(
        runs[1],
        lambda rows: [row.update(patient="PX") for row in rows if row["patient"] == patient],
    )
    refused(runs, f"slide S{patient} was scored as another patient's")


def test_a_model_that_was_trained_on_another_fold_is_found(runs: list[Path]) -> None:
    """Its shards have test patients of this fold; all checksums of the folder agree."""
    shutil.rmtree(runs[1] / "shards")
    shutil.copytree(runs[0] / "shards", runs[1] / "shards")
    refused(runs, r"settings.json: was computed from another version of shards/manifest.json")
    restate(runs[1], "model/settings.json", MANIFEST)
    refused(runs, "fold-2: train: the shards were written from other records")


def test_a_model_of_another_run_is_found(runs: list[Path]) -> None:
    (runs[1] / "model/model.keras").write_bytes(b"another model")
    refused(runs, r"metrics.json: was computed from another version of model/model.keras")
    restate(runs[1], METRICS, "model/model.keras")
    refused(runs, "fold-2: model/model.keras is not the trained model of epoch 6")


def test_a_table_that_was_edited_after_the_test_is_found(runs: list[Path]) -> None:
    rows = read_table(runs[1] / TABLE)
    rows[0]["reason"] = "edited"
    write_table(runs[1] / TABLE, list(rows[0]), [list(row.values()) for row in rows])
    refused(runs, "metrics.json: was computed from another version of tiles.tsv")


@pytest.mark.parametrize(
    ("by", "name", "fault"),
    [
        (METRICS, TABLE, f"fold-2: {METRICS} has no checksum of {TABLE}"),
        (METRICS, "model/model.keras", f"fold-2: {METRICS} does not say which model"),
        ("model/settings.json", MANIFEST, f"has no checksum of {MANIFEST}"),
    ],
)
def test_a_missing_link_of_the_chain_is_found(
    runs: list[Path], by: str, name: str, fault: str
) -> None:
    content = read_json(runs[1] / by)
    del content["inputs"][name]
    write_json(runs[1] / by, content)
    refused(runs, fault)


def test_other_initial_weights_are_no_proof(runs: list[Path]) -> None:
    path = runs[1] / "model/settings.json"
    content = read_json(path)
    write_json(path, content | {"inputs": content["inputs"] | {INITIAL_WEIGHTS: "ab" * 32}})
    (doubt,) = pool_folds(runs).proof.doubts
    assert doubt.startswith("fold-2 started from other weights")


def test_classes_must_be_equal(runs: list[Path]) -> None:
    path = runs[2] / METRICS
    content = read_json(path)
    write_json(path, content | {"classes": [*content["classes"], "other"]})
    with pytest.raises(UserError):
        pool_folds(runs)


def test_random_edits_of_splits_are_found(runs: list[Path], tmp_path: Path) -> None:
    """Each patient of each fold is moved to each other split, a few at random."""
    rng = np.random.default_rng(1)
    for number in range(12):
        copies = [Path(shutil.copytree(run, tmp_path / f"{number}/{run.name}")) for run in runs]
        copy = copies[int(rng.integers(3))]
        row = read_table(copy / TABLE)[int(rng.integers(18))]
        others = sorted({"train", "valid", "test"} - {row["split"]})
        move(copy, row["patient"], others[int(rng.integers(2))])
        refused(copies, "not the folds of one cross-validation")


# --- Patients that are held out of all folds


@pytest.fixture(scope="module")
def whole_with_test(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for each of three folds that test the same patients. No test changes them."""
    folder = tmp_path_factory.mktemp("held-out")
    for fold in (1, 2, 3):
        build_fold(folder, fold, held_out=0.4)
    return folder


@pytest.fixture
def tested(whole_with_test: Path, tmp_path: Path) -> list[Path]:
    shutil.copytree(whole_with_test, tmp_path / "runs")
    return [tmp_path / f"runs/fold-{fold}" for fold in (1, 2, 3)]


def scores_of(run: Path) -> pd.DataFrame:
    table = pd.read_csv(run / "evaluation/slides.tsv", sep="\t").set_index("slide").sort_index()
    return table[[f"p_{name}" for name in CLASSES]]


def rescore(run: Path, seed: int) -> None:
    """Give the slides of a run other scores, as another model would, in another order."""
    table = pd.read_csv(run / "evaluation/slides.tsv", sep="\t")
    names = [f"p_{name}" for name in CLASSES]
    scores = np.random.default_rng(seed).dirichlet(np.ones(len(CLASSES)), len(table))
    table[names] = scores
    table["call_mean"] = [CLASSES[number] for number in scores.argmax(axis=1)]
    table.sample(frac=1, random_state=seed).to_csv(
        run / "evaluation/slides.tsv", sep="\t", index=False
    )
    restate(run, METRICS, "evaluation/slides.tsv")


def test_pooled_folds_replace_nothing_else(runs: list[Path], tmp_path: Path) -> None:
    """The folder of a run would lose its test results."""
    pooled = pool_folds(runs)
    before = {path: path.read_bytes() for path in runs[0].rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"fold-1: exists and has no folds\.json"):
        pooled.write(runs[0])
    assert before == {path: path.read_bytes() for path in runs[0].rglob("*") if path.is_file()}
    (tmp_path / "empty").mkdir()
    for _ in range(2):
        pooled.write(tmp_path / "empty")
    # One that was broken off after its first file is written again.
    shutil.rmtree(tmp_path / "empty/evaluation")
    pooled.write(tmp_path / "empty")


def test_held_out_patients_are_tested_with_the_mean_of_all_models(tested: list[Path]) -> None:
    for seed, run in enumerate(tested):
        rescore(run, seed)
    pooled = pool_folds(tested)
    assert pooled.proof.scores == "mean"
    folder = tested[0].parent / "mean"
    metrics = pooled.write(folder).metrics
    expected = np.mean([scores_of(run).to_numpy() for run in tested], axis=0)
    np.testing.assert_allclose(scores_of(folder), expected, rtol=1e-12)
    slides = pd.read_csv(folder / "evaluation/slides.tsv", sep="\t").sort_values("slide")
    for name, area in metrics.slide.roc_auc.per_class.items():
        values = roc_auc_score(slides["label"] == name, slides[f"p_{name}"])
        assert area.value == pytest.approx(values, abs=1e-6)
    accuracy = metrics.slide.accuracy.mean_call.value
    calls = np.array(CLASSES)[expected.argmax(axis=1)]
    assert accuracy == pytest.approx((calls == slides["label"]).mean(), abs=1e-6)
    # Both are compared like runs, on the same patients.
    compared = compare_runs([folder, tested[1]])
    assert compared.left_out == {"fold-2": []}
    assert compared.inputs["mean/evaluation/metrics.json"] == sha256_of(folder / METRICS)


@pytest.mark.parametrize(
    ("split", "fault"),
    [
        ("test", "is held out in only one of this run and fold-1"),
        ("train", "is in the valid split of no fold"),
    ],
)
def test_a_patient_who_is_moved_in_one_fold_is_found(
    tested: list[Path], split: str, fault: str
) -> None:
    move(tested[1], patient_in(tested[1], "valid"), split)
    refused(tested, fault)


def test_a_patient_who_is_validated_twice_is_found(tested: list[Path]) -> None:
    patient = patient_in(tested[0], "valid")
    move(tested[1], patient, "valid")
    refused(tested, f"fold-1 and fold-2 both validate patient {patient}")


def test_a_held_out_patient_who_trains_in_one_fold_is_found(tested: list[Path]) -> None:
    patient = patient_in(tested[2], "test")
    add(tested[2], "S999", patient, "train")
    refused(tested, f"fold-3: patient {patient} is tested, and in train or valid")


def test_a_slide_that_one_fold_did_not_score_is_found(tested: list[Path]) -> None:
    missing = unscored(tested[2])
    refused(tested, f"fold-3: slide '{missing}' was scored in only one of this run and fold-1")


def test_random_edits_of_held_out_folds_are_found(tested: list[Path], tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    for number in range(12):
        copies = [Path(shutil.copytree(run, tmp_path / f"{number}/{run.name}")) for run in tested]
        copy = copies[int(rng.integers(3))]
        row = read_table(copy / TABLE)[int(rng.integers(18))]
        others = sorted({"train", "valid", "test"} - {row["split"]})
        move(copy, row["patient"], others[int(rng.integers(2))])
        refused(copies, "not the folds of one cross-validation")
