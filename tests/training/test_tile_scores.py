"""Scores averaged over views, and their temperature."""

import json
import shutil

import keras
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import log_loss

from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.records.shards import ShardReader
from gigatile.settings.view_names import VIEWS
from gigatile.settings.whole import load_settings
from gigatile.tasks import find_task
from gigatile.tasks.tile_classification import temperature as fitting
from gigatile.tasks.tile_classification.choice import complete
from gigatile.tasks.tile_classification.scoring import (
    Scores,
    TileClassifier,
    model_of_scores,
    sharpened,
)
from gigatile.tasks.tile_classification.temperature import (
    Fitted,
    fit_temperature,
    mean_loss,
    warning_of,
)
from gigatile.training.segments import Segment
from gigatile.views import apply_view


@pytest.fixture(scope="module")
def trained(launcher, manifest, tmp_path_factory) -> Segment:
    """Return a segment of one epoch: its scores are unsure."""
    out = tmp_path_factory.mktemp("trained")
    launcher.train(manifest, out, epochs=1)
    return Segment(out / "segments", 1)


@pytest.fixture
def chosen(trained, tmp_path):
    """Return the folder of a chosen model."""
    shutil.copyfile(trained.model, tmp_path / "model.keras")
    shutil.copyfile(trained.described, tmp_path / "settings.json")
    return tmp_path


def complete_with(folder, manifest, **scores) -> dict:
    complete(folder, manifest, {"scores": scores})
    return read_json(folder / "settings.json")


def valid_tiles(manifest):
    reader = ShardReader(manifest, "valid")
    tiles = [reader[number] for number in range(len(reader))]
    labels = reader.classes_at(np.arange(len(reader)))
    reader.close()
    return tiles, labels


def test_nothing_is_chosen_by_default():
    plain = {"run": "mine", "samples": "s.tsv"}
    assert find_task("tile_classification").choice(load_settings(plain)) == {}
    changed = load_settings(plain | {"scores": {"temperature": True}})
    assert set(find_task("tile_classification").choice(changed)) == {"scores"}


def test_scores_are_the_mean_over_views(chosen, manifest):
    described = complete_with(chosen, manifest, views="all")
    assert described["scores"] == {"views": list(VIEWS), "temperature": 1.0}
    tiles, _ = valid_tiles(manifest)
    model = keras.models.load_model(chosen / "model.keras", compile=False)
    pixels = np.stack([tile.pixels() for tile in tiles])
    views = [np.stack([apply_view(tile, view) for tile in pixels]) for view in range(8)]
    expected = np.mean([model.predict(view, verbose=0) for view in views], axis=0)
    classifier = TileClassifier(chosen / "model.keras", chosen / "settings.json")
    np.testing.assert_allclose(classifier.score(tiles), expected, atol=1e-6)
    np.testing.assert_allclose(classifier.score_pixels(pixels[:5]), expected[:5], atol=1e-6)
    # So the scores do not depend on how a slide lies.
    turned = classifier.score_pixels(views[5])
    np.testing.assert_allclose(turned, expected, atol=1e-6)
    assert (
        np.abs(model.predict(views[5], verbose=0) - model.predict(pixels, verbose=0)).max() > 1e-4
    )


def test_temperature_has_the_least_loss(chosen, manifest):
    described = complete_with(chosen, manifest, views=["identity", "flip"], temperature=True)
    scores = described["scores"]
    assert scores["views"] == ["identity", "flip"] and scores["tiles"] == 27
    plain = TileClassifier(chosen / "model.keras", chosen / "settings.json", scores["views"])
    final = TileClassifier(chosen / "model.keras", chosen / "settings.json")
    tiles, labels = valid_tiles(manifest)
    before, after = plain.score(tiles), final.score(tiles)
    assert scores["loss_before"] == pytest.approx(log_loss(labels, before), rel=1e-5)
    assert scores["loss"] == pytest.approx(log_loss(labels, after), rel=1e-4)
    assert scores["loss"] <= scores["loss_before"]
    np.testing.assert_array_equal(before.argmax(axis=1), after.argmax(axis=1))
    np.testing.assert_allclose(after.sum(axis=1), 1, rtol=1e-5)
    for other in (0.98, 1.02):
        near = sharpened(before, scores["temperature"] * other)
        assert log_loss(labels, near) >= scores["loss"] - 1e-7


@pytest.mark.parametrize("factor", [0.2, 0.7, 1, 2.5, 8])
def test_a_known_temperature_is_recovered(factor):
    """Labels are drawn from the scores; then their logits are multiplied."""
    random = np.random.default_rng(3)
    logits = random.normal(0, 1.5, (40_000, 4))
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([random.choice(4, p=row) for row in scores])
    changed = sharpened(scores.astype(np.float32), 1 / factor)
    temperature = fit_temperature(changed, labels)
    assert temperature == pytest.approx(factor, rel=0.03)
    # Another optimizer, of the logits.
    other = minimize(
        lambda t: mean_loss(sharpened(changed, float(t[0])), labels), [1.0], method="Nelder-Mead"
    )
    assert temperature == pytest.approx(other.x[0], abs=2e-3)


def test_certain_scores_do_not_break_the_fit():
    scores = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    right = fit_temperature(scores, np.array([0, 1, 2, 0]))
    assert 0.05 <= right <= 20
    wrong = fit_temperature(scores, np.array([0, 1, 2, 1]))
    assert wrong > 5, "it is sure and wrong"
    for temperature in (right, wrong):
        assert np.isfinite(sharpened(scores, temperature)).all()


def test_a_temperature_that_the_tiles_do_not_determine_is_reported(
    chosen, manifest, monkeypatch, capsys
):
    """A model without an error gets surer without end, and one that is wrong gets less sure."""
    complete_with(chosen, manifest, temperature=True)
    assert "reliable" not in capsys.readouterr().out
    sure = np.eye(2, dtype=np.float32)[[0, 1, 0]] * 0.8 + 0.1
    for labels, why in (([0, 1, 0], "almost no error"), ([1, 0, 1], "hardly follow their labels")):
        temperature = fit_temperature(sure, np.array(labels))
        loss = mean_loss(sharpened(sure, temperature), np.array(labels))
        result = Fitted(temperature=temperature, tiles=3, loss=loss, loss_before=1)
        assert why in warning_of(result)
    monkeypatch.setattr(fitting, "LEAST_LOSS", 100)
    complete_with(chosen, manifest, temperature=True)
    assert "is not reliable, since the scores of the validation" in capsys.readouterr().out


@pytest.mark.parametrize("views", [("identity",), ("rotate90_flip", "rotate180"), VIEWS])
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_exported_model_has_these_scores(chosen, manifest, tmp_path, views, temperature):
    described = read_json(chosen / "settings.json")
    described["scores"] = {"views": list(views), "temperature": temperature}
    (chosen / "settings.json").write_text(json.dumps(described))
    tiles, _ = valid_tiles(manifest)
    expected = TileClassifier(chosen / "model.keras", chosen / "settings.json").score(tiles)
    model = keras.models.load_model(chosen / "model.keras", compile=False)
    together = model_of_scores(model, Scores(**described["scores"]))
    pixels = np.stack([tile.pixels() for tile in tiles])
    np.testing.assert_allclose(together.predict(pixels, verbose=0), expected, atol=2e-6)


@pytest.mark.parametrize(
    "scores",
    [{"views": ["flop"]}, {"views": []}, {"temperature": 0}, {"temperature": "hot"}],
)
def test_damaged_settings_are_refused(chosen, scores):
    described = read_json(chosen / "settings.json") | {"scores": scores}
    (chosen / "settings.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match=r"settings\.json: damaged"):
        TileClassifier(chosen / "model.keras", chosen / "settings.json")
