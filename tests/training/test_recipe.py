"""Learning-rate schedules, weight decay and clipping, compared with their definitions."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from gigatile.settings.train import TrainSettings
from gigatile.training.optimizers import Optimizer
from gigatile.training.schedules import backbone_factor, learning_rate


def rates(epochs=12, steps=10, **settings):
    train = TrainSettings(learning_rate=0.02, epochs=epochs, **settings)
    return np.array([learning_rate(train, done / steps, done) for done in range(epochs * steps)])


def test_constant_rate_scales_with_the_batch():
    np.testing.assert_array_equal(rates(), 0.02)
    np.testing.assert_allclose(rates(batch_size=64, reference_batch=16), 0.08)


def test_steps_with_warm_up_are_those_of_detectron2():
    """WarmupMultiStepLR with linear warm-up, https://github.com/facebookresearch/detectron2."""
    shown = rates(schedule="steps", decay_epochs=(8, 11), warmup_steps=20)
    share = np.minimum(np.arange(120) / 20, 1)
    expected = 0.02 * (0.001 * (1 - share) + share)
    expected[80:] *= 0.1
    expected[110:] *= 0.1
    np.testing.assert_allclose(shown, expected, rtol=1e-12)


def test_cosine_is_that_of_keras():
    expected = keras.optimizers.schedules.CosineDecay(0.02, decay_steps=120)
    values = [float(expected(step)) for step in range(120)]
    np.testing.assert_allclose(rates(schedule="cosine"), values, rtol=1e-4, atol=1e-8)
    # The end is a separate setting: the first epochs have the rates of the whole training.
    np.testing.assert_array_equal(
        rates(4, schedule="cosine", decay_epochs=[12]), rates(12, schedule="cosine")[:40]
    )


@pytest.mark.parametrize("power", [0.9, 1.0, 2.0])
def test_polynomial_is_that_of_keras(power):
    expected = keras.optimizers.schedules.PolynomialDecay(0.02, 120, 0.0, power)
    values = [float(expected(step)) for step in range(120)]
    shown = rates(schedule="polynomial", decay_power=power)
    np.testing.assert_allclose(shown, values, rtol=1e-4, atol=1e-8)


def updated(gradients, **settings):
    """Return the weights after steps with these gradients, starting from 1 to 6 and 7 and 8."""
    kernel = keras.Variable(np.arange(1, 7, dtype=np.float32).reshape(3, 2), name="kernel")
    bias = keras.Variable(np.array([7, 8], np.float32), name="bias")
    optimizer = Optimizer(TrainSettings(**settings), [kernel, bias])
    for step, (first, second) in enumerate(gradients):
        optimizer.set_learning_rate(0.1 / (1 + step))
        optimizer.apply([tf.constant(first, tf.float32), tf.constant(second, tf.float32)])
    return kernel.numpy(), bias.numpy()


@pytest.fixture
def gradients():
    random = np.random.default_rng(3)
    return [(random.normal(0, 9, (3, 2)), random.normal(0, 9, 2)) for _ in range(4)]


def clipped(gradients, limit):
    for pair in gradients:
        norm = np.sqrt(sum((part**2).sum() for part in pair))
        yield [part * min(1, limit / norm) for part in pair]


def test_sgd_decays_and_clips(gradients):
    """L2 is added after clipping, and goes through the momentum, as in PyTorch."""
    options = {"momentum": 0.8, "weight_decay": 0.01, "clip_norm": 2.0}
    kernel, bias = updated(gradients, optimizer="sgd", **options)
    expected = [np.arange(1.0, 7).reshape(3, 2), np.array([7.0, 8])]
    velocity = [0.0, 0.0]
    for step, pair in enumerate(clipped(gradients, 2.0)):
        for index, gradient in enumerate(pair):
            decayed = gradient + 0.01 * expected[index] * (index == 0)
            velocity[index] = 0.8 * velocity[index] - 0.1 / (1 + step) * decayed
            expected[index] = expected[index] + velocity[index]
    np.testing.assert_allclose(kernel, expected[0], rtol=1e-5)
    np.testing.assert_allclose(bias, expected[1], rtol=1e-5)


def test_adam_decays_and_clips(gradients):
    """Decoupled: the weights shrink by rate x decay, independently of the gradient."""
    kernel, bias = updated(gradients, weight_decay=0.05, clip_norm=2.0)
    expected = [np.arange(1.0, 7).reshape(3, 2), np.array([7.0, 8])]
    moments = [[0.0, 0.0], [0.0, 0.0]]
    for step, pair in enumerate(clipped(gradients, 2.0), 1):
        rate = 0.1 / step
        for index, gradient in enumerate(pair):
            first, second = moments[index]
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            moments[index] = [first, second]
            expected[index] = expected[index] * (1 - rate * 0.05 * (index == 0))
            size = rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            expected[index] = expected[index] - size * first / (np.sqrt(second) + 1e-7)
    np.testing.assert_allclose(kernel, expected[0], rtol=1e-4)
    np.testing.assert_allclose(bias, expected[1], rtol=1e-4)


def test_nesterov_looks_ahead(gradients):
    """PyTorch's formula: the step follows the gradient and the momentum after it."""
    kernel, bias = updated(gradients, optimizer="sgd", momentum=0.8, nesterov=True)
    expected = [np.arange(1.0, 7).reshape(3, 2), np.array([7.0, 8])]
    velocity = [0.0, 0.0]
    for step, pair in enumerate(gradients):
        rate = 0.1 / (1 + step)
        for index, gradient in enumerate(pair):
            velocity[index] = 0.8 * velocity[index] - rate * gradient
            expected[index] = expected[index] + 0.8 * velocity[index] - rate * gradient
    np.testing.assert_allclose(kernel, expected[0], rtol=1e-5)
    np.testing.assert_allclose(bias, expected[1], rtol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_lamb_scales_the_update_of_a_kernel_with_its_norm(gradients, decay):
    """Algorithm 2 of You et al. 2020; biases are updated as by Adam."""
    kernel, bias = updated(gradients, optimizer="lamb", weight_decay=decay)
    expected = [np.arange(1.0, 7).reshape(3, 2), np.array([7.0, 8])]
    moments = [[0.0, 0.0], [0.0, 0.0]]
    for step, pair in enumerate(gradients, 1):
        for index, gradient in enumerate(pair):
            first, second = moments[index]
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            moments[index] = [first, second]
            update = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-6)
            if index == 0:
                update = update + decay * expected[0]
                update = update * np.linalg.norm(expected[0]) / np.linalg.norm(update)
            expected[index] = expected[index] - 0.1 / step * update
    np.testing.assert_allclose(kernel, expected[0], rtol=1e-4)
    np.testing.assert_allclose(bias, expected[1], rtol=1e-4)


def test_lamb_moves_weights_of_zero():
    kernel = keras.Variable(np.zeros((3, 2), np.float32))
    optimizer = Optimizer(TrainSettings(optimizer="lamb"), [kernel])
    optimizer.set_learning_rate(0.1)
    optimizer.apply([tf.ones((3, 2))])
    np.testing.assert_allclose(kernel.numpy(), -0.1, rtol=1e-4)


@pytest.mark.parametrize("scale", [1, 2.0**15])
def test_norm_is_that_before_clipping(gradients, scale):
    weights = [keras.Variable(np.zeros_like(part, np.float32)) for part in gradients[0]]
    settings = TrainSettings(clip_norm=0.5, mixed_precision="off" if scale == 1 else "float16")
    norm = Optimizer(settings, weights).apply(
        [tf.constant(part * scale, tf.float32) for part in gradients[0]]
    )
    expected = np.sqrt(sum((part**2).sum() for part in gradients[0]))
    np.testing.assert_allclose(norm, expected, rtol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lamb"])
def test_a_frozen_backbone_stays_and_a_slow_one_moves_less(gradients, optimizer):
    """Its moments are those of a backbone that is trained."""
    start = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    moved = {}
    for name, factors in {"whole": (1, 1), "frozen": (0, 0), "slow": (0.1, 0.1)}.items():
        kernel, head = keras.Variable(start, name="kernel"), keras.Variable(start, name="head")
        settings = TrainSettings(optimizer=optimizer, freeze_epochs=1, weight_decay=0.01)
        updates = Optimizer(settings, [kernel, head], {kernel.path})
        for factor, (gradient, _) in zip(factors, gradients[:2], strict=True):
            updates.set_learning_rate(0.01, factor)
            updates.apply([tf.constant(gradient, tf.float32)] * 2)
            moved.setdefault(name, []).append(kernel.numpy() - start)
        moved[f"head, {name}"] = head.numpy()
    np.testing.assert_array_equal(moved["frozen"], 0)
    np.testing.assert_allclose(moved["slow"][0], 0.1 * moved["whole"][0], rtol=1e-3, atol=1e-6)
    for name in ("frozen", "slow"):
        np.testing.assert_array_equal(moved[f"head, {name}"], moved["head, whole"])


def test_a_frozen_backbone_does_not_count_for_clipping():
    kernel, head = keras.Variable(np.zeros((2, 2))), keras.Variable(np.zeros((2, 2)))
    settings = TrainSettings(optimizer="sgd", momentum=0, freeze_epochs=1, clip_norm=1.0)
    updates = Optimizer(settings, [kernel, head], {kernel.path})
    updates.set_learning_rate(1, 0)
    norm = updates.apply([tf.fill((2, 2), 100.0), tf.fill((2, 2), 0.25)])
    assert float(norm) == pytest.approx(0.5)
    np.testing.assert_allclose(head.numpy(), -0.25)


def test_factor_of_the_backbone():
    settings = TrainSettings(freeze_epochs=2, backbone_rate=0.1)
    assert [backbone_factor(settings, epoch) for epoch in range(4)] == [0, 0, 0.1, 0.1]
    assert backbone_factor(TrainSettings(), 0) == 1


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "lamb"])
def test_loss_scale_changes_nothing(gradients, optimizer):
    """Gradients of mixed precision are multiplied by the loss scale until they are applied."""
    settings = {"optimizer": optimizer, "weight_decay": 0.01, "clip_norm": 2.0}
    plain = updated(gradients, **settings)
    scaled = [tuple(part * 2.0**15 for part in pair) for pair in gradients]
    mixed = updated(scaled, mixed_precision=True, **settings)
    for values, expected in zip(mixed, plain, strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-5)


def test_step_with_infinite_gradient_is_skipped(gradients):
    first, second = gradients[0]
    infinite = [(np.full_like(first, np.inf), second)]
    kernel, bias = updated(
        infinite, optimizer="sgd", weight_decay=0.01, clip_norm=2.0, mixed_precision=True
    )
    np.testing.assert_array_equal(kernel, np.arange(1.0, 7).reshape(3, 2))
    np.testing.assert_array_equal(bias, [7, 8])


def test_gradient_of_zero_is_not_clipped():
    zeros = [(np.zeros((3, 2)), np.zeros(2))]
    kernel, _ = updated(zeros, clip_norm=1.0)
    np.testing.assert_array_equal(kernel, np.arange(1.0, 7).reshape(3, 2))
