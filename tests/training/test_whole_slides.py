"""Training on whole slides: on any number of ranks, resumed, and on slides of any shape."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trained import assert_same_bits, assert_same_to_rounding

from gigatile.errors import START_AGAIN
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
from gigatile.tasks.slide_classification.training import SlideClassification
from gigatile.training.sample_order import Epoch

SIZE, EPOCHS = 48, 2
# Columns and rows: among them one tile, a row of tiles, and one with 72 times the area.
SHAPES = [(1, 1), (6, 1), (3, 4), (9, 8), (2, 2)]


def source(folder: Path, number: int, label: str, shape: tuple[int, int], mpp=0.5) -> Source:
    """Write the tiles of a slide, of which a third is glass."""
    random = np.random.default_rng(number)
    columns, rows = shape
    grain = 4 if label == "coarse" else 1
    tiles = []
    for cell in range(columns * rows):
        if cell and random.random() < 0.3:
            continue
        small = random.integers(40, 220, (SIZE // grain, SIZE // grain, 3), np.uint8)
        image = encode_jpeg(small.repeat(grain, axis=0).repeat(grain, axis=1), 95)
        x, y = SIZE * (cell % columns), SIZE * (cell // columns)
        tiles.append(encode_tile(Tile(image, f"S{number}", x, y, SIZE, mpp, 1.0)))
    path = folder / f"S{number}.tfrecord"
    write_records(path, tiles)
    grid = SlideGrid(columns, rows, SIZE, mpp)
    return Source(f"S{number}", f"P{number}", label, path, grid)


@pytest.fixture(scope="module")
def slides(tmp_path_factory) -> Path:
    """Return the manifest of 10 slides to train on and 2 for validation."""
    folder = tmp_path_factory.mktemp("slides")
    labels = ("coarse", "fine")
    made = [
        source(folder, number, labels[number % 2], SHAPES[number // 2 % len(SHAPES)])
        for number in range(12)
    ]
    write_shards(
        {"train": made[:10], "valid": made[10:]},
        ShardSettings(target_mb=0.05),
        folder / "shards",
        lay_out=lay_out_slides,
    )
    return folder / "shards/manifest.json"


def arguments(launcher, manifest, out, ranks, aggregator="max", window=128, **settings):
    """Return the arguments of scripts/train.py for whole slides."""
    settings = {"model": "whole_small", "batch_size": 3, "epochs": EPOCHS, **settings}
    words = launcher.train_arguments(manifest, out, ranks, **settings)
    words[words.index("--task") + 1] = "slide_classification"
    sections = {
        "tiles": {"size": SIZE},
        "whole_slides": {"aggregator": aggregator, "window": window},
    }
    words[words.index("--task-settings") + 1] = json.dumps(sections)
    return words


def train(launcher, manifest, out, ranks=1, program="scripts/train.py", before=(), **settings):
    return launcher.run(
        ranks, program, *before, *arguments(launcher, manifest, out, ranks, **settings)
    )


def trained(launcher, manifest, out, ranks=1, **settings) -> Path:
    done = train(launcher, manifest, out, ranks, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "segments"


@pytest.mark.parametrize(
    "aggregator", ["max", pytest.param("mean", marks=pytest.mark.long), "attention"]
)
def test_ranks_share_each_slide(launcher, slides, tmp_path, aggregator):
    """The batch of 3 slides is no multiple of the ranks; the weights are equal to rounding."""
    # Not seed 1: with attention, rounding changes the sign of the input of a ReLU, and so the
    # gradient of one filter. In double precision the weights agree to 4e-16 with that seed, too.
    options = {"aggregator": aggregator, "seed": 2}
    alone = trained(launcher, slides, tmp_path / "alone", 1, **options)
    together = trained(launcher, slides, tmp_path / "together", 2, **options)
    assert_same_to_rounding(alone, together)


def test_window_changes_no_result(launcher, slides, tmp_path):
    small = trained(launcher, slides, tmp_path / "small", window=64, aggregator="mean")
    large = trained(launcher, slides, tmp_path / "large", window=4096, aggregator="mean")
    assert_same_to_rounding(small, large)


def test_stopped_training_ends_with_the_same_model(launcher, slides, tmp_path):
    """With loss scaling. A rank gets a signal within an epoch."""
    options = {"mixed_precision": True, "ranks": 2}
    uninterrupted = trained(launcher, slides, tmp_path / "uninterrupted", **options)
    program = "tests/training/programs/at_a_moment.py"
    moment = ("--moment", "in epoch 2, step 2 of 4", "--send", "SIGUSR2", "--to", 1)
    done = train(launcher, slides, tmp_path / "stopped", program=program, before=moment, **options)
    assert done.returncode == START_AGAIN, done.stdout + done.stderr
    done = train(launcher, slides, tmp_path / "stopped", **options)
    assert done.returncode == 0, done.stderr
    assert "resuming after epoch 1 of 2, step 3 of 4" in done.stdout
    assert_same_bits(uninterrupted, tmp_path / "stopped/segments")


def test_another_window_resumes_the_training(launcher, slides, tmp_path):
    """Too large a window is no reason to lose the training."""
    trained(launcher, slides, tmp_path, epochs=1)
    done = train(launcher, slides, tmp_path, epochs=2, window=96)
    assert "resuming after epoch 1 of 2" in done.stdout
    done = train(launcher, slides, tmp_path, epochs=2, aggregator="mean")
    assert "made with other settings" in done.stdout


def test_window_that_does_not_fit_says_which_would(launcher, slides, tmp_path):
    done = train(launcher, slides, tmp_path, window=65_536)
    assert done.returncode == 2
    assert re.search(r"a window of 65536 px needs about \d+\.\d GB .*; set it to \d+", done.stderr)
    assert "Traceback" not in done.stderr


def test_damaged_tile_is_named(launcher, slides, tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    for path in slides.parent.iterdir():
        content = bytearray(path.read_bytes())
        if path.name.startswith("train-00000") and path.suffix == ".tfrecord":
            content[len(content) // 2] ^= 1
        (folder / path.name).write_bytes(content)
    done = train(launcher, folder / "manifest.json", tmp_path / "out", ranks=2)
    assert done.returncode == 2
    assert re.search(r"train-00000.*tfrecord: the record at byte \d+ is damaged", done.stderr)
    assert "Traceback" not in done.stderr


def test_slides_of_different_scale_are_refused(tmp_path):
    from gigatile.errors import UserError

    made = [
        source(tmp_path, number, "fine", (2, 1), mpp=0.25 if number == 2 else 0.5)
        for number in range(4)
    ]
    with pytest.raises(UserError, match=r"(?s)have another scale; set tiles.mpp.*S2: 0.25 µm"):
        write_shards({"train": made}, ShardSettings(), tmp_path / "out", lay_out=lay_out_slides)


def test_shards_of_tiles_are_refused(launcher, manifest, tmp_path):
    done = train(launcher, manifest, tmp_path)
    assert done.returncode == 2
    assert "does not consist of whole slides" in done.stderr


def test_model_describes_its_slides(launcher, slides, tmp_path):
    segments = trained(launcher, slides, tmp_path, epochs=1)
    described = read_json(segments / "0001.json")
    assert described["classes"] == ["coarse", "fine"]
    assert described["mpp"] == 0.5
    assert described["whole_slides"] == {"aggregator": "max"}


def test_an_epoch_shows_at_most_so_many_slides_of_a_patient(tmp_path):
    """Others in each epoch; the classes are balanced among what the cap leaves."""
    of_patient = [0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 3]
    made = [
        replace(
            source(tmp_path, number, "coarse" if patient < 2 else "fine", (1, 1)),
            patient=f"P{patient}",
        )
        for number, patient in enumerate(of_patient)
    ]
    settings = ShardSettings(target_mb=0.01)
    write_shards({"train": made}, settings, tmp_path / "shards", lay_out=lay_out_slides)
    task = SlideClassification(TileSettings(size=SIZE), WholeSlideSettings())
    reader = task.reader(tmp_path / "shards/manifest.json", "train")
    names = [reader[number].slide.slide for number in range(len(reader))]
    patients = np.array([of_patient[int(name[1:])] for name in names])
    assert len(reader.counts) > 1

    def shown(epochs: int, **options) -> list[np.ndarray]:
        sampling = task.sampling(reader, TrainSettings(slides_per_patient=2, **options))
        orders = [Epoch(sampling, number, reader.classes_of) for number in range(epochs)]
        return [order.samples(0, len(order)).records for order in orders]

    epochs = shown(10)
    for records in epochs:
        assert np.bincount(patients[records]).tolist() == [2, 2, 1, 2]
        assert len(set(records.tolist())) == 7
    totals = np.bincount(np.concatenate(epochs))
    assert totals[patients == 0].tolist() == [4] * 5 and totals[patients == 3].tolist() == [5] * 4
    fine = np.isin(patients, (2, 3))
    together = np.concatenate(shown(12, balance="epoch"))
    assert abs(fine[together].sum() - 42) <= 4  # of 84
