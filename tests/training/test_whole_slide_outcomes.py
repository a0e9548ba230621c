"""Training on numbers and times to events of whole slides."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from trained import assert_same_to_rounding

from gigatile.evaluation.survival import concordance
from gigatile.files import read_json
from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.shard_layout import SlideGrid, Source
from gigatile.records.slide_layout import lay_out_slides
from gigatile.records.tile import encode_jpeg
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.settings.whole_slides import WholeSlideSettings
from gigatile.tasks.slide_outcome.targets import OutcomeReader
from gigatile.tasks.whole_slide_outcome.scoring import WholeSlideOutcomeNetwork
from gigatile.tasks.whole_slide_outcome.training import WholeSlideOutcome
from gigatile.training.batches import Batch
from gigatile.training.sample_order import Epoch
from gigatile.whole_slides.receptive_field import FieldsBySize
from gigatile.whole_slides.slide_pixels import StoredSlide
from gigatile.whole_slides.two_passes import Alone

SIZE, SLIDES, TRAINED = 32, 96, 72
KINDS = ("number", "survival")


def share_of(number: int) -> float:
    """Return the known answer: the share of the tiles of a slide that are red."""
    return float(np.random.default_rng(number).random())


def label_of(number: int, kind: str) -> str:
    if kind == "number":
        return repr(60 + 20 * share_of(number))
    random = np.random.default_rng(10_000 + number)
    event = random.exponential(np.exp(-6 * (share_of(number) - 0.5)))
    end = random.exponential(4)
    return f"{float(min(event, end))!r} {'event' if event <= end else 'censored'}"


def source(folder: Path, number: int, kind: str) -> Source:
    """Write the tiles of a slide: 8 red or blue ones."""
    random = np.random.default_rng(number)
    random.random()
    red = round(8 * share_of(number))
    tiles = []
    for cell in range(8):
        pixels = random.integers(40, 160, (SIZE, SIZE, 3), np.uint8)
        pixels[..., 0 if cell < red else 2] += 80
        image = encode_jpeg(pixels, 95)
        x, y = SIZE * (cell % 4), SIZE * (cell // 4)
        tiles.append(encode_tile(Tile(image, f"S{number}", x, y, SIZE, 0.5, 1.0)))
    path = folder / f"S{number}.tfrecord"
    write_records(path, tiles)
    label = label_of(number, kind)
    return Source(f"S{number}", f"P{number}", label, path, SlideGrid(4, 2, SIZE, 0.5))


@pytest.fixture(scope="module", params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def manifest(kind, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(kind)
    made = [source(folder, number, kind) for number in range(SLIDES)]
    write_shards(
        {"train": made[:TRAINED], "valid": made[TRAINED:]},
        ShardSettings(target_mb=0.5),
        folder / "shards",
        lay_out=lay_out_slides,
    )
    return folder / "shards/manifest.json"


def train(launcher, manifest: Path, out: Path, ranks: int = 1, **settings) -> Path:
    given = {"model": "whole_small", "batch_size": 6, "learning_rate": 0.003, "views": ["identity"]}
    words = launcher.train_arguments(manifest, out, ranks, **(given | settings))
    words[words.index("--task") + 1] = "whole_slide_outcome"
    sections = {"tiles": {"size": SIZE}, "whole_slides": {"aggregator": "mean"}}
    words[words.index("--task-settings") + 1] = json.dumps(sections)
    done = launcher.run(ranks, "scripts/train.py", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "segments"


def test_model_finds_the_known_answer(launcher, manifest, kind, tmp_path):
    segments = train(launcher, manifest, tmp_path, epochs=12, segment_epochs=12)
    described = segments / "0012.json"
    network = WholeSlideOutcomeNetwork(described.with_suffix(".keras"), described, 64)
    reader = OutcomeReader(manifest, "valid")
    predicted, truth = [], []
    for number in range(len(reader)):
        slide = reader[number]
        stored = StoredSlide(slide.cells, SIZE, reader.image, reader.damaged)
        predicted.append(float(network.scores_of(network.logits(stored))[0]))
        truth.append(share_of(int(slide.slide.slide.removeprefix("S"))))
    predicted, truth = np.array(predicted), np.array(truth)
    assert np.corrcoef(predicted, truth)[0, 1] > 0.95
    assert read_json(described)["outcome"]["kind"] == kind
    values = np.array([outcome.value for outcome in reader.outcomes])
    if kind == "number":
        assert np.abs(predicted - values).mean() < 3
        return
    events = np.array([bool(outcome.event) for outcome in reader.outcomes])
    best = concordance(truth, values, events)
    assert concordance(predicted, values, events) == pytest.approx(best, abs=0.05)


class OneRank(Alone):
    """A single process that writes."""

    writes = True


@pytest.mark.parametrize("aggregator", ["max", "mean", "attention"])
def test_gradients_are_those_of_the_whole_slides(manifest, kind, aggregator):
    """Of the squared error, or of the likelihood, and of the head's single output."""
    task = WholeSlideOutcome(
        TileSettings(size=SIZE), WholeSlideSettings(aggregator=aggregator, window=64)
    )
    settings = TrainSettings(model="whole_small", batch_size=3)
    reader = task.reader(manifest, "train")
    task.configure(reader, settings)
    networks = task.networks(reader, settings, pretrained=True)
    network = networks.trained
    targets = task.targets(reader)[:3]
    inputs = {"slide": np.arange(3), "view": np.zeros(3, np.int64)}
    batch = Batch(inputs, targets, np.ones(3, np.float32), 3, 0.0, 0.0)
    task.source(reader)
    sums, ours = task.shared_gradients(network, batch, lambda loss: loss / 3, OneRank())

    fields = FieldsBySize(network.get_layer("encoder"))
    pixels, tissue = [], []
    for number in range(3):
        stored = StoredSlide(reader[number].cells, SIZE, reader.image, reader.damaged)
        picture = stored.picture(fields.get(*stored.shape), 4096)
        (window,) = picture.windows
        pixels.append(picture.read_pixels(window))
        tissue.append(picture.tissue[..., None].astype(np.float32))
    saved = networks.model([np.stack(pixels), np.stack(tissue)], training=True)
    with tf.GradientTape() as tape:
        outputs = network([np.stack(pixels), np.stack(tissue)], training=True)
        whole = task.sums(outputs, tf.constant(targets), tf.ones(3))
        loss = whole["loss"] / 3
    np.testing.assert_array_equal(saved, outputs)  # no softmax
    expected = tape.gradient(loss, [weight.value for weight in network.trainable_variables])
    for name in ("loss", "residual"):
        assert float(sums[name]) == pytest.approx(float(whole[name]), rel=1e-4)
    for gradient, other, weight in zip(ours, expected, network.trainable_variables, strict=True):
        scale = np.abs(other).max()
        assert scale > 0, weight.path
        np.testing.assert_allclose(gradient, other, atol=2e-3 * scale, err_msg=weight.path)


def test_an_epoch_shows_at_most_so_many_slides_of_a_patient(tmp_path, kind):
    """Another in each epoch, so that all are shown equally often."""
    of_patient = [0, 0, 0, 0, 1, 1, 2]
    made = [
        replace(source(tmp_path, number, kind), patient=f"P{patient}")
        for number, patient in enumerate(of_patient)
    ]
    write_shards(
        {"train": made}, ShardSettings(target_mb=0.05), tmp_path / "shards", lay_out=lay_out_slides
    )
    task = WholeSlideOutcome(TileSettings(size=SIZE), WholeSlideSettings())
    reader = task.reader(tmp_path / "shards/manifest.json", "train")
    sampling = task.sampling(reader, TrainSettings(slides_per_patient=1))
    patients = np.array([of_patient[int(reader.slide_at(n)[1:])] for n in range(len(reader))])
    shown = np.zeros(len(reader), int)
    for number in range(8):
        order = Epoch(sampling, number, reader.classes_of)
        records = order.samples(0, len(order)).records
        assert np.bincount(patients[records]).tolist() == [1, 1, 1]
        shown += np.bincount(records, minlength=len(reader))
    assert [sorted(set(shown[patients == patient])) for patient in range(3)] == [[2], [4], [8]]


@pytest.mark.long
def test_ranks_reach_the_same_weights(launcher, manifest, tmp_path):
    alone, together = (
        train(launcher, manifest, tmp_path / str(ranks), ranks, epochs=2) for ranks in (1, 2)
    )
    assert_same_to_rounding(alone, together)
