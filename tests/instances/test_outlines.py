"""Outlines follow the pixels' edges exactly, and figures of shape are those of scikit-image."""

import math
import warnings

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from scipy import ndimage
from skimage.measure import regionprops

from gigatile.instances.geojson import rasterise
from gigatile.instances.outlines import polygons_of, shape_of, to_level_0

small_masks = hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9))


def _random_masks(count: int, side: int = 14) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    masks = []
    for _ in range(count):
        shape = random.integers(1, side, 2)
        mask = random.random(shape) < random.choice([0.1, 0.3, 0.5, 0.7, 0.9, 0.97])
        if mask.any():
            masks.append(mask)
    return masks


def _blob(height: int, width: int, angle: int) -> np.ndarray:
    image = np.zeros((140, 150), np.uint8)
    cv2.ellipse(image, (75, 70), (width, height), angle, 0, 360, 1, -1)
    return image


def _area(ring: np.ndarray) -> float:
    x, y = ring.T.astype(float)
    return float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


def _check_polygons(mask: np.ndarray) -> None:
    height, width = mask.shape
    polygons = polygons_of(mask)
    parts, count = ndimage.label(mask)
    assert len(polygons) == count
    total = 0.0
    for rings in polygons:
        # An outer ring and holes that no point visits twice; steps along one axis with turns.
        for ring in rings:
            steps = np.roll(ring, -1, axis=0) - ring
            assert ((steps == 0).sum(axis=1) == 1).all()
            assert ((steps[:, 0] == 0) != (np.roll(steps, 1, axis=0)[:, 0] == 0)).all()
            assert len(np.unique(ring, axis=0)) == len(ring) >= 4
        assert [_area(ring) > 0 for ring in rings] == [True] + [False] * (len(rings) - 1)
        total += sum(map(_area, rings))
        # Each polygon is one part, whole and exact.
        part, (top, left) = rasterise([[ring.astype(float) for ring in rings]], height, width)
        image = np.zeros_like(mask)
        image[top : top + part.shape[0], left : left + part.shape[1]] = part
        (label,) = np.unique(parts[image])
        assert (image == (parts == label)).all()
        # Its holes are separate: each is connected by edges.
        for hole in rings[1:]:
            pixels, _ = rasterise([[hole.astype(float)]], height, width)
            assert ndimage.label(pixels)[1] == 1
    assert total == mask.sum()


@given(small_masks)
@settings(max_examples=300)
def test_rasterising_the_outline_gives_the_mask(mask):
    _check_polygons(mask)


def test_outlines_of_larger_masks_are_exact_too():
    for mask in _random_masks(100, side=40):
        _check_polygons(mask)
    _check_polygons(_blob(60, 30, 20) > 0)


def test_a_pixel_and_a_ring():
    (polygon,) = polygons_of(np.ones((1, 1)))
    assert sorted(map(tuple, polygon[0].tolist())) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    mask = np.ones((3, 4), bool)
    mask[1, 1:3] = False
    ((outer, hole),) = polygons_of(mask)
    assert sorted(map(tuple, outer.tolist())) == [(0, 0), (0, 3), (4, 0), (4, 3)]
    assert sorted(map(tuple, hole.tolist())) == [(1, 1), (1, 2), (3, 1), (3, 2)]
    assert polygons_of(np.zeros((3, 3))) == []


def test_pixels_that_touch_in_a_corner_are_different_polygons():
    assert len(polygons_of(np.eye(3))) == 3
    # A chain of holes: JTS and shapely refuse a polygon that is divided by its holes.
    mask = np.ones((5, 5), bool)
    for y, x in ((1, 2), (2, 1), (2, 3), (3, 2)):
        mask[y, x] = False
    assert sorted(len(rings) for rings in polygons_of(mask)) == [1, 2]


def test_polygons_in_level_0_pixels():
    ((ring,),) = to_level_0(polygons_of(np.ones((2, 3))), 10, 20, (2.0, 4.0))
    assert ring.min(axis=0).tolist() == [40, 40]
    assert ring.max(axis=0).tolist() == [46, 48]


def _expected(mask: np.ndarray) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (region,) = regionprops(np.asarray(mask, np.uint8))
        return {
            "area": region.area,
            "perimeter": region.perimeter,
            "major_axis": region.axis_major_length,
            "minor_axis": region.axis_minor_length,
            "eccentricity": region.eccentricity,
            "orientation": region.orientation,
            "solidity": region.solidity,
            "y": region.centroid[0] + 0.5,
            "x": region.centroid[1] + 0.5,
        }


@pytest.mark.parametrize(
    "masks",
    [
        _random_masks(150),
        [_blob(b, a, angle) for b, a, angle in ((60, 12, 7), (25, 24, 60), (3, 70, 45))],
        [np.ones(shape) for shape in ((1, 1), (1, 9), (9, 1), (4, 4), (5, 2))],
        [np.eye(7), np.eye(7)[::-1]],
    ],
    ids=["random", "ellipses", "boxes", "diagonals"],
)
def test_shapes_are_those_of_scikit_image(masks):
    for mask in masks:
        shape, expected = shape_of(mask), _expected(mask)
        values = vars(shape) | {"y": shape.centroid[0], "x": shape.centroid[1]}
        del values["centroid"]
        moments = cv2.moments(np.asarray(mask, np.uint8), binaryImage=True)
        anisotropy = math.hypot(moments["mu20"] - moments["mu02"], 2 * moments["mu11"])
        if anisotropy < 1e-9 * (moments["mu20"] + moments["mu02"]):
            # A round mask has no orientation.
            del values["orientation"], expected["orientation"]
        elif abs(abs(expected["orientation"]) - math.pi / 2) < 1e-9:
            # Both signs are the same angle.
            values["orientation"] = abs(values["orientation"])
            expected["orientation"] = abs(expected["orientation"])
        assert values == pytest.approx(expected, abs=1e-6), mask
