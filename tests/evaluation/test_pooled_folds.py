"""Folds are pooled only if each patient is tested once, and no fold trains on its test patients."""

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from tested_runs import names, predictions_of, write_run

from gigatile.cohort.samples import Sample
from gigatile.cohort.splits import assign, prove_splits, rows_of_splits
from gigatile.errors import UserError
from gigatile.evaluation.pooled_folds import pool_folds
from gigatile.files import read_json, sha256_of, write_json
from gigatile.json_models import write_model
from gigatile.settings.split import SPLITS, SplitSettings
from gigatile.tables import read_table, write_table

TABLE = predictions_of(60, 1, 1.0)


def write_fold(folder: Path, fold: int, folds: int = 3, seed: int = 44) -> Path:
    settings = SplitSettings(folds=folds, fold=fold, seed=seed)
    members = [
        Sample(row.slide, row.patient, row.label, Path(row.slide), None, "", "", number)
        for number, row in enumerate(TABLE.itertuples(), 2)
    ]
    splits = assign(members, settings)
    run = write_run(folder / f"fold-{fold}", TABLE[TABLE["patient"].map(splits) == "test"])
    write_model(run / "splits.json", prove_splits(members, splits, settings, "ab" * 32))
    rows = rows_of_splits(members, settings, *SPLITS)
    write_table(run / "splits.tsv", list(rows[0]), [list(row.values()) for row in rows])
    return run


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [write_fold(tmp_path, fold) for fold in (1, 2, 3)]


def test_all_patients_are_evaluated_together(runs: list[Path]) -> None:
    pooled = pool_folds(runs)
    assert (pooled.patients, pooled.pooled.slide.n) == (60, 60)
    assert [(fold.fold, fold.run, fold.patients) for fold in pooled.folds] == [
        (1, "fold-1", 20),
        (2, "fold-2", 20),
        (3, "fold-3", 20),
    ]
    for name, area in pooled.pooled.slide.roc_auc.per_class.items():
        expected = roc_auc_score(TABLE["label"] == name, TABLE[f"p_{name}"])
        assert area.value == pytest.approx(expected, abs=1e-6)
    own = read_json(runs[1] / "evaluation/metrics.json")["slide"]
    assert pooled.folds[1].roc_auc.value == own["roc_auc"]["macro"]["value"]
    assert pooled.inputs["fold-2/splits.tsv"] == sha256_of(runs[1] / "splits.tsv")
    assert len(pooled.inputs) == 12
    assert pooled == pool_folds(runs[::-1])


def edit_table(path: Path, change: Callable[[list[dict[str, str]]], None]) -> None:
    rows = read_table(path)
    change(rows)
    write_table(path, list(rows[0]), [list(row.values()) for row in rows])


def edit_splits(run: Path, change: Callable[[list[dict[str, str]]], None]) -> None:
    edit_table(run / "splits.tsv", change)


def edit_proof(run: Path, **changes: object) -> None:
    write_json(run / "splits.json", read_json(run / "splits.json") | changes)


def row_of_test(rows: list[dict[str, str]], split: str = "test") -> dict[str, str]:
    return next(row for row in rows if row["split"] == split)


def refused(runs: list[Path], fault: str) -> None:
    with pytest.raises(UserError, match=re.escape(fault)):
        pool_folds(runs)


def test_missing_and_doubled_folds_are_named(runs: list[Path], tmp_path: Path) -> None:
    refused(runs[:2], "fold 3 is missing")
    again = write_fold(tmp_path / "again", 2).rename(tmp_path / "other")
    refused([*runs, again], "fold 2 is given 2 times")
    refused([runs[0], again], "fold 3 is missing")


def test_a_patient_who_is_tested_twice_is_found(runs: list[Path]) -> None:
    taken = row_of_test(read_table(runs[0] / "splits.tsv"))["patient"]

    def test_it_too(rows: list[dict[str, str]]) -> None:
        for row in rows:
            if row["patient"] == taken:
                row["split"] = "test"

    edit_splits(runs[1], test_it_too)
    refused(runs, f"fold-1 and fold-2 both test patient {taken}")


def test_a_test_patient_who_trains_is_found(runs: list[Path]) -> None:
    def train_on_it(rows: list[dict[str, str]]) -> None:
        rows.append(row_of_test(rows) | {"slide": "S999", "split": "train"})

    edit_splits(runs[2], train_on_it)
    refused(runs, "is tested, and in train or valid")


@pytest.mark.parametrize("spelled", [str.lower, lambda name: name.replace("P", "P ")])
def test_another_spelling_of_a_test_patient_is_found(
    runs: list[Path], spelled: Callable[[str], str]
) -> None:
    for run in runs:

        def spell(rows: list[dict[str, str]]) -> None:
            row = next(row for row in rows if row["patient"] == "P000")
            rows.append(row | {"slide": "S999", "patient": spelled("P000"), "split": "train"})

        edit_splits(run, spell)
    refused(runs, f"{' / '.join(sorted(('P000', spelled('P000'))))} is tested, and in train")


def test_a_patient_who_is_tested_in_no_fold_is_found(runs: list[Path]) -> None:
    taken = row_of_test(read_table(runs[0] / "splits.tsv"))["patient"]

    def train_on_it(rows: list[dict[str, str]]) -> None:
        for row in rows:
            if row["patient"] == taken:
                row["split"] = "train"

    edit_splits(runs[0], train_on_it)
    refused(runs, f"patient '{taken}' is tested in no fold")
    with pytest.raises(UserError, match="is no test slide"):
        pool_folds(runs)


def test_a_patient_of_one_fold_only_is_found(runs: list[Path]) -> None:
    edit_splits(runs[1], lambda rows: rows.append(rows[0] | {"slide": "N", "patient": "PN"}))
    refused(runs, "fold-2: patient 'PN' is only in some folds")


def test_a_slide_that_was_scored_as_another_patients_is_found(runs: list[Path]) -> None:
    edit_splits(runs[1], lambda rows: row_of_test(rows).update(label="c9"))
    refused(runs, "was scored as another patient's")


def test_folds_of_other_splits_are_refused(runs: list[Path], tmp_path: Path) -> None:
    other = write_fold(tmp_path / "other", 3, seed=45)
    refused([*runs[:2], other], "fold-3 has another seed than fold-1")
    more = write_fold(tmp_path / "more", 3, folds=4)
    refused([*runs[:2], more], "fold-3 has another number of folds than fold-1")
    edit_proof(runs[1], sheet_sha256="cd" * 32)
    refused(runs, "fold-2 has another sample sheet than fold-1")
    edit_proof(runs[1], sheet_sha256="ab" * 32, folds=None, fold=1)
    refused(runs, "fold-2 was not split into folds (split.folds)")


def test_runs_without_splits_are_refused(runs: list[Path]) -> None:
    (runs[0] / "splits.tsv").unlink()
    refused(runs, "has no splits.tsv; name the folder of a run")


def test_other_classes_are_refused(runs: list[Path], tmp_path: Path) -> None:
    table = pd.read_csv(runs[1] / "evaluation/slides.tsv", sep="\t")
    table = table[table["label"] != "c2"].drop(columns="p_c2")
    table["call_mean"] = table["call_mean"].replace("c2", "c0")
    run = write_run(tmp_path / "fewer", table.drop(columns="tiles"), 2)
    for name in ("splits.json", "splits.tsv"):
        (runs[1] / name).rename(run / name)
    assert names(2) == read_json(run / "evaluation/metrics.json")["classes"]
    refused([runs[0], run, runs[2]], "fewer has another set of classes than fold-1")
