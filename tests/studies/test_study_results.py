"""The variant with the best mean on the validation splits is chosen, and figures are right."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_json
from gigatile.settings.section import check_section
from gigatile.studies.description import Study, StudyRun, runs_of, variants_of
from gigatile.studies.results import StudyResults, Validation, outdated, validated
from gigatile.tables import write_table

CLASSES = ["a", "b", "c"]
FILE = {"study": "s", "config": "mine.yaml", "folds": 3, "variants": {"x": {}, "y": {}}}
STUDY = check_section(Study, FILE, "study.yaml")


def write_run(results: Path, run: StudyRun, skill: float, seed: int, **chosen: object) -> None:
    """Write the files of a run on its validation split; with skill 1, it knows every label."""
    folder = results / run.name
    described = {
        "chosen": {"epoch": 3, "valid_loss": 0.5, "of": 4} | chosen,
        "train": {},
        "inputs": {},
        "classes": CLASSES,
    }
    write_json(folder / "model/settings.json", described)
    random = np.random.default_rng(seed)
    labels = random.permutation(CLASSES * 5)
    scores = random.dirichlet(np.ones(3), 15)
    scores = (1 - skill) * scores + skill * (labels[:, None] == CLASSES)
    rows = [
        [f"S{number}", f"P{number}", label, *row, CLASSES[int(row.argmax())]]
        for number, (label, row) in enumerate(zip(labels, scores, strict=True))
    ]
    header = ["slide", "patient", "label", *(f"p_{name}" for name in CLASSES), "call_mean"]
    (folder / "validation").mkdir(parents=True)
    write_table(folder / "validation/slides.tsv", header, rows)


def of(results: Path) -> Validation:
    return validated(results, runs_of(STUDY, {}), dict(variants_of(STUDY)))


def test_the_best_mean_is_first(tmp_path):
    for seed, run in enumerate(runs_of(STUDY, {})):
        write_run(tmp_path, run, 0.1 if run.variant == "x" else 0.4, seed)
    validation = of(tmp_path)
    assert [variant.name for variant in validation.variants] == ["y", "x"]
    assert validation.criterion == "ROC AUC by slide" and not validation.lowest
    for variant in validation.variants:
        values = []
        for run in variant.runs:
            table = pd.read_csv(tmp_path / run.run / "validation/slides.tsv", sep="\t")
            areas = [roc_auc_score(table["label"] == c, table[f"p_{c}"]) for c in CLASSES]
            assert run.value == pytest.approx(np.mean(areas), abs=1e-6)
            values.append(run.value)
        assert variant.mean == pytest.approx(np.mean(values))
        assert variant.deviation == pytest.approx(np.std(values, ddof=1))
        assert [(run.fold, run.epoch) for run in variant.runs] == [(1, 3), (2, 3), (3, 3)]
    names = {f"s-{v}-fold-{f}/{n}" for v in "xy" for f in (1, 2, 3) for n in FILES}
    assert validation.inputs.keys() == names
    assert all(validation.inputs[name] == sha256_of(tmp_path / name) for name in names)


FILES = ("model/settings.json", "validation/slides.tsv")


def test_of_equal_variants_the_first_is_chosen(tmp_path):
    for run in runs_of(STUDY, {}):
        write_run(tmp_path, run, 0.3, run.fold or 0)
    assert [variant.name for variant in of(tmp_path).variants] == ["x", "y"]


def test_outcomes_are_judged_by_the_loss_also_after_the_test(tmp_path):
    """Then the runs have a table of the validation split, which has no classes."""
    for run in runs_of(STUDY, {}):
        loss = 0.5 if run.variant == "x" else 0.25
        write_run(tmp_path, run, 1, 0, valid_loss=loss)
        described = tmp_path / run.name / "model/settings.json"
        content = read_json(described)
        del content["classes"]
        write_json(described, content)
        table = tmp_path / run.name / "validation/slides.tsv"
        write_table(table, ("slide", "patient", "label", "predicted"), [("S", "P", "3 event", "1")])
    validation = of(tmp_path)
    assert [variant.name for variant in validation.variants] == ["y", "x"]
    assert validation.criterion == "validation loss" and validation.lowest


@pytest.mark.parametrize(
    ("chosen", "criterion", "order"),
    [
        ({}, "validation loss", ["y", "x"]),
        ({"criterion": "dice", "value": 0.8}, "dice", ["x", "y"]),
    ],
)
def test_without_scores_of_slides_the_figure_of_the_epoch_counts(
    tmp_path, chosen, criterion, order
):
    for run in runs_of(STUDY, {}):
        worse = run.variant == "y"
        values = {"valid_loss": 0.4 if worse else 0.6}  # the lower loss has the lower Dice
        if chosen:
            values |= chosen | {"value": 0.7 if worse else 0.8}
        write_run(tmp_path, run, 0.3, run.fold or 0, **values)
        (tmp_path / run.name / "validation/slides.tsv").unlink()
    validation = of(tmp_path)
    assert (validation.criterion, validation.lowest) == (criterion, not chosen)
    assert [variant.name for variant in validation.variants] == order


def test_later_changes_are_found(tmp_path):
    for run in runs_of(STUDY, {}):
        write_run(tmp_path, run, 0.3, run.fold or 0)
    settings = dict(variants_of(STUDY))
    validation = of(tmp_path)
    written = StudyResults(
        study="s",
        criterion=validation.criterion,
        lowest=False,
        variants=list(validation.variants),
        chosen="x",
        test="chosen",
        tested=[],
        reports={},
        doubts=[],
        inputs=dict(validation.inputs),
    )
    assert outdated(tmp_path, written, settings) == []
    (tmp_path / "s-x-fold-1/model/settings.json").write_text("{}")
    (tmp_path / "s-y-fold-2/validation/slides.tsv").unlink()
    other = settings | {"y": {"train.epochs": 3}, "z": {}}
    assert [fault.rpartition("/")[2] for fault in outdated(tmp_path, written, other)] == [
        "variant y: the file of the study has {'train.epochs': 3}, the results {}",
        "variant z: the file of the study has {}, the results None",
        "settings.json: has changed",
        "slides.tsv: does not exist any more",
    ]


def test_a_run_without_results_is_named(tmp_path):
    for run in runs_of(STUDY, {})[1:]:
        write_run(tmp_path, run, 0.3, run.fold or 0)
    with pytest.raises(UserError, match=r"s-x-fold-1/model/settings\.json"):
        of(tmp_path)


def test_a_split_with_one_label_has_no_area(tmp_path):
    for run in runs_of(STUDY, {}):
        write_run(tmp_path, run, 0.3, run.fold or 0)
    path = tmp_path / "s-y-fold-2/validation/slides.tsv"
    table = pd.read_csv(path, sep="\t")
    table["label"] = "a"
    table.to_csv(path, sep="\t", index=False)
    with pytest.raises(UserError, match="a label has no usable slide"):
        of(tmp_path)
