"""Step times are measured, and TensorBoard reads the scalars of a training."""

import io
import json
import re
import time

import keras
import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import precision_score, recall_score
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gigatile.files import read_json
from gigatile.records.shards import ShardReader
from gigatile.tasks.tile_classification.validation import validate
from gigatile.training.monitoring import PHASES, EventWriter, StepTimer, bottleneck
from gigatile.training.pictures import (
    GAP,
    Sample,
    Worst,
    class_figures,
    draw_confusion,
    mosaic,
)
from gigatile.training.segments import Segment
from gigatile.training.validation import record_validation


def scalars(folder):
    """Return the scalars in a folder as TensorBoard reads them: steps and values by name."""
    read = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    read.Reload()
    return {
        name: [(event.step, float(np.array(event.tensor_proto.float_val or 0).sum()) or
            float(np.frombuffer(event.tensor_proto.tensor_content, np.float32)[0]))
            for event in read.Tensors(name)]
        for name in read.Tags()["tensors"]
        if read.SummaryMetadata(name).plugin_data.plugin_name == "scalars"
    }  # fmt: skip


def test_time_counts_for_its_phase():
    timer = StepTimer()
    time.sleep(0.2)
    timer.reset()
    for _ in range(2):
        timer.begin()
        time.sleep(0.02)
        timer.end_phase("input")
        timer.end_phase("copy")
        time.sleep(0.08)
        timer.end_phase("model")
        timer.end_step(exchange=0.03, read=0.5, decode=0.25)
        time.sleep(0.2)  # saving and other work outside a step
    seen = timer.per_step()
    assert 0.02 <= seen[0] < 0.06 and seen[1] < 0.01 and 0.05 <= seen[2] < 0.09
    np.testing.assert_allclose(seen[3:], [0.03, 0.5, 0.25])


@pytest.mark.parametrize(
    ("seconds", "advice"),
    [
        ([0.001, 0, 0.2, 0.01, 0, 0], "The model's arithmetic limits the speed."),
        ([0.08, 0, 0.2, 0.01, 0.1, 0.3], "Decoding limits the speed: increase"),
        ([0.5, 0, 0.2, 0.01, 0.9, 0.3], "Reading limits the speed: put shards/"),
        ([0.01, 0, 0.2, 0.1, 0, 0], "The exchange between ranks limits"),
        ([0.01, 0.3, 0.2, 0.1, 0, 0], "Copying samples to the device limits"),
    ],
)
def test_bottleneck_is_named(seconds, advice):
    line = bottleneck(np.array(seconds))
    assert line.startswith(f"{1000 * sum(seconds[:4]):.0f} ms per step: ")
    assert f". {advice}" in line


def test_tensorboard_reads_scalars(tmp_path):
    for step in (3, 7):  # a resumed training writes another file
        EventWriter(tmp_path).write(step, {"epoch/loss": step / 2})
    assert scalars(tmp_path) == {"epoch/loss": [(3, 1.5), (7, 3.5)]}


@pytest.fixture(scope="module")
def trained(launcher, manifest, tmp_path_factory):
    """Return a segment of two epochs and what its training printed; its events are next to it."""
    out = tmp_path_factory.mktemp("trained")
    arguments = launcher.train_arguments(manifest, out, 2, epochs=2)
    done = launcher.run(2, "scripts/train.py", *arguments, "--events", out / "events")
    assert done.returncode == 0, done.stderr
    return Segment(out / "segments", 2), done


def test_training_and_validation_reach_tensorboard(trained, manifest, tmp_path):
    segment, done = trained
    lines = re.findall(r"^(\d+) ms per step: (\d+) waiting for input, (\d+) copying, (\d+) model,"
                      r" (\d+) exchange between ranks", done.stdout, re.MULTILINE)  # fmt: skip
    assert len(lines) == 2, done.stdout
    for whole, *parts in lines:
        assert abs(int(whole) - sum(map(int, parts))) <= len(PHASES), "equal up to rounding"
    history = json.loads(segment.described.read_text())["history"]
    seen = scalars(segment.folder.parent / "events")
    for column, name in enumerate(("loss", "accuracy"), 1):
        assert seen[f"epoch/{name}"] == [
            (5 * epoch, pytest.approx(history[epoch - 1][column], rel=1e-6)) for epoch in (1, 2)
        ]
    validation = validate(segment, manifest, {})
    record_validation(segment, manifest, validation, print, tmp_path / "valid")
    valid = json.loads(segment.validated.read_text())
    seen = scalars(tmp_path / "valid")
    for name in ("loss", "accuracy"):
        assert seen[f"epoch/{name}"] == [(10, pytest.approx(valid[name], rel=1e-6))]


# --- Details of a validation


def pictures(folder):
    """Return the pictures in a folder as TensorBoard reads them: steps and pixels by name."""
    read = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    read.Reload()
    shown = {}
    for name in read.Tags()["tensors"]:
        if read.SummaryMetadata(name).plugin_data.plugin_name == "images":
            (event,) = read.Tensors(name)
            width, height, png = event.tensor_proto.string_val
            image = Image.open(io.BytesIO(png))
            assert image.size == (int(width), int(height))
            shown[name] = (event.step, np.asarray(image))
    return shown


def test_validation_shows_classes_and_the_worst_tiles(trained, manifest, tmp_path):
    segment, _ = trained
    validated = validate(segment, manifest, {})
    reader = ShardReader(manifest, "valid")
    model = keras.models.load_model(segment.model, compile=False)
    tiles = [reader[number] for number in range(len(reader))]
    scores = model.predict(np.stack([tile.pixels() for tile in tiles]), verbose=0)
    labels = [reader.classes.index(tile.label) for tile in tiles]
    called = scores.argmax(axis=1)
    recalls = recall_score(labels, called, average=None)
    precisions = precision_score(labels, called, average=None, zero_division=np.nan)
    for number, name in enumerate(reader.classes):
        assert validated.details[f"recall/{name}"] == pytest.approx(recalls[number])
        expected = None if np.isnan(precisions[number]) else pytest.approx(precisions[number])
        assert validated.details.get(f"precision/{name}") == expected

    record_validation(segment, manifest, validated, print, events=tmp_path)
    drawn = pictures(tmp_path)
    assert set(drawn) == {"confusion", "worst tiles"}
    assert {step for step, _ in drawn.values()} == {read_json(segment.described)["steps"]}
    assert f"recall/{reader.classes[0]}" in scalars(tmp_path)
    # The tile with the largest loss is at the top left.
    losses = -np.log(scores[np.arange(len(tiles)), labels])
    first = tiles[int(losses.argmax())].pixels()
    side = first.shape[0]
    _, worst = drawn["worst tiles"]
    np.testing.assert_array_equal(worst[GAP : GAP + side, GAP : GAP + side], first)


def test_worst_samples_are_those_with_the_largest_losses():
    random = np.random.default_rng(2)
    losses = np.round(random.random(200), 2)
    worst = Worst(16)
    for number, loss in enumerate(losses):
        if worst.would_keep(loss):
            worst.add(Sample(loss, np.zeros((2, 2, 3), np.uint8), [str(number)]))
    expected = sorted(range(200), key=lambda number: (-losses[number], number))[:16]
    assert [int(sample.caption[0]) for sample in worst.samples] == expected


def test_pictures_of_few_samples_and_one_class():
    sample = Sample(0.5, np.full((7, 7, 3), 9, np.uint8), ["one", "two"])
    assert (mosaic([sample])[GAP : GAP + 7, GAP : GAP + 7] == 9).all()
    assert mosaic([sample] * 5).shape[0] == 2 * mosaic([sample]).shape[0]
    assert draw_confusion(np.array([[3]]), ["only"]).ndim == 3
    assert draw_confusion(np.eye(2, dtype=int), ["лёгкое", "肺"]).ndim == 3
    assert class_figures(np.array([[0, 0], [2, 2]]), ["a", "b"]) == {
        "precision/a": 0.0,
        "recall/b": 0.5,
        "precision/b": 1.0,
    }
