"""An ensemble is opened if all of its bundles are whole and predict the same."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from bundles import make_bundle

from gigatile.bundle.contents import ENSEMBLE, MANIFEST, METRICS, Bundle, open_bundle
from gigatile.bundle.copying import copy_bundle, write_manifest
from gigatile.bundle.ensembles import FOLDS, bundles_of, open_ensemble, write_ensemble
from gigatile.errors import UserError
from gigatile.evaluation.outcomes import evaluate_outcomes
from gigatile.json_models import write_model
from gigatile.model_files import MODEL
from gigatile.report.mean_predictions import MeanScores
from gigatile.settings.evaluate import EvaluationSettings


def write_pooled(folder: Path) -> Path:
    """Write what an ensemble takes from the folder of pooled folds."""
    (folder / "evaluation").mkdir(parents=True)
    (folder / FOLDS).write_text('{"claims": {}}')
    (folder / "evaluation" / METRICS).write_text("{}")
    return folder


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> list[Bundle]:
    """Bundles of two models. Do not change them."""
    folder = tmp_path_factory.mktemp("bundles")
    return [make_bundle(folder / f"{n}", name=f"fold-{n}", seed=n) for n in (1, 2)]


@pytest.fixture
def ensemble(bundles, tmp_path) -> Path:
    return write_ensemble(bundles, write_pooled(tmp_path / "pooled"), tmp_path / "lung").folder


def test_whole_ensemble_is_opened(ensemble, bundles):
    opened = open_ensemble(ensemble)
    assert (opened.name, len(opened.bundles)) == ("lung", 2)
    assert [each.manifest for each in opened.bundles] == [each.manifest for each in bundles]
    assert isinstance(opened.mean(), MeanScores)
    assert {path.name for path in ensemble.iterdir()} == {
        *(ENSEMBLE, FOLDS, METRICS, "fold-1", "fold-2")
    }
    assert not list(ensemble.parent.glob(".lung*")), "no temporary folder stays"


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def remove_a_model(folder: Path) -> None:
    shutil.rmtree(folder / "fold-2")


def exchange_two_models(folder: Path) -> None:
    (folder / "fold-1").rename(folder / "other")
    (folder / "fold-2").rename(folder / "fold-1")
    (folder / "other").rename(folder / "fold-2")


def another_model(folder: Path) -> None:
    """Replace a bundle by a whole one, with its own checksums."""
    shutil.rmtree(folder / "fold-2")
    make_bundle(folder / "fold-2", name="fold-2", seed=9)


def link_to_a_model(folder: Path) -> None:
    (folder / "fold-2").rename(folder.parent / "moved")
    (folder / "fold-2").symlink_to(folder.parent / "moved")


def one_model(folder: Path) -> None:
    content = json.loads((folder / ENSEMBLE).read_text())
    del content["models"]["fold-2"]
    (folder / ENSEMBLE).write_text(json.dumps(content))
    shutil.rmtree(folder / "fold-2")


def damaged_weights(folder: Path) -> None:
    path = folder / "fold-1" / MODEL
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (remove_a_model, "fold-2: missing"),
        (exchange_two_models, "fold-1: its content differs from the checksum in ensemble.json"),
        (another_model, "fold-2: its content differs from the checksum in ensemble.json"),
        (link_to_a_model, "fold-2: a link"),
        (one_model, "has fewer than two models"),
        (damaged_weights, f"{MODEL}: its content differs"),
        (lambda folder: (folder / FOLDS).write_text("{}"), f"{FOLDS}: its content differs"),
        (lambda folder: (folder / "more.py").write_text(""), "more.py: not in ensemble.json"),
        (lambda folder: change(folder / ENSEMBLE, models={"../pooled": "a"}), "../pooled: missing"),
        (lambda folder: change(folder / ENSEMBLE, files={"../a": "a"}), "../a: missing"),
        (lambda folder: change(folder / ENSEMBLE, name="fold-1"), "the name fold-1 of a model is"),
        (lambda folder: change(folder / ENSEMBLE, schema=2), "schema"),
        (lambda folder: (folder / ENSEMBLE).write_text("{"), ENSEMBLE),
    ],
)
def test_what_was_changed_is_named(ensemble, edit, fault):
    edit(ensemble)
    with pytest.raises(UserError) as caught:
        open_ensemble(ensemble)
    assert fault in str(caught.value)


def test_models_must_predict_the_same(bundles, tmp_path):
    pooled = write_pooled(tmp_path / "pooled")
    other = make_bundle(tmp_path / "other", name="other", classes=("a", "b"))
    with pytest.raises(UserError, match="other has another set of classes than fold-1"):
        write_ensemble([*bundles, other], pooled, tmp_path / "out")
    other = make_bundle(tmp_path / "coarse", name="coarse", mpp=2.0)
    with pytest.raises(UserError, match="coarse has other settings than fold-1"):
        write_ensemble([*bundles, other], pooled, tmp_path / "out")
    with pytest.raises(UserError, match="two models have the name fold-1"):
        write_ensemble([bundles[0], bundles[0]], pooled, tmp_path / "out")
    named = copy_bundle(bundles[1], tmp_path / "named", name="out")
    with pytest.raises(UserError, match="the name out of a model is taken by the ensemble"):
        write_ensemble([bundles[0], named], pooled, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="exists; name a new folder"):
        write_ensemble(bundles, pooled, tmp_path / "pooled")
    with pytest.raises(UserError, match="name of an ensemble must match"):
        write_ensemble(bundles, pooled, tmp_path / "an ensemble")


def test_a_bundle_must_have_the_model_that_was_tested(bundles, tmp_path):
    runs = [tmp_path / f"fold-{n}" for n in (1, 2)]
    for run, bundle in zip(runs, bundles, strict=True):
        shutil.copytree(bundle.folder, run / "model/bundle")
    sums = [bundle.manifest.model_sha256 for bundle in bundles]
    names = [f"{run.name}/model/{MODEL}" for run in runs]
    tested = dict(zip(names, sums, strict=True))
    assert [each.manifest.name for each in bundles_of(runs, tested)] == ["fold-1", "fold-2"]
    swapped = dict(zip(names, reversed(sums), strict=True))
    with pytest.raises(UserError, match=r"fold-2/model/bundle: has another model than that which"):
        bundles_of(runs, swapped)
    shutil.rmtree(runs[0] / "model/bundle")
    with pytest.raises(UserError, match=r"fold-1: has no bundle; write it with: gigatile bundle"):
        bundles_of(runs, tested)


def test_other_commands_refuse_an_ensemble(ensemble):
    with pytest.raises(UserError, match="an ensemble of several bundles; only gigatile predict"):
        open_bundle(ensemble)


def test_risks_are_relative_to_the_threshold_of_each_model(bundles, tmp_path):
    thresholds = (0.5, -2.0)
    table = pd.DataFrame(
        {
            "slide": ["A", "B"],
            "patient": ["A", "B"],
            "label": ["1.0 event", "2.0 censored"],
            "predicted": [1.0, 0.0],
        }
    )
    made = []
    for bundle, threshold in zip(bundles, thresholds, strict=True):
        copy = copy_bundle(bundle, tmp_path / bundle.manifest.name)
        metrics = evaluate_outcomes(table, threshold, EvaluationSettings(resamples=1000), {})
        write_model(copy.folder / METRICS, metrics)
        content = json.loads((copy.folder / MANIFEST).read_text())
        (copy.folder / MANIFEST).write_text(
            json.dumps(content | {"task": "whole_slide_outcome", "classes": []})
        )
        write_manifest(copy.folder, open_bundle(copy.folder, check=False).manifest)
        made.append(open_bundle(copy.folder))
    mean = write_ensemble(made, write_pooled(tmp_path / "pooled"), tmp_path / "risk").mean()
    tables = [
        pd.DataFrame({"slide": ["N"], "patient": ["N"], "tiles": [9], "predicted": [value]})
        for value in (1.5, 0.0)
    ]
    (row,) = mean.mean(tables).to_dict("records")
    assert row == {"slide": "N", "patient": "N", "tiles": 9, "predicted": 1.5, "deviation": 0.5}
