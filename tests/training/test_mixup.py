"""Mixup, compared with its definition; the same for any division of a batch."""

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from sample_pairs import cells
from trained import weights

from gigatile.errors import UserError
from gigatile.models.classifier import build_classifier
from gigatile.settings.augmentation import AugmentationSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.settings.whole import load_settings
from gigatile.tasks.tile_classification.training import TileClassification
from gigatile.training.batches import batches
from gigatile.training.mixup import mix, shares_of
from gigatile.training.sample_order import Epoch
from gigatile.training.sample_sheet import draw_samples

MIXUP = AugmentationSettings(mixup=0.4)


def test_shares_have_a_beta_distribution():
    for alpha in (0.2, 1, 3):
        shares = shares_of(np.arange(5000, dtype=np.uint64), alpha)
        assert shares.dtype == np.float32
        assert scipy.stats.kstest(shares, scipy.stats.beta(alpha, alpha).cdf).pvalue > 0.01


@pytest.fixture
def batch():
    random = np.random.default_rng(5)
    images = random.integers(0, 256, (6, 4, 4, 3), np.uint8)
    targets = {
        "labels": tf.constant([0, 1, 2, 0, 1, 2], tf.int32),
        "shares": tf.constant([0.9, 0.2, 0.5, 1.0, 0.3, 0.6]),
    }
    return images, targets


def test_neighbours_are_mixed_but_not_with_padding(batch):
    images, targets = batch
    mixed, labels = mix(tf.constant(images), targets, tf.constant([1.0, 1, 1, 1, 1, 0]))
    shares = np.array([0.9, 0.2, 0.5, 1, 1, 0.6])  # the fifth has padding as its neighbour
    swapped = images[[1, 0, 3, 2, 5, 4]].astype(float)
    expected = (shares * images.T.astype(float) + (1 - shares) * swapped.T).T
    np.testing.assert_allclose(mixed, expected, atol=1e-3)
    np.testing.assert_array_equal(labels.others, [1, 0, 0, 2, 2, 1])
    np.testing.assert_allclose(labels.shares, shares)


def test_loss_is_that_of_mixed_labels(batch):
    """Keras' cross-entropy of the mixed one-hot labels is the reference."""
    images, targets = batch
    task = TileClassification(TileSettings(), MIXUP)
    counts = np.array([1, 1, 1, 1, 1, 0], np.float32)
    _, labels = mix(tf.constant(images), targets, tf.constant(counts))
    logits = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    sums = task.sums(tf.constant(logits), labels, tf.constant(counts))
    hot = np.eye(3)
    shares = np.asarray(labels.shares)[:, None]
    soft = shares * hot[np.asarray(labels.labels)] + (1 - shares) * hot[np.asarray(labels.others)]
    losses = keras.losses.categorical_crossentropy(soft, logits, from_logits=True)
    np.testing.assert_allclose(sums["loss"], (np.asarray(losses) * counts).sum(), rtol=1e-5)
    correct = soft[np.arange(6), logits.argmax(axis=1)]
    np.testing.assert_allclose(sums["accuracy"], (correct * counts).sum(), rtol=1e-5)


def test_training_uses_the_mixed_tiles(manifest):
    task = TileClassification(TileSettings(), MIXUP)
    reader = task.reader(manifest, "train")
    epoch = Epoch(task.sampling(reader, TrainSettings()), 0, reader.classes_of)
    samples = epoch.samples(0, 20)
    (first, *_) = batches(task.source(reader), epoch, 20, 0, 1, 2)
    np.testing.assert_array_equal(first.targets["shares"], shares_of(samples.seeds, 0.4))
    networks = build_classifier(TrainSettings(), 32, 3)
    targets = {name: tf.constant(values) for name, values in first.targets.items()}
    given = tf.constant(first.inputs), targets, tf.constant(first.weights)
    sums, _ = task.gradients(networks.trained, *given, lambda loss: loss)
    mixed, labels = mix(*given)
    expected = task.sums(networks.trained(mixed, training=True), labels, given[2])
    np.testing.assert_allclose(sums["loss"], expected["loss"], rtol=1e-5)
    assert task.source(reader, augmented=False).specs(samples)[1].shape == ()


@pytest.mark.long
def test_ranks_and_parts_give_the_same_model(launcher, manifest, tmp_path):
    recipe = {"epochs": 2, "batch_size": 24, "augmentation": MIXUP.model_dump()}
    layouts = {
        "two": {"ranks": 2},
        "parts": {"ranks": 1, "accumulate": 3},
    }
    for name, layout in layouts.items():
        launcher.train(manifest, tmp_path / name, **recipe | layout)
    two, parts = (weights(tmp_path / name / "segments") for name in layouts)
    for value, expected in zip(parts, two, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-5)


def test_the_picture_of_samples_shows_mixed_tiles(manifest):
    settings = TrainSettings(views=("identity",))
    task = TileClassification(TileSettings(), MIXUP)
    pairs = cells(draw_samples(task, manifest, settings, 75, 0), 32)[:75]
    reader = task.reader(manifest, "train")
    order = Epoch(task.sampling(reader, settings), 0, reader.classes_of)
    shares = shares_of(order.samples(0, 75).seeds, 0.4)
    for number, (stored, shown) in enumerate(pairs):
        neighbour = pairs[number ^ 1][0] if number < 74 else stored
        mixed = shares[number] * stored.astype(float) + (1 - shares[number]) * neighbour
        np.testing.assert_allclose(shown, mixed, atol=0.51)


def test_batches_are_pairs():
    def check(batch_size, **train):
        train |= {"batch_size": batch_size, "ranks_per_node": 2}
        load_settings({"run": "mine", "augmentation": {"mixup": 0.2}, "train": train})

    check(8, accumulate=2)
    with pytest.raises(UserError) as refused:
        check(12, accumulate=2)
    assert (
        "augmentation.mixup mixes the tiles of a rank in pairs: train.batch_size (12) must be a "
        "multiple of 2 x ranks x accumulate (2 x 2 x 2 = 8)" in str(refused.value)
    )
