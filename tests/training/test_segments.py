"""The model of each segment is validated, and the best one is chosen."""

import csv

import keras
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_json
from gigatile.records.shards import ShardReader
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification import validation
from gigatile.tasks.tile_classification.scoring import BATCH
from gigatile.tasks.tile_classification.validation import validate
from gigatile.training.segments import Segment, choose_model
from gigatile.training.validation import record_validation

LOSSES = (0.9, 0.4, 0.4, 0.7)


@pytest.fixture(scope="module")
def trained(launcher, manifest, tmp_path_factory):
    """Return a segment of two epochs, of two batches each."""
    out = tmp_path_factory.mktemp("trained")
    done = launcher.train(manifest, out, epochs=2, limit_batches=2)
    assert "2 steps of 16 tiles per epoch" in done.stdout
    return Segment(out / "segments", 2)


def test_loss_and_accuracy_agree_with_scikit_learn(trained, manifest):
    reader = ShardReader(manifest, "valid")
    model = keras.models.load_model(trained.model, compile=False)
    tiles = [reader[number] for number in range(len(reader))]
    scores = model.predict(np.stack([tile.pixels() for tile in tiles]), verbose=0)
    labels = [tile.label for tile in tiles]
    predicted = [reader.classes[number] for number in scores.argmax(axis=1)]
    assert len(reader) < BATCH, "a limit of two batches excludes no tile"
    record_validation(trained, manifest, validate(trained, manifest, {}), print, events=None)
    result = read_json(trained.validated)
    assert (result["epoch"], result["tiles"]) == (2, len(reader))
    assert result["loss"] == pytest.approx(log_loss(labels, scores), rel=1e-6)
    assert result["accuracy"] == pytest.approx(accuracy_score(labels, predicted))


def test_limit_batches_limits_validation(trained, manifest, monkeypatch):
    whole = len(ShardReader(manifest, "valid"))
    for batch, tiles in ((1, 2), (3, 6), (whole - 1, whole)):
        monkeypatch.setattr(validation, "BATCH", batch)
        assert validate(trained, manifest, {}).count == tiles


def test_shards_with_other_classes_are_refused(trained, manifest, tmp_path):
    described = read_json(trained.described)
    other = Segment(tmp_path, 2)
    other.model.write_bytes(trained.model.read_bytes())
    write_json(other.described, described | {"classes": ["a", "b", "c"]})
    with pytest.raises(UserError, match=r"classes coarse, fine, plain, but .* trained on a, b, c"):
        validate(other, manifest, {})


@pytest.fixture
def segments(tmp_path):
    """Return four segments of two epochs each, with text files as models."""
    segments = [Segment(tmp_path / "segments", epoch) for epoch in (2, 4, 6, 8)]
    for segment, loss in zip(segments, LOSSES, strict=True):
        history = [[epoch, 1 / epoch, 0.5] for epoch in range(1, segment.epoch + 1)]
        write_json(
            segment.described,
            {"classes": ["a"], "train": {"epochs": segment.epoch}, "versions": {"python": "3"}}
            | {"inputs": {"shards/manifest.json": "0"}, "history": history, "steps": 7}
            | {"metrics": ["accuracy"], "sha256": "1"},
        )
        segment.model.write_text(f"the model of epoch {segment.epoch}")
        inputs = {f"segments/{segment.model.name}": sha256_of(segment.model)}
        result = {"epoch": segment.epoch, "loss": loss, "accuracy": 0.75, "inputs": inputs}
        write_json(segment.validated, result)
    return segments


def test_first_of_the_best_segments_is_chosen(segments, tmp_path):
    out = tmp_path / "model"
    assert choose_model(segments, out) == segments[1]
    assert (out / "model.keras").read_text() == "the model of epoch 4"
    settings = read_json(out / "settings.json")
    assert settings["train"]["epochs"] == 4 and "history" not in settings
    assert settings["chosen"] == {"epoch": 4, "valid_loss": 0.4, "of": 4}
    assert set(settings["inputs"]) == {
        *("shards/manifest.json", "segments/0004.keras"),
        *(f"segments/{segment.validated.name}" for segment in segments),
    }
    assert read_json(out / "versions.json") == {"python": "3"}
    with (out / "history.tsv").open() as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    assert [row["epoch"] for row in rows] == [str(epoch) for epoch in range(1, 9)]
    assert [row["valid_loss"] for row in rows] == [
        *("", "0.900000", "", "0.400000", "", "0.400000", "", "0.700000"),
    ]
    assert rows[3]["loss"] == "0.250000" and rows[3]["valid_accuracy"] == "0.750000"


def test_validation_of_another_model_is_refused(segments, tmp_path):
    segments[2].model.write_text("trained again")
    with pytest.raises(UserError, match=r"0006\.valid\.json: validates another 0006\.keras"):
        choose_model(segments, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("epochs", "length", "ends"),
    [(8, 4, [4, 8]), (7, 3, [3, 6, 7]), (2, 4, [2]), (3, 1, [1, 2, 3]), (4, 4, [4])],
)
def test_segments_end_at_multiples_of_segment_epochs(epochs, length, ends):
    assert TrainSettings(epochs=epochs, segment_epochs=length).segments == ends
