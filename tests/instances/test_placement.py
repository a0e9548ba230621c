"""Boxes and masks on the canvas, compared with whole masks turned, resized and cropped."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tiny_mask_rcnn import box_of, ellipse
from whole_images import COLOUR, on_canvas, placements, turned

from gigatile.instances.annotations import stack_instances
from gigatile.instances.resizing import resized_shape
from gigatile.settings.detection import DetectionSettings
from gigatile.tasks.instance_segmentation.placement import (
    Placement,
    place,
    place_boxes,
    place_instances,
    place_mask,
)

SEEDS = st.integers(0, 2**64 - 1)


def resized_nearest(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return a mask resized by definition: each pixel from the one in which its centre lies."""
    rows = [(2 * i + 1) * mask.shape[0] // (2 * height) for i in range(height)]
    columns = [(2 * j + 1) * mask.shape[1] // (2 * width) for j in range(width)]
    return mask[rows][:, columns]


def random_masks(height: int, width: int, seed: int) -> list[np.ndarray]:
    """Return masks in an image that may overlap: dots, rectangles and ellipses with holes."""
    random = np.random.default_rng(seed)
    masks = []
    for kind in random.integers(0, 3, random.integers(0, 6)):
        corner = (random.random(2) * (height, width)).astype(int)
        sides = [1, 1] if kind == 0 else random.integers(1, (height + 1, width + 1))
        far = np.minimum(corner + sides, (height, width))
        mask = np.zeros((height, width), bool)
        mask[corner[0] : far[0], corner[1] : far[1]] = True
        if kind == 2:
            mask &= ellipse(height, width, (*corner, *far)) & (random.random(mask.shape) < 0.8)
        if mask.any():
            masks.append(mask)
    return masks


@hypothesis_settings(max_examples=400)
@given(placements(), st.integers(0, 2**32 - 1))
def test_masks_equal_painted_ones(case, seed):
    height, width, placement = case
    masks = random_masks(height, width, seed)
    instances = stack_instances([(mask, (0, 0)) for mask in masks], [1] * len(masks))
    placed = place_instances(instances, height, width, placement)
    painted = np.zeros((len(masks), *placement.canvas), bool)
    for index, crop in zip(placed.indices, placed.crops, strict=True):
        pixels = place_mask(
            instances.mask(index), instances.crops[index], crop, height, width, placement
        )
        assert pixels.shape == (crop[2] - crop[0], crop[3] - crop[1])
        painted[index, crop[0] : crop[2], crop[1] : crop[3]] = pixels
    for mask, ours in zip(masks, painted, strict=True):
        whole = resized_nearest(turned(mask, placement.view), placement.height, placement.width)
        np.testing.assert_array_equal(ours, on_canvas(whole, placement))
    assert placed.pixels == sum((c[2] - c[0]) * (c[3] - c[1]) for c in placed.crops)
    # Those that are left out have no pixel, even in their box.
    assert len(placed.boxes) == len(placed.crops) == len(placed.indices)
    for index in np.setdiff1d(np.arange(len(masks)), placed.indices):
        box = np.zeros((height, width), bool)
        crop = instances.crops[index]
        box[crop[0] : crop[2], crop[1] : crop[3]] = True
        whole = resized_nearest(turned(box, placement.view), placement.height, placement.width)
        assert not on_canvas(whole, placement).any()


@given(placements(), st.integers(0, 2**32 - 1))
def test_boxes_equal_those_of_turned_masks(case, seed):
    height, width, placement = case
    for mask in random_masks(height, width, seed):
        whole = turned(mask, placement.view)
        down, across = placement.height / whole.shape[0], placement.width / whole.shape[1]
        y1, x1, y2, x2 = box_of(whole)
        expected = [
            y1 * down - placement.top,
            x1 * across - placement.left,
            y2 * down - placement.top,
            x2 * across - placement.left,
        ]
        boxes = np.array([box_of(mask)])
        ours = place_boxes(boxes, height, width, placement)
        np.testing.assert_allclose(ours, [expected], atol=1e-9)


def test_boxes_need_not_be_whole_pixels():
    """A box of a third of the height from the top is as far from the left after three turns."""
    box = np.array([[0.0, 1.5, 2.25, 8.0]])
    expected = {
        0: [0, 1.5, 2.25, 8],
        1: [12 - 8, 0, 12 - 1.5, 2.25],
        2: [6.75 - 2.25, 12 - 8, 6.75, 12 - 1.5],
        3: [1.5, 6.75 - 2.25, 8, 6.75],
        4: [0, 12 - 8, 2.25, 12 - 1.5],
        5: [12 - 8, 6.75 - 2.25, 12 - 1.5, 6.75],
        6: [6.75 - 2.25, 1.5, 6.75, 8],
        7: [1.5, 0, 8, 2.25],
    }
    for view, same in expected.items():
        shape = (12, 6.75) if view % 2 else (6.75, 12)
        placement = Placement(view, *shape, 0, 0, (64, 64), COLOUR)
        np.testing.assert_allclose(place_boxes(box, 6.75, 12, placement), [same], atol=1e-12)


def test_crowds_are_left_out():
    mask = np.ones((8, 8), bool)
    instances = stack_instances([(mask, (0, 0))] * 3, [1, 2, 1], crowd=[False, True, False])
    placement = Placement(0, 8, 8, 0, 0, (64, 64), COLOUR)
    assert place_instances(instances, 8, 8, placement).indices.tolist() == [0, 2]


@given(SEEDS, st.integers(1, 300), st.integers(1, 300))
def test_size_follows_from_the_settings(seed, height, width):
    short = place(height, width, seed, DetectionSettings(short_edge=100, max_edge=150))
    tall, wide = (width, height) if short.view % 2 else (height, width)
    factor = min(Fraction(100, min(tall, wide)), Fraction(150, max(tall, wide)))
    assert abs(short.height - factor * tall) <= 0.5 or short.height == 1
    assert abs(short.width - factor * wide) <= 0.5 or short.width == 1
    assert max(short.height, short.width) <= 150
    scaled = place(height, width, seed, DetectionSettings(scale=0.4, flips="horizontal"))
    assert scaled.view in (0, 4)
    assert abs(scaled.height - 0.4 * height) <= 0.5 or scaled.height == 1
    for placement in (short, scaled):
        assert placement.canvas == (512, 512) and (placement.top, placement.left) == (0, 0)
        assert placement.visible == (placement.height, placement.width)


def test_short_edge_of_training_is_one_of_several():
    settings = DetectionSettings(short_edge=80, max_edge=150, train_short_edges=(64, 72, 96))
    placements = [place(200, 300, seed, settings) for seed in range(600)]
    edges = [min(placement.height, placement.width) for placement in placements]
    counts = [edges.count(edge) for edge in (64, 72, 96)]
    assert sum(counts) == 600 and min(counts) > 150
    # Neither the turn nor the colours say which one.
    for values in ([p.view % 2 for p in placements], [p.colour[0] > 0.5 for p in placements]):
        assert abs(np.corrcoef(edges, values)[0, 1]) < 0.15
    # The longer side of a long image limits it, and detection does not use them.
    longest = [place(100, 1000, seed, settings) for seed in range(9)]
    assert {max(placement.height, placement.width) for placement in longest} == {150}
    assert resized_shape(200, 300, settings) == (80, 120)


def test_equal_seeds_give_equal_samples():
    settings = DetectionSettings(canvas=(64, 64), scale_jitter=0.3)
    first, second = (place(200, 150, 2**64 - 3, settings) for _ in range(2))
    assert vars(first).keys() == vars(second).keys()
    for name, value in vars(first).items():
        np.testing.assert_array_equal(value, vars(second)[name])
    others = [vars(place(200, 150, seed, settings)) for seed in range(20)]
    for name in ("view", "height", "top", "left"):
        assert len({other[name] for other in others}) > 4


def test_views_corners_and_scales_are_uniform():
    """Each count is within four standard deviations; a bias of a bin would be far outside."""
    settings = DetectionSettings(canvas=(64, 96), scale_jitter=0)
    jittered = DetectionSettings(canvas=(64, 96), scale_jitter=0.5)
    horizontal = DetectionSettings(flips="horizontal")
    runs = 8000
    views, tops, lefts = np.zeros(8), np.zeros(137), np.zeros(105)
    pairs, flips, heights = np.zeros((2, 2)), np.zeros(8), []
    for seed in range(runs):
        placement = place(200, 200, seed, settings)
        views[placement.view] += 1
        tops[placement.top] += 1
        lefts[placement.left] += 1
        pairs[placement.top > 68, placement.left > 52] += 1
        flips[place(64, 64, seed, horizontal).view] += 1
        heights.append(place(1000, 1000, seed, jittered).height)
    assert flips[[1, 2, 3, 5, 6, 7]].sum() == 0
    scales = np.histogram(heights, 20, (500, 1500))[0]
    for counts in (views, tops, lefts, pairs.ravel(), flips[[0, 4]], scales):
        expected = runs / len(counts)
        assert abs(counts - expected).max() < 4.3 * np.sqrt(expected)
    assert min(heights) >= 500 and max(heights) <= 1500
    assert {place(90, 80, seed, DetectionSettings(flips="none")).view for seed in range(30)} == {0}


def test_views_corners_and_scales_are_independent():
    """Each combination of two halves has a quarter of the samples."""
    settings = DetectionSettings(canvas=(64, 64), scale_jitter=0.5)
    runs = 6000
    halves = []
    for seed in range(runs):
        placement = place(1000, 1000, seed, settings)
        corner = placement.top / (placement.height - 63), placement.left / (placement.width - 63)
        halves.append([placement.view >= 4, placement.view % 2 > 0, placement.height > 1000])
        halves[-1] += [corner[0] > 0.5, corner[1] > 0.5, *(placement.colour[:3] > 0.5)]
    values = np.array(halves).astype(int)
    for first in range(values.shape[1]):
        for second in range(first):
            counts = np.bincount(2 * values[:, first] + values[:, second], minlength=4)
            assert abs(counts - runs / 4).max() < 4.3 * np.sqrt(runs / 4), (first, second)
