"""New slides are predicted by the mean of the folds' models, of predictions that fit together."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from built_folds import restate
from slide_runs import CLASSES

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_json
from gigatile.provenance.output_records import record_path, write_output_record
from gigatile.report.pooled_folds import pool_folds
from gigatile.report.pooled_predictions import MADE_FROM
from gigatile.tables import write_table


def predict(run: Path, fold: int, slides: tuple[str, ...] = ("N1", "N2", "N3")) -> None:
    """Write the predictions of new slides as the workflow does; N2 is in the cohort."""
    folder = run / "predictions"
    folder.mkdir(exist_ok=True)
    scores = np.random.default_rng(fold).dirichlet([1, 1, 1], len(slides)).round(6)
    columns = ["slide", "patient", "tiles", *(f"p_{name}" for name in CLASSES), "call_mean"]
    rows = [
        [slide, f"N-{slide}", 9, *row, CLASSES[row.argmax()]]
        for slide, row in zip(slides, scores, strict=True)
    ]
    write_table(folder / "slides.tsv", columns, rows)
    write_table(folder / "tiles.tsv", ["slide", "sha256"], [[s, f"of {s}"] for s in slides])
    columns = ["slide", "in_cohort", "patient", "split", "same", "equal_images"]
    write_table(folder / "in_cohort.tsv", columns, [["N2", "", "", "", "pixels", 3]])
    matches = [folder / "in_cohort.tsv"]
    write_output_record(record_path(run, "prediction_pages"), matches)
    files = ("model/model.keras", "predictions/tiles.tsv", "predictions/slides.tsv")
    write_json(
        run / MADE_FROM,
        {"classes": list(CLASSES), "inputs": {name: sha256_of(run / name) for name in files}},
    )


def test_new_slides_get_the_mean_of_all_models(runs: list[Path]) -> None:
    for fold, run in enumerate(runs):
        predict(run, fold)
    pooled = pool_folds(runs)
    pooled.write(runs[0].parent / "folds")
    table = pd.read_csv(runs[0].parent / "folds/predictions/slides.tsv", sep="\t")
    names = [f"p_{name}" for name in CLASSES]
    each = [pd.read_csv(run / "predictions/slides.tsv", sep="\t") for run in runs]
    mean = np.mean([some[names] for some in each], axis=0)
    np.testing.assert_allclose(table[names], mean, atol=1e-6)
    for number, row in table.iterrows():
        called = CLASSES[mean[number].argmax()]
        assert row["call_mean"] == called
        assert row["agreeing"] == sum(some["call_mean"][number] == called for some in each)
        of_class = [some[f"p_{called}"][number] for some in each]
        assert row["deviation"] == pytest.approx(np.std(of_class), abs=1e-6)
    assert 1 <= table["agreeing"].min() < 3
    assert table["in_cohort"].tolist() == ["no", "yes", "no"]
    assert pooled.proof.claims["the model of each fold predicted the same new slides"] == "3 slides"
    assert "fold-2/predictions/slides.tsv" in pooled.proof.inputs
    # The table has the checksums of what it was computed from, and its own.
    provenance = read_json(runs[0].parent / "folds/predictions/provenance.json")
    table_file = runs[0].parent / "folds/predictions/slides.tsv"
    assert provenance["inputs"]["predictions/slides.tsv"] == sha256_of(table_file)
    assert provenance["inputs"]["fold-3/predictions/slides.tsv"] == sha256_of(
        runs[2] / "predictions/slides.tsv"
    )
    # The order in which the runs are named changes nothing.
    pool_folds(runs[::-1]).write(runs[0].parent / "reversed")
    for name in ("predictions/slides.tsv", "evaluation/slides.tsv", "evaluation/metrics.json"):
        written = [runs[0].parent / folder / name for folder in ("folds", "reversed")]
        assert written[0].read_bytes() == written[1].read_bytes(), name
    # Without predictions, those of an earlier pool do not stay.
    for run in runs:
        shutil.rmtree(run / "predictions")
    pool_folds(runs).write(runs[0].parent / "folds")
    assert not (runs[0].parent / "folds/predictions/slides.tsv").exists()


def _another_model(run: Path) -> None:
    content = read_json(run / MADE_FROM)
    content["inputs"]["model/model.keras"] = "ab" * 32
    write_json(run / MADE_FROM, content)


def _without_a_slide(run: Path) -> None:
    predict(run, 1, ("N1", "N3"))


def _edited(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Return an edit that the recorded checksum shows."""

    def edit(run: Path) -> None:
        path = run / "predictions" / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return edit


def _restated(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    """Return an edit with the checksum that records the edited file."""

    def edit(run: Path) -> None:
        path = run / "predictions" / name
        path.write_text(change(path.read_text()))
        restate(run, MADE_FROM, f"predictions/{name}")

    return edit


def _made_from(text: str) -> Callable[[Path], object]:
    return lambda run: (run / MADE_FROM).write_text(text)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_another_model, "fold-2: model/model.keras was changed after the new slides"),
        (_without_a_slide, "fold-2: slide 'N2' was predicted by only one of fold-1 and fold-2"),
        (
            _restated("tiles.tsv", lambda text: text.replace("of N1", "of another")),
            "fold-2: slide 'N1' has other records than in fold-1",
        ),
        (_edited("slides.tsv", "N-N1", "N-N9"), "predictions/slides.tsv was changed after the new"),
        (_edited("in_cohort.tsv", "N2", "N9"), "predictions/in_cohort.tsv was changed after the"),
        (
            lambda run: shutil.rmtree(run / "provenance"),
            "fold-2: the checksum of predictions/in_cohort.tsv is not recorded",
        ),
        (lambda run: shutil.rmtree(run / "predictions"), "fold-2: has no predictions/slides.tsv"),
        (_made_from("[]"), "predictions/provenance.json: damaged"),
        (_made_from("{}"), "predictions/provenance.json: damaged"),
        (_made_from('{"inputs": ["model/model.keras"]}'), "predictions/provenance.json: damaged"),
        (_made_from('{"inputs": {}}'), "provenance.json does not say which model predicted"),
        (
            _restated("tiles.tsv", lambda text: text.replace("sha256", "sum")),
            "predictions/tiles.tsv",
        ),
        (
            _restated("slides.tsv", lambda text: text + text.splitlines()[1] + "\n"),
            "predictions/slides.tsv",
        ),
        (lambda run: (run / "predictions/in_cohort.tsv").unlink(), "in_cohort.tsv: no such file"),
    ],
)
def test_predictions_that_do_not_belong_together_are_refused(
    runs: list[Path], change: Callable[[Path], object], fault: str
) -> None:
    for fold, run in enumerate(runs):
        predict(run, fold)
    change(runs[1])
    with pytest.raises(UserError, match=re.escape(fault)):
        pool_folds(runs)
