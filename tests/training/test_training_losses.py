"""Losses and balanced classes, compared with their definitions."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import ndimage

from gigatile.errors import UserError
from gigatile.settings.patches import PatchSettings
from gigatile.settings.train import TrainSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.settings.whole import load_settings
from gigatile.tasks import TASKS, find_task
from gigatile.tasks.volume_segmentation.boundary import boundary_loss, edges
from gigatile.tasks.volume_segmentation.training import VolumeSegmentation
from gigatile.training.class_balance import class_weights, repetitions
from gigatile.training.losses import LOSSES, ClassificationSums, focused
from gigatile.training.sample_order import Epoch, Sampling

CLASSES = ("a", "b", "c")
LOGITS = np.random.default_rng(4).normal(0, 3, (9, 3)).astype(np.float32)
TARGETS = np.arange(9, dtype=np.int32) % 3
WEIGHTS = np.array([1, 1, 0, 1, 1, 1, 1, 0, 1], np.float32)


def sums(weights=(1, 1, 1), **settings) -> dict[str, float]:
    computed = ClassificationSums(TrainSettings(**settings), weights)(LOGITS, TARGETS, WEIGHTS)
    return {name: float(value) for name, value in computed.items()}


def test_every_classifier_has_the_losses():
    for name in ("tile_classification", "slide_classification"):
        assert find_task(name).losses == tuple(LOSSES)
    without = {name for name in TASKS if not find_task(name).losses}
    assert without == {"instance_segmentation", "slide_outcome", "whole_slide_outcome"}


@pytest.mark.parametrize("smoothing", [0, 0.1, 0.5])
def test_cross_entropy_is_that_of_keras(smoothing):
    stock = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, reduction=None
    )
    expected = (np.array(stock(np.eye(3)[TARGETS], LOGITS)) * WEIGHTS).sum()
    assert sums(label_smoothing=smoothing)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("gamma", [0, 0.5, 2, 5])
def test_focal_loss_is_that_of_keras(gamma):
    stock = keras.losses.CategoricalFocalCrossentropy(
        alpha=1, gamma=gamma, from_logits=True, reduction=None
    )
    expected = (np.array(stock(np.eye(3)[TARGETS], LOGITS)) * WEIGHTS).sum()
    assert sums(loss="focal", focal_gamma=gamma)["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("gamma", [0, 0.5, 1, 2])
def test_gradient_of_a_certain_sample_is_finite(gamma):
    logits = tf.Variable([[200.0, 0.0, 0.0], [0.0, 200.0, 0.0]])
    settings = TrainSettings(loss="focal", focal_gamma=gamma)
    with tf.GradientTape() as tape:
        loss = ClassificationSums(settings)(logits, tf.constant([0, 0]), tf.ones(2))["loss"]
    gradient = tape.gradient(loss, logits).numpy()
    assert np.isfinite(gradient).all() and (gradient[0] == 0).all() and gradient[1, 0] < 0


def test_class_weights_count_in_the_loss_only():
    plain, weighted = sums(), sums((1, 10, 0))
    stock = tf.nn.sparse_softmax_cross_entropy_with_logits(TARGETS, LOGITS).numpy()
    expected = (stock * WEIGHTS * np.array([1, 10, 0])[TARGETS]).sum()
    assert weighted["loss"] == pytest.approx(expected, rel=1e-5)
    assert weighted["accuracy"] == plain["accuracy"]


def test_weights_of_a_balanced_loss_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    counts = np.array([50, 7, 900])
    labels = np.repeat([0, 1, 2], counts)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    shown = class_weights(TrainSettings(balance="loss"), CLASSES, counts)
    np.testing.assert_allclose(shown, expected)
    # A class of the cohort without training samples changes nothing.
    absent = class_weights(TrainSettings(balance="loss"), (*CLASSES, "d"), np.append(counts, 0))
    np.testing.assert_allclose(absent, [*expected, 1])
    assert class_weights(TrainSettings(class_weights={"b": 3}), CLASSES, counts) == [1, 3, 1]


def test_weights_of_zero_for_all_samples_are_refused():
    settings = TrainSettings(class_weights={"a": 0, "b": 0})
    assert class_weights(settings, CLASSES, np.array([1, 1, 1])) == [0, 0, 1]
    with pytest.raises(UserError, match="class_weights: all samples have a weight of 0"):
        class_weights(settings, CLASSES, np.array([5, 5, 0]))


@pytest.mark.parametrize("key", ["boost", "class_weights"])
def test_unknown_label_is_named(key):
    with pytest.raises(UserError, match=rf"train\.{key}: no such label: d; the cohort has a, b, c"):
        repetitions(TrainSettings(**{key: {"d": 2}}), CLASSES, np.array([1, 2, 3]))


@pytest.mark.parametrize("counts", [(50, 7, 900), (1, 1, 5000), (0, 30, 10)])
def test_a_balanced_epoch_shows_all_classes_equally_often(counts):
    random = np.random.default_rng(5)
    shards = (
        random.multinomial(counts[0], [0.25] * 4),
        *(random.multinomial(count, [0.1, 0.2, 0.3, 0.4]) for count in counts[1:]),
    )
    by_shard = np.stack(shards, axis=1)
    classes = [np.repeat(np.arange(3), row) for row in by_shard]
    boost = repetitions(TrainSettings(balance="epoch"), CLASSES, by_shard.sum(axis=0))
    sampling = Sampling(counts=by_shard, seed=1, window=4, boost=boost)
    of_record = np.concatenate(classes)
    shown = np.zeros(len(of_record), int)
    for number in range(20):
        epoch = Epoch(sampling, number, classes.__getitem__)
        np.add.at(shown, epoch.samples(0, len(epoch)).records, 1)
    by_class = np.array([shown[of_record == number].sum() for number in range(3)]) / 20
    expected = sum(counts) / np.count_nonzero(counts)
    present = np.array(counts) > 0
    # Shares are fractions of at most 1,000, and each shard rounds them.
    np.testing.assert_allclose(by_class[present], expected, rtol=0.01, atol=2)
    # Within a class, each sample is shown as often as any other, give or take one.
    for number in np.flatnonzero(present):
        own = shown[of_record == number]
        assert own.max() - own.min() <= 1


def volume_loss(gamma: float | None, targets: str, loss: str | None = None) -> float:
    volumes = VolumeSettings(labels={"edema": 1, "core": 2}, regions={"whole": ["edema", "core"]})
    task = VolumeSegmentation(volumes, PatchSettings(targets=targets))
    settings = TrainSettings(model="small_unet", loss=loss)
    if gamma is not None:
        settings = settings.model_copy(update={"loss": "dice_focal", "focal_gamma": gamma})
    task.configure(None, settings)
    outputs = 1 if targets == "regions" else 3
    random = np.random.default_rng(6)
    logits = random.normal(0, 2, (2, 8, 8, 8, outputs)).astype(np.float32)
    labels = random.integers(0, 3, (2, 8, 8, 8)).astype(np.uint8)
    return float(task.sums(logits, labels, np.ones(2, np.float32))["loss"])


@pytest.mark.parametrize("targets", ["regions", "labels"])
def test_dice_focal_differs_from_dice_by_the_focal_factor(targets):
    plain = volume_loss(None, targets)
    assert volume_loss(0, targets) == pytest.approx(plain, rel=1e-6)
    focal = volume_loss(2, targets)
    assert 0 < focal < plain


def test_focal_factor_of_voxels():
    scores = np.array([0.1, 0.5, 0.999])
    expected = (1 - scores) ** 2 * -np.log(scores)
    np.testing.assert_allclose(focused(tf.constant(-np.log(scores)), 2.0), expected, rtol=1e-6)


# --- The boundary loss


def random_targets(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and a reference: a ball, thin layers, scattered voxels, everything, nothing."""
    random = np.random.default_rng(seed)
    shape = (12, 10, 14)
    grid = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"))
    centre = random.uniform(3, 9, 3)[:, None, None, None]
    reference = np.stack(
        [
            ((grid - centre) ** 2).sum(axis=0) < 25,
            grid[seed % 3] % 4 == 0,
            random.random(shape) < 0.2,
            np.ones(shape),
            np.zeros(shape),
        ],
        axis=-1,
    )
    return random.random((2, *shape, 5)), np.stack([reference, reference[::-1]]).astype(float)


def defined_edges(reference: np.ndarray) -> np.ndarray:
    """Return the voxels of a mask (x, y, z) that erosion by a voxel takes away."""
    return reference - ndimage.binary_erosion(reference, border_value=1)


@pytest.mark.parametrize("seed", range(3))
def test_boundary_loss_is_that_of_its_definition(seed):
    scores, reference = random_targets(seed)
    expected = []
    for patch, truth in zip(scores, reference, strict=True):
        losses = []
        for number in range(truth.shape[-1]):
            p, g = patch[..., number], truth[..., number]
            edge = defined_edges(g)
            np.testing.assert_array_equal(edges(truth[None])[0, ..., number], edge)
            alpha = np.clip(1 - 2 * edge.sum() / g.sum(), 0, 0.8) if g.any() else 0
            both = (p * g).sum()
            total = (p * p).sum() + (g * g).sum()
            losses.append((total - 2 * both + 1) / (total - (1 + alpha) * both + 1))
        expected.append(np.mean(losses))
    np.testing.assert_allclose(boundary_loss(scores, reference, 1.0), expected, rtol=1e-12)


def test_boundary_loss_of_equal_and_of_disjoint_segmentations():
    reference = np.zeros((1, 16, 16, 16, 1), np.float32)
    reference[0, 2:10, 2:10, 2:10] = 1
    equal = float(boundary_loss(reference, reference, 1e-5)[0])
    disjoint = float(boundary_loss(1 - reference, reference, 1e-5)[0])
    assert equal < 1e-4 and disjoint == pytest.approx(1)


def test_volumes_may_minimise_the_boundary_loss():
    settings = load_settings(
        {
            **{"run": "r", "samples": "cases.tsv", "task": "volume_segmentation"},
            "volumes": {"labels": "decathlon"},
            "train": {"loss": "boundary_cross_entropy"},
        }
    )
    assert settings.train.loss == "boundary_cross_entropy"
    for targets in ("regions", "labels"):
        losses = [volume_loss(None, targets), volume_loss(None, targets, "boundary_cross_entropy")]
        assert losses[0] != losses[1] and np.isfinite(losses).all()
