"""RoIAlign, compared with detectron2's code written as loops."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_detection import level_of, roi_align_gradient
from plain_detection import roi_align as plain

from gigatile.instances.roi_align import roi_align, roi_levels

SHAPES = [(24, 28), (12, 14), (6, 7), (3, 4)]  # levels 2 to 5 of an image of 96 x 112 pixels


def pyramid(images: int = 2, channels: int = 3, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=(images, *shape, channels)) for shape in SHAPES]


def random_boxes(random: np.random.Generator, images: int, count: int) -> np.ndarray:
    """Return boxes of all levels: in the image, across its border, outside, and empty."""
    sides = np.exp(random.uniform(np.log(0.5), np.log(900), (images, count, 2)))
    centres = random.uniform(-60, 170, (images, count, 2))
    boxes = np.concatenate([centres - sides / 2, centres + sides / 2], axis=-1)
    boxes[:, ::5, 2] = boxes[:, ::5, 0]
    boxes[:, 1::7] = 0
    return boxes


def constants(levels: list[np.ndarray]) -> list[tf.Tensor]:
    return [tf.constant(level) for level in levels]


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 4), st.integers(2, 4))
@example(5, 1, 7, 2)
def test_values_are_those_of_detectron2(seed, images, size, lowest):
    random, levels = np.random.default_rng(seed), pyramid(images, 2, seed)
    levels = levels[lowest - 2 :]
    boxes = random_boxes(random, images, 7)
    # The choice of a level is in single precision: keep away from its limits.
    clear = [level_of(box * (1 + 1e-5)) == level_of(box) for box in boxes.reshape(-1, 4)]
    boxes = np.where(np.reshape(clear, (images, 7, 1)), boxes, 3.0)
    ours = roi_align(constants(levels), tf.constant(boxes), size, lowest).numpy()
    assert ours.shape == (images, 7, size, size, 2)
    for image in range(images):
        maps = [level[image] for level in levels]
        for box, values in zip(boxes[image], ours[image], strict=True):
            np.testing.assert_allclose(values, plain(maps, box, size, lowest), atol=1e-9)


def test_all_levels_are_used():
    boxes = random_boxes(np.random.default_rng(1), 2, 300)
    used = np.unique(roi_levels(tf.constant(boxes), 2, 5))
    np.testing.assert_array_equal(used, [2, 3, 4, 5])


def test_levels_change_at_powers_of_the_canonical_size():
    """A box of 224 x 224 pixels belongs to level 4: equation 1 of Lin et al. 2017."""
    sides = [(28, 28), (111, 112), (112, 112), (223, 224), (224, 224), (112, 448), (447, 448)]
    sides += [(448, 448), (5000, 5000), (0, 30), (-5, -5)]
    boxes = [[7, 9, 7 + height, 9 + width] for height, width in sides]
    levels = roi_levels(tf.constant(boxes, tf.float32), 2, 5).numpy().tolist()
    assert levels == [2, 2, 3, 3, 4, 4, 4, 5, 5, 2, 2]
    assert roi_levels(tf.constant(boxes, tf.float32), 3, 4).numpy().tolist()[:2] == [3, 3]
    assert [level_of(box) for box in boxes[:8]] == [1, 2, 3, 3, 4, 4, 4, 5]


def test_no_boxes():
    pooled = roi_align(constants(pyramid()), tf.zeros((2, 0, 4), tf.float64), 7)
    assert pooled.shape == (2, 0, 7, 7, 3)


def test_ramp_is_pooled_exactly():
    """On a linear image, each value is that of the image in the centre of the bin."""
    size, stride = 5, 4
    y, x = ((np.arange(count) + 0.5) * stride for count in SHAPES[0])
    ramp = (3 * y[:, None] + x[None] + 7)[None, ..., None]
    maps = [ramp, *(np.full((1, *shape, 1), np.nan) for shape in SHAPES[1:])]
    boxes = np.array([[[10.0, 12, 60, 47], [13.3, 30.9, 14.1, 77.7], [20, 20, 20.5, 20.5]]])
    pooled = roi_align(constants(maps), tf.constant(boxes), size).numpy()
    for box, values in zip(boxes[0], pooled[0, ..., 0], strict=True):
        bins = (np.arange(size) + 0.5) / size
        down = box[0] + bins * (box[2] - box[0])
        across = box[1] + bins * (box[3] - box[1])
        np.testing.assert_allclose(values, 3 * down[:, None] + across[None] + 7, rtol=1e-12)


def test_crop_and_resize_is_different():
    """It takes a sample at each corner, and has no half-pixel centres: a known trap."""
    size, stride = 5, 4
    y, x = ((np.arange(count) + 0.5) * stride for count in SHAPES[0])
    ramp = (3 * y[:, None] + x[None])[None, ..., None]
    box = np.array([10.0, 12, 60, 47])
    limits = np.array([24, 28, 24, 28]) * stride
    cropped = tf.image.crop_and_resize(ramp, [box / limits], [0], (size, size)).numpy()[0, ..., 0]
    bins = (np.arange(size) + 0.5) / size
    exact = 3 * (box[0] + bins * 50)[:, None] + (box[1] + bins * 35)[None]
    maps = [ramp, *(np.zeros((1, *shape, 1)) for shape in SHAPES[1:])]
    ours = roi_align(constants(maps), tf.constant(box[None, None]), size).numpy()[0, 0, ..., 0]
    np.testing.assert_allclose(ours, exact, rtol=1e-12)
    # A pixel is worth 3 (rows) or 1 (columns): off by several, in the middle of the box, too.
    assert abs(cropped - exact).max() > 10 and abs(cropped[2, 2] - exact[2, 2]) > 2
    # The recipe of tensorpack with the same function is exact: sample, then average.
    step = np.array([50, 35]) / (2 * size)
    first = (box[:2] + step / 2) / stride - 0.5
    last = (box[2:] - step / 2) / stride - 0.5
    recipe = np.concatenate([first, last]) / np.tile(np.array(SHAPES[0]) - 1, 2)
    samples = tf.image.crop_and_resize(ramp, [recipe], [0], (2 * size, 2 * size))
    averaged = tf.nn.avg_pool2d(samples, 2, 2, "VALID").numpy()[0, ..., 0]
    np.testing.assert_allclose(ours, averaged, rtol=1e-4)


def gradients(levels: list[np.ndarray], boxes: np.ndarray, upstream: np.ndarray):
    maps = constants(levels)
    with tf.GradientTape() as tape:
        tape.watch(maps)
        pooled = roi_align(maps, tf.constant(boxes), upstream.shape[2])
        total = tf.reduce_sum(pooled * upstream)
    parts = tape.gradient(total, maps, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(part).numpy() for part in parts]


@pytest.mark.parametrize("seed", range(3))
def test_gradient_equals_a_scatter(seed):
    random, levels = np.random.default_rng(seed), pyramid(2, 2, seed)
    boxes = random_boxes(random, 2, 9)
    upstream = random.normal(size=(2, 9, 3, 3, 2))
    ours = gradients(levels, boxes, upstream)
    for image in range(2):
        expected = [np.zeros(level.shape[1:]) for level in levels]
        for box, values in zip(boxes[image], upstream[image], strict=True):
            maps = [level[image] for level in levels]
            for total, part in zip(expected, roi_align_gradient(maps, box, values), strict=True):
                total += part
        for gradient, other in zip(ours, expected, strict=True):
            np.testing.assert_allclose(gradient[image], other, rtol=0, atol=1e-9)


def test_gradient_equals_finite_differences():
    random, levels = np.random.default_rng(8), pyramid(2, 1, 8)
    boxes = random_boxes(random, 2, 9)
    boxes[0, 0] = [3, 5, 90, 100]
    upstream = random.normal(size=(2, 9, 3, 3, 1))
    ours = gradients(levels, boxes, upstream)

    def total() -> float:
        return float((roi_align(constants(levels), tf.constant(boxes), 3) * upstream).numpy().sum())

    for level, gradient in zip(levels, ours, strict=True):
        (seen,) = np.nonzero(gradient.ravel())
        chosen = [*random.choice(seen, min(len(seen), 10), replace=False), random.integers(10)]
        for index in chosen:
            before = level.flat[index]
            level.flat[index] = before + 0.5
            above = total()
            level.flat[index] = before - 0.5
            below = total()
            level.flat[index] = before
            # Pooling is linear, so any step is exact.
            np.testing.assert_allclose(gradient.flat[index], above - below, atol=1e-9)


def test_boxes_have_no_gradient():
    maps, boxes = constants(pyramid()), tf.constant([[[3.0, 5, 40, 60]]] * 2, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(boxes)
        total = tf.reduce_sum(roi_align(maps, boxes, 3))
    assert tape.gradient(total, boxes) is None


def test_half_precision_features_give_half_precision():
    """The positions stay in the precision of the boxes."""
    levels, boxes = pyramid(), random_boxes(np.random.default_rng(2), 2, 12)
    halves = [tf.constant(level, tf.float16) for level in levels]
    pooled = roi_align(halves, tf.constant(boxes, tf.float32), 4)
    assert pooled.dtype == tf.float16
    expected = roi_align([tf.cast(level, tf.float64) for level in halves], tf.constant(boxes), 4)
    # The rounding of the result, not that of a sum of 16 terms in half precision.
    np.testing.assert_allclose(pooled, expected, rtol=2**-10, atol=1e-4)


def test_gradient_of_many_boxes_at_a_place_is_not_summed_in_half_precision():
    """In half precision, the sum over the 512 boxes of an image was wrong by a third."""
    random = np.random.default_rng(0)
    corners = random.uniform(10, 14, (1, 512, 2))
    boxes = np.concatenate([corners, corners + random.uniform(20, 28, (1, 512, 2))], axis=2)
    upstream = random.uniform(0.5, 1, (1, 512, 7, 7, 2))
    level = random.normal(size=(1, 16, 16, 2))
    (expected,) = gradients([level], boxes, upstream)
    half = tf.constant(level, tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(half)
        pooled = roi_align([half], tf.constant(boxes, tf.float32), 7)
        total = tf.reduce_sum(tf.cast(pooled, tf.float64) * upstream)
    ours = tf.convert_to_tensor(tape.gradient(total, half)).numpy()
    assert ours.dtype == np.float16 and expected.max() > 300
    np.testing.assert_allclose(ours, expected, rtol=0.005, atol=0.01)


def test_repeated_calls_give_equal_bytes() -> None:
    # TensorFlow changes graphs with large sums, and adds their terms as they become ready.
    rng = np.random.default_rng(4)
    features = [tf.constant(rng.normal(size=(1, 64 >> k, 64 >> k, 64)), tf.float32) for k in (0, 1)]
    corners = rng.uniform(0, 60, (1, 1000, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(4, 40, (1, 1000, 2))], axis=2)
    boxes = tf.constant(boxes, tf.float32)
    pool = tf.function(lambda: roi_align([level * 1 for level in features], boxes, 7))
    assert len({pool().numpy().tobytes() for _ in range(10)}) == 1
