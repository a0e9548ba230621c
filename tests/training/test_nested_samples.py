"""Samples may be nested arrays of different sizes, with several losses and any gradients."""

import json
from pathlib import Path

import numpy as np
import pytest
from trained import history, last_model, weights

from gigatile.records.example import encode_example
from gigatile.records.shard_layout import Source
from gigatile.records.tfrecord import write_records
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings

FEATURES = 6
PROGRAM = Path("tests/training/programs/train_bags.py")


@pytest.fixture(scope="module")
def bags(tmp_path_factory) -> Path:
    """Return the manifest of 43 bags of 1 to 20 instances; one instance decides the label."""
    folder = tmp_path_factory.mktemp("bags")
    random = np.random.default_rng(2)
    sources = []
    for number in range(43):
        instances = random.normal(size=(random.integers(1, 21), FEATURES)).astype("<f4")
        label = number % 2
        instances[random.integers(len(instances)), 0] = 4 if label else -4
        boxes = random.uniform(size=(random.integers(0, 5), 2)).astype("<f4")
        example = {
            "instances": instances.tobytes(),
            "boxes": boxes.tobytes(),
            "class": label,
            "label": f"class {label}",
        }
        path = folder / f"B{number}.tfrecord"
        write_records(path, [encode_example(example)])
        sources.append(Source(f"B{number}", f"P{number}", f"class {label}", path))
    write_shards(
        {"train": sources}, ShardSettings(target_mb=0.002), folder / "shards",
        unit="bag", record_id=lambda path: path.stem,
    )  # fmt: skip
    return folder / "shards/manifest.json"


@pytest.fixture(scope="module")
def train(bags, launcher, tmp_path_factory):
    """Train once for each set of options; return the folder of the segments."""
    done: dict[tuple, Path] = {}

    def run(ranks: int = 1, **options: int) -> Path:
        key = (ranks, *sorted(options.items()))
        if key not in done:
            out = tmp_path_factory.mktemp("run")
            words = [word for name, value in options.items() for word in (f"--{name}", value)]
            ended = launcher.run(
                ranks, PROGRAM, "--manifest", bags, "--out", out, "--ranks", ranks, *words
            )
            assert ended.returncode == 0, ended.stdout + ended.stderr
            done[key] = out / "segments"
        return done[key]

    return run


def assert_equal_to_rounding(segments: Path, others: Path) -> None:
    for weight, other in zip(weights(segments), weights(others), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(history(segments), history(others), rtol=1e-4, atol=1e-5)


def test_named_losses_and_metrics_are_recorded(train):
    segments = train()
    described = json.loads(last_model(segments).with_suffix(".json").read_text())
    assert described["metrics"] == ["cross_entropy", "box_loss", "accuracy"]
    epochs = np.array(history(segments))
    assert epochs.shape == (3, 5)
    _, loss, entropy, box_loss, accuracy = epochs.T
    np.testing.assert_allclose(loss, entropy + 0.5 * box_loss, rtol=1e-5)
    assert loss[-1] < loss[0] and accuracy[-1] > accuracy[0]


def test_padding_has_no_effect(train):
    assert_equal_to_rounding(train(), train(padding=7))


def test_bags_train_the_same_on_two_ranks(train):
    """Although each rank pads its slice of a batch to another size."""
    assert_equal_to_rounding(train(), train(ranks=2))


def test_two_passes_give_the_gradient_of_one_tape(train):
    assert_equal_to_rounding(train(), train(passes=2))
    assert_equal_to_rounding(train(), train(ranks=2, passes=2))


@pytest.mark.long
def test_batch_normalisation_ignores_the_padding_of_bags(train):
    normalised = train(normalised=1)
    assert_equal_to_rounding(normalised, train(normalised=1, padding=7))
    assert_equal_to_rounding(normalised, train(normalised=1, ranks=2))
