"""Masks on the grid of a box, and pasted back: exact to the pixel, without any offset."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from plain_detection import mask_target

from gigatile.instances.mask_grids import mask_targets, paste_mask

HEIGHT, WIDTH = 40, 50


def blob(random: np.random.Generator, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Return a mask: an ellipse with a ragged border."""
    y, x = np.ogrid[:height, :width]
    centre, radii = random.uniform(0.3, 0.7, 2), random.uniform(0.1, 0.3, 2)
    down, across = (y / height - centre[0]) / radii[0], (x / width - centre[1]) / radii[1]
    return down**2 + across**2 + random.uniform(-0.3, 0.3, (height, width)) < 1


def crop_of(mask: np.ndarray) -> list[int]:
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    return [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]


def targets_of(masks, crops, boxes, size) -> np.ndarray:
    """Return `mask_targets` of masks in the image."""
    pairs = zip(masks, crops, strict=True)
    parts = [mask[c[0] : c[2], c[1] : c[3]].astype(np.uint8) for mask, c in pairs]
    offsets = np.cumsum([0, *(part.size for part in parts)])[:-1]
    pixels = np.concatenate([*(part.ravel() for part in parts), np.zeros(5, np.uint8)])
    return mask_targets(
        tf.constant(pixels),
        tf.constant(offsets.astype(np.int32)),
        tf.constant(np.array(crops, np.int32).reshape(-1, 4)),
        tf.constant(np.array(boxes, np.float64).reshape(-1, 4)),
        size,
    ).numpy()


def random_box(random: np.random.Generator) -> np.ndarray:
    """Return a box in the image, across its border or outside; small ones, too."""
    centre = random.uniform(-5, 55, 2)
    half = random.choice([0.2, 3, 20]) * random.uniform(0.2, 1, 2)
    return np.concatenate([centre - half, centre + half])


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.sampled_from([1, 2, 5, 8]))
def test_targets(seed, count, size):
    """Of random boxes, some of them far from their mask: also those of padding are finite."""
    random = np.random.default_rng(seed)
    masks = [blob(random) for _ in range(count)]
    # Some masks reach the border of the image.
    masks = [mask if random.random() < 0.5 else random.random(mask.shape) < 0.6 for mask in masks]
    assume(all(mask.any() for mask in masks))
    boxes = [random_box(random) for _ in masks]
    ours = targets_of(masks, [crop_of(mask) for mask in masks], boxes, size)
    assert ours.shape == (count, size, size) and ours.dtype == np.float32
    for mask, box, target in zip(masks, boxes, ours, strict=True):
        np.testing.assert_array_equal(target, mask_target(mask, box, size))


def test_targets_of_padding_are_0():
    ours = mask_targets(
        tf.ones((3,), tf.uint8),
        tf.constant([0, 3, 100]),
        tf.zeros((3, 4), tf.int32),
        tf.constant([[0.0, 0, 0, 0], [0, 0, 9, 9], [-2, -2, 1, 1]]),
        2,
    )
    assert (ours.numpy() == 0).all()


def test_half_of_a_bin_counts():
    """A bin covers 2 x 2 pixels: at least two of them must belong to the mask."""
    pixels = np.array([[1, 0, 1, 0, 1, 1], [0, 0, 0, 1, 1, 0]], bool)
    box = [0, 0, 2, 6]
    assert targets_of([pixels], [box], [box], 1)[0, 0, 0] == 1
    three = [[0, 0, 2, 2], [0, 2, 2, 4], [0, 4, 2, 6]]
    ours = targets_of([pixels] * 3, [box] * 3, three, 1)
    assert ours.ravel().tolist() == [0, 1, 1]


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_mask_on_the_grid_of_its_pixels_returns_unchanged(seed):
    """With a bin for each pixel, the grid is the mask, and pasting it gives the same pixels."""
    random = np.random.default_rng(seed)
    size, top, left = int(random.integers(1, 12)), *random.integers(0, 20, 2).tolist()
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[top : top + size, left : left + size] = random.random((size, size)) < 0.5
    box = [top, left, top + size, left + size]
    (target,) = targets_of([mask], [box], [box], size)
    np.testing.assert_array_equal(target, mask[top : top + size, left : left + size])
    pasted = paste_whole(target, box)
    np.testing.assert_array_equal(pasted, mask)


def paste_whole(scores, box, threshold=0.5) -> np.ndarray:
    whole = np.zeros((HEIGHT, WIDTH), bool)
    pixels, top, left = paste_mask(scores, np.array(box), HEIGHT, WIDTH, threshold)
    assert pixels.dtype == bool
    whole[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return whole


def smooth_shape(random: np.random.Generator):
    """Return an ellipse in exact coordinates: a function of y and x, and its box."""
    centre = random.uniform(14, 24, 2)
    radii = random.uniform(4, 12, 2)

    def inside(y, x):
        return ((y - centre[0]) / radii[0]) ** 2 + ((x - centre[1]) / radii[1]) ** 2 <= 1

    return inside, np.concatenate([centre - radii, centre + radii])


def centroid(mask: np.ndarray) -> np.ndarray:
    return np.argwhere(mask).mean(axis=0) + 0.5


def test_there_and_back_without_an_offset():
    """An offset of half a pixel, at either step, would move the mean centroid by as much."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    moved, overlaps = [], []
    for _ in range(150):
        inside, box = smooth_shape(random)
        mask = inside(y, x)
        box = box + random.uniform(-1.5, 1.5, 4)  # a proposal is not exact
        (target,) = targets_of([mask], [crop_of(mask)], [box], 28)
        pasted = paste_whole(target, box)
        seen = mask & paste_whole(np.ones((28, 28)), box)
        moved.append(centroid(pasted) - centroid(seen))
        overlaps.append((pasted & seen).sum() / (pasted | seen).sum())
    assert abs(np.mean(moved, axis=0)).max() < 0.03
    assert np.abs(moved).max() < 0.4 and np.mean(overlaps) > 0.97


@pytest.mark.parametrize("size", [14, 28])
def test_scores_of_a_shape_give_its_pixels(size):
    """Scores that fall linearly across the border of a half-plane: the border is exact."""
    random = np.random.default_rng(size)
    for _ in range(60):
        _, box = smooth_shape(random)
        normal = random.normal(size=2)
        normal /= abs(normal).max() * size  # so that the scores stay near 0.5 ± 1
        centre = (box[:2] + box[2:]) / 2
        bins = (np.arange(size) + 0.5) / size
        rows = box[0] + bins * (box[2] - box[0]) - centre[0]
        columns = box[1] + bins * (box[3] - box[1]) - centre[1]
        scores = 0.5 + rows[:, None] * normal[0] + columns[None] * normal[1]
        y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
        exact = 0.5 + (y - centre[0]) * normal[0] + (x - centre[1]) * normal[1]
        # At the border of the box, scores are interpolated with 0: leave out half a bin.
        margin = (box[2:] - box[:2]) / size / 2
        core = (y > box[0] + margin[0]) & (y < box[2] - margin[0])
        core &= (x > box[1] + margin[1]) & (x < box[3] - margin[1]) & (abs(exact - 0.5) > 1e-5)
        pasted = paste_whole(scores, box)
        assert core.sum() > 15
        np.testing.assert_array_equal(pasted[core], (exact >= 0.5)[core])


def grid_sample(scores: np.ndarray, box) -> np.ndarray:
    """Return the pasted scores: `_do_paste_mask` of detectron2, with torch's `grid_sample`.

    It samples bilinearly with align_corners=False and padding_mode="zeros".
    """
    result, (bins_y, bins_x) = np.zeros((HEIGHT, WIDTH)), scores.shape
    for row in range(HEIGHT):
        for column in range(WIDTH):
            grid_y = (row + 0.5 - box[0]) / (box[2] - box[0]) * 2 - 1
            grid_x = (column + 0.5 - box[1]) / (box[3] - box[1]) * 2 - 1
            y, x = ((grid_y + 1) * bins_y - 1) / 2, ((grid_x + 1) * bins_x - 1) / 2
            low_y, low_x = math.floor(y), math.floor(x)
            for i in (low_y, low_y + 1):
                for j in (low_x, low_x + 1):
                    if 0 <= i < bins_y and 0 <= j < bins_x:
                        weight = (1 - abs(y - i)) * (1 - abs(x - j))
                        result[row, column] += weight * scores[i, j]
    return result


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 7, 28]))
@example(0, 28)
def test_pasting_is_that_of_detectron2(seed, size):
    random = np.random.default_rng(seed)
    scores, box = random.random((size, size)), random_box(random)
    expected = grid_sample(scores, box)
    clear = abs(expected - 0.5) > 1e-5
    np.testing.assert_array_equal(paste_whole(scores, box)[clear], (expected >= 0.5)[clear])


def test_convention_differs_from_one_that_is_half_a_pixel_off():
    """The comparison with detectron2 sees an offset of half a pixel."""
    random = np.random.default_rng(1)
    scores, box = random.random((28, 28)), np.array([3.0, 4, 33, 40])
    expected = grid_sample(scores, box) >= 0.5
    assert (paste_whole(scores, box) == expected).all()
    assert (paste_whole(scores, box + 0.5) != expected).sum() > 50


@pytest.mark.parametrize(
    "box",
    [[5, 5, 5, 9], [5.6, 5.6, 6.4, 6.4], [-9, -9, -2, -2], [60, 60, 90, 90], [8, 8, 3, 3]],
)
def test_box_without_the_centre_of_a_pixel_has_no_mask(box):
    pixels, top, left = paste_mask(np.ones((28, 28)), np.array(box), HEIGHT, WIDTH)
    assert pixels.size == 0
    assert 0 <= top <= HEIGHT and 0 <= left <= WIDTH


@given(st.integers(0, 2**32 - 1))
def test_mask_of_ones_covers_the_pixels_with_their_centre_in_the_box(seed):
    box = random_box(np.random.default_rng(seed))
    y, x = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    inside = (y >= box[0]) & (y < box[2]) & (x >= box[1]) & (x < box[3])
    # In the corners of the box, the product of two weights of at least a half is smaller than it.
    bins = (y - box[0]) / (box[2] - box[0]) * 28, (x - box[1]) / (box[3] - box[1]) * 28
    weight = np.prod([np.clip(np.minimum(b + 0.5, 28.5 - b), 0, 1) for b in bins], axis=0)
    pasted = paste_whole(np.ones((28, 28)), box)
    clear = abs(weight - 0.5) > 1e-5
    np.testing.assert_array_equal(pasted[clear], (inside & (weight >= 0.5))[clear])
