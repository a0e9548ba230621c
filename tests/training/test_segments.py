"""The model of each segment is validated, and the best one is chosen."""

import csv
import itertools
from pathlib import Path

import keras
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss

from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_json, write_whole
from gigatile.json_models import read_model
from gigatile.records.shards import ShardReader
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification import validation
from gigatile.tasks.tile_classification.scoring import BATCH
from gigatile.tasks.tile_classification.validation import validate
from gigatile.training.segments import (
    Segment,
    ValidationRecord,
    choose_model,
    repeat_segment,
    repeat_validation,
    stops_early,
)
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


# --- Early stopping


def results(*losses: float, step: int = 2) -> list[ValidationRecord]:
    """Return the results of segments of two epochs."""
    return [
        ValidationRecord(epoch=step * number, loss=loss, inputs={})
        for number, loss in enumerate(losses, 1)
    ]


@pytest.mark.parametrize(
    ("losses", "patience", "stops"),
    [
        ((0.9,), 1, False),
        ((0.9, 0.8), 1, False),
        ((0.9, 0.9), 2, True),
        ((0.9, 1.0), 2, True),
        ((0.9, 1.0), 3, False),
        ((0.9, 1.0, 0.95), 4, True),
        ((0.9, 1.0, 0.89), 4, False),
        ((0.9, 1.0, 0.8, 0.81, 0.82), 4, True),
        ((0.9, 1.0, 0.8, 0.81, 0.82), 5, False),
        ((0.9, 1.0, 1.1, 1.2), None, False),
    ],
)
def test_training_stops_without_a_better_result(losses, patience, stops):
    assert stops_early(results(*losses), patience) == stops


def test_criterion_may_rise():
    def with_precision(*values):
        return [
            ValidationRecord(epoch=epoch, loss=1, criterion="ap", ap=value, inputs={})
            for epoch, value in enumerate(values, 1)
        ]

    assert not stops_early(with_precision(0.1, 0.2, 0.3), 1)
    assert stops_early(with_precision(0.1, 0.3, 0.2), 1)


def test_repeated_segments_have_the_result_of_the_last(segments, tmp_path):
    """Segments 6 and 8 are not trained; the model is that of epoch 4."""
    for segment in segments:
        segment.state.write_text(f"the state of epoch {segment.epoch}")
    for last, segment in itertools.pairwise(segments[1:]):
        for path in (segment.state, segment.model, segment.described, segment.validated):
            path.unlink()
        assert not repeat_validation(segments[1])
        assert repeat_segment(last, segment) == 4
        assert repeat_validation(segment)
        assert segment.state.read_text() == "the state of epoch 4"
        assert stops_early([read_model(ValidationRecord, segment.validated)], 1) is False
    assert choose_model(segments, tmp_path / "model") == segments[1]
    settings = read_json(tmp_path / "model/settings.json")
    assert settings["chosen"] == {"epoch": 4, "valid_loss": 0.4, "of": 2}
    assert "stopped_after" not in settings
    with (tmp_path / "model/history.tsv").open() as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    # Trained with more patience, a segment replaces the link and not the file of the last one.
    with write_whole(segments[2].state) as temporary:
        temporary.write_text("trained")
    assert segments[1].state.read_text() == "the state of epoch 4"


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_early_stopping_and_more_patience(launcher, manifest, tmp_path, ranks):
    """Training stops, and with more patience it goes on as if it had never stopped."""
    stopped, patient = tmp_path / "stopped", tmp_path / "patient"

    def validated(out: Path, epoch: int, loss: float) -> Path:
        """Write a result of a segment, in place of its validation."""
        path = Segment(out / "segments", epoch).validated
        write_json(path, {"epoch": epoch, "loss": loss, "inputs": {}})
        return path

    def train(out: Path, epoch: int, patience: int | None, *before: Path) -> str:
        arguments = launcher.train_arguments(
            manifest, out, ranks, epochs=epoch, patience=patience, seed=ranks
        )
        done = launcher.run(ranks, "scripts/train.py", *arguments, "--validated", *map(str, before))
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = {}
    for out in (stopped, patient):
        train(out, 1, 1)
        first[out] = validated(out, 1, 0.5)
    text = train(stopped, 2, 1, first[stopped])
    assert "resuming after epoch 1 of 2" in text
    second = validated(stopped, 2, 0.6)
    text = train(stopped, 3, 1, first[stopped], second)
    assert (
        text
        == "stopped after epoch 2: no better validation in the last 1 epochs (train.patience)\n"
    )
    segment = Segment(stopped / "segments", 3)
    assert segment.model.read_bytes() == Segment(stopped / "segments", 2).model.read_bytes()
    assert not (stopped / "checkpoints").exists()
    assert "resuming after epoch 2 of 3" in train(stopped, 3, 5, first[stopped], second)
    train(patient, 3, None)
    for path in (segment.model, segment.state):
        expected = patient / "segments" / path.name
        assert sha256_of(path) == sha256_of(expected), path.name
    assert "stopped_after" not in read_json(segment.described)
