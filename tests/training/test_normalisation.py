"""Batch normalisation uses the global batch; saved models have statistics of their weights."""

import json

import keras
import numpy as np
import tensorflow as tf

from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification.training import TileClassification
from gigatile.training.batches import Batch
from gigatile.training.learner import Learner
from gigatile.training.normalisation import moments_over_ranks
from gigatile.training.ranks import Ranks


def test_two_ranks_compute_the_gradients_of_one(launcher, tmp_path):
    """In double precision; with padding, compared with Keras without padding."""
    done = launcher.run(2, "tests/training/programs/same_gradients.py", tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "differences.json").read_text())
    small, resnet = results["small"], results["resnet50"]
    assert len(small["gradients"]) == 3 and max(small["gradients"]) < 1e-13, results
    assert small["keras"] < 1e-13, results
    assert small["single precision"] < 1e-5, results
    assert len(resnet["gradients"]) == 1 and resnet["gradients"][0] < 1e-10, results
    for network in (small, resnet):
        assert network["variables, in learning rates"] < 1e-2, results
    digests = {path.read_text() for path in tmp_path.glob("rank-*")}
    assert len(digests) == 1, "the ranks must have equal variables, to the bit"


def test_padding_does_not_count():
    random = np.random.default_rng(1)
    images = tf.constant(random.normal(300, 2, (6, 5, 4, 3)).astype(np.float32))
    weights = tf.constant([1.0, 1, 1, 1, 0, 0])
    mean, variance = moments_over_ranks(images, weights, Ranks(0, 1, 1), "moments")
    expected = np.array(images, np.float64)[:4].reshape(-1, 3)
    np.testing.assert_allclose(mean, expected.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(variance, expected.var(axis=0), rtol=1e-4)


class Alone(Ranks):
    """A single rank without MPI."""

    def sum_in_step(self, values):
        return list(values)


def batch(step, total=16):
    random = np.random.default_rng(step)
    images = random.integers(0, 255, (16, 8, 8, 3), np.uint8)
    images[total:] = 255
    weights = (np.arange(16) < total).astype(np.float32)
    return Batch(images, random.integers(0, 2, 16).astype(np.int32), weights, total, 0, 0)


def test_averaged_weights_have_matching_statistics():
    """The mean over the batches, weighted by samples; restored after the block."""
    keras.utils.set_random_seed(1)
    images = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3)(keras.layers.Rescaling(1 / 255)(images))
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    network = keras.Model(images, keras.layers.Dense(2)(keras.layers.GlobalMaxPooling2D()(x)))
    settings = TrainSettings(ranks_per_node=1, learning_rate=0.05)
    learner = Learner(network, TileClassification(TileSettings()), settings, Alone(0, 1, 1))
    for step in range(5):
        training_batch = batch(step)
        requests = np.zeros(3, np.float32)
        inputs = tf.constant(training_batch.inputs)
        learner.step(training_batch, inputs, requests, settings.learning_rate)
    before = network.get_weights()
    batches = [batch(8), batch(9, total=5)]
    with learner.averaged(iter(batches)):
        convolution, norm = network.layers[2:4]
        shown = [convolution(b.inputs[: b.total] / 255).numpy() for b in batches]
        for statistic, by_batch in (
            (norm.moving_mean, [np.mean(values, (0, 1, 2)) for values in shown]),
            (norm.moving_variance, [np.var(values, (0, 1, 2)) for values in shown]),
        ):
            expected = (16 * by_batch[0] + 5 * by_batch[1]) / 21
            np.testing.assert_allclose(np.array(statistic), expected, rtol=1e-3)
            assert np.abs(np.array(statistic) - expected).max() < 1e-3
    for old, new in zip(before, network.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_saved_network_has_keras_layers(tmp_path):
    images = keras.Input((8, 8, 3))
    network = keras.Model(images, keras.layers.BatchNormalization()(images))
    Learner(network, TileClassification(TileSettings()), TrainSettings(), Alone(0, 1, 1))
    network.save(tmp_path / "model.keras")
    (_, norm) = keras.models.load_model(tmp_path / "model.keras").layers
    assert type(norm) is keras.layers.BatchNormalization and "_moments" not in vars(norm)
