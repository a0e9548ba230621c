"""A batch in parts gives the step of the whole batch; the average of the weights can be off."""

import numpy as np
import pytest
import tensorflow as tf

from gigatile.models.classifier import build_classifier
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification.training import TileClassification
from gigatile.training.batches import Batch
from gigatile.training.learner import Learner, Step
from gigatile.training.ranks import Ranks


class Alone(Ranks):
    """A single rank without MPI."""

    def sum_in_step(self, values):
        return list(values)


def batch(step: int, total: int) -> Batch:
    """Return 16 tiles, of which the last are padding."""
    random = np.random.default_rng(step)
    tiles = random.integers(0, 255, (16, 32, 32, 3), np.uint8)
    weights = (np.arange(16) < total).astype(np.float32)
    return Batch(tiles, random.integers(0, 3, 16).astype(np.int32), weights, total, 0, 0)


def trained(**changes) -> tuple[list[np.ndarray], list[Step], Learner]:
    """Return weights and results of three steps; the last batch has padding."""
    settings = TrainSettings(ranks_per_node=1, batch_size=16, optimizer="sgd", **changes)
    network = build_classifier(settings, 32, 3).trained
    task = TileClassification(TileSettings())
    learner = Learner(network, task, settings, Alone(0, 1, 1))
    steps = []
    for number, total in enumerate((16, 16, 5)):
        tiles = batch(number, total)
        requests = np.full(3, number, np.float32)
        steps.append(learner.step(tiles, tf.constant(tiles.inputs), requests, 0.01))
    return network.get_weights(), steps, learner


@pytest.mark.parametrize("parts", [2, 4, 16])
def test_a_batch_in_parts_gives_the_step_of_the_whole(parts):
    whole, whole_steps, _ = trained()
    weights, steps, _ = trained(accumulate=parts)
    for value, expected in zip(weights, whole, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=2e-6)
    for step, expected in zip(steps, whole_steps, strict=True):
        np.testing.assert_allclose(step.sums, expected.sums, rtol=1e-4)
        np.testing.assert_array_equal(step.agreed, expected.agreed)
        np.testing.assert_allclose(step.gradient_norm, expected.gradient_norm, rtol=1e-4)


def test_only_a_part_is_in_the_graph():
    """The memory of the activations is that of a part."""
    *_, learner = trained(accumulate=4)
    graph = learner._gradients_graph.get_concrete_function(
        tf.TensorSpec((4, 32, 32, 3), tf.uint8),
        tf.TensorSpec((4,), tf.int32),
        tf.TensorSpec((4,), tf.float32),
        tf.TensorSpec((), tf.float32),
    )
    assert learner._gradients_graph.experimental_get_tracing_count() == 1
    assert graph.inputs[0].shape[0] == 4


def test_the_backbone_of_a_classifier_is_all_but_its_head():
    settings = TrainSettings(ranks_per_node=1, batch_size=16, freeze_epochs=1)
    networks = build_classifier(settings, 32, 3)
    learner = Learner(
        *(networks.trained, TileClassification(TileSettings()), settings, Alone(0, 1, 1)),
        networks.backbone,
    )
    before = networks.trained.get_weights()
    tiles = batch(0, 16)
    learner.step(tiles, tf.constant(tiles.inputs), np.zeros(3, np.float32), 0.01, 0)
    changed = [(a != b).any() for a, b in zip(before, networks.trained.get_weights(), strict=True)]
    assert changed == [False] * (len(changed) - 2) + [True, True]


def test_without_an_average_the_weights_of_the_last_step_are_saved():
    averaged, _, learner = trained()
    with learner.averaged(iter([])):
        inside = learner._network.get_weights()
    assert any((a != b).any() for a, b in zip(inside, averaged, strict=True))
    last, _, learner = trained(average=False)
    with learner.averaged(iter([])):
        for value, expected in zip(learner._network.get_weights(), last, strict=True):
            np.testing.assert_array_equal(value, expected)
    for value, expected in zip(last, averaged, strict=True):
        np.testing.assert_array_equal(value, expected)
