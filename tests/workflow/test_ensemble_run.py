"""An ensemble predicts the mean of what its models predict alone."""

import numpy as np
import pandas as pd
import pytest
from bundles import make_bundle, predict_with
from clones import Clone
from small_slides import draw_small_slide

from gigatile.bundle.ensembles import write_ensemble
from gigatile.files import read_json, sha256_of

SCORES = ["p_luad", "p_lusc"]


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    """Return a clone, the folder of predictions by two models, and what was printed."""
    folder = tmp_path_factory.mktemp("ensemble")
    (folder / "clone").mkdir()
    run = Clone(folder / "clone")
    (folder / "pooled/evaluation").mkdir(parents=True)
    for name in ("folds.json", "evaluation/metrics.json"):
        (folder / "pooled" / name).write_text("{}")
    bundles = [make_bundle(folder / f"{n}", name=f"fold-{n}", seed=n) for n in (1, 2)]
    write_ensemble(bundles, folder / "pooled", folder / "lung")
    for name in ("P07-1", "P10-1"):
        draw_small_slide(name, folder / f"{name}.svs")
    (folder / "text.svs").write_text("no slide")
    files = [folder / f"{name}.svs" for name in ("P07-1", "P10-1", "text")]
    done, _ = predict_with(run, folder / "lung", folder / "out", *files)
    return run, folder, done.stdout


def test_scores_are_the_means_of_all_models(predicted):
    _, folder, printed = predicted
    results = folder / "out/results"
    table = pd.read_csv(results / "lung/predictions/slides.tsv", sep="\t")
    alone = [pd.read_csv(results / f"fold-{n}/predictions/slides.tsv", sep="\t") for n in (1, 2)]
    assert table["slide"].tolist() == ["P07-1", "P10-1"]
    scores = np.stack([each[SCORES] for each in alone])
    assert np.abs(scores[0] - scores[1]).min() > 1e-4, "two models"
    np.testing.assert_allclose(table[SCORES], scores.mean(axis=0), atol=1e-6)
    called = [SCORES[number][2:] for number in scores.mean(axis=0).argmax(axis=1)]
    assert table["call_mean"].tolist() == called
    assert "predicted 2 new slide(s); the models disagree on " in printed
    inputs = read_json(results / "lung/predictions/provenance.json")["inputs"]
    for name in ("fold-1/predictions/slides.tsv", "fold-2/predictions/slides.tsv"):
        assert inputs[name] == sha256_of(results / name)


def test_slides_are_tiled_once(predicted):
    _, folder, _ = predicted
    tiles = [folder / f"out/results/fold-{n}/predictions/tiles/P07-1.tfrecord" for n in (1, 2)]
    assert tiles[0].samefile(tiles[1])


def test_again_nothing_runs_and_nothing_changes(predicted):
    run, folder, _ = predicted
    path = folder / "out/results/lung/predictions/slides.tsv"
    before = path.read_bytes()
    files = [folder / f"{name}.svs" for name in ("P07-1", "P10-1", "text")]
    done, _ = predict_with(run, folder / "lung", folder / "out", *files)
    assert done.stderr.count("up to date") == 2, done.stderr
    assert path.read_bytes() == before


def test_mistakes_have_one_message(predicted, tmp_path):
    run, folder, _ = predicted
    for names, message in (
        ((tmp_path / "none.svs",), "none.svs: no such file"),
        ((tmp_path / "none.tsv",), "none.tsv: no such sheet"),
    ):
        done, _ = predict_with(run, folder / "lung", tmp_path / "out", *names, check=False)
        assert done.returncode and message in done.stderr and "Traceback" not in done.stderr
    served = run.run("gigatile", "serve", str(folder / "lung"), check=False)
    assert "lung: an ensemble of several bundles" in served.stderr
