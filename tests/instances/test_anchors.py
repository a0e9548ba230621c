"""Anchors, compared with loops over the cells of the feature maps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plain_detection import anchor_boxes

from gigatile.instances.anchors import anchors_of_level, pyramid_anchors

RATIOS = st.lists(st.floats(0.1, 10), min_size=1, max_size=4)


@given(
    st.integers(0, 5),
    st.integers(0, 6),
    st.sampled_from([1, 4, 8, 64]),
    st.floats(1, 600),
    RATIOS,
)
def test_anchors_of_a_level(rows, columns, stride, size, ratios):
    anchors = anchors_of_level(rows, columns, stride, size, ratios)
    assert anchors.dtype == np.float32
    expected = np.array(anchor_boxes(rows, columns, stride, size, ratios)).reshape(-1, 4)
    np.testing.assert_allclose(anchors, expected, rtol=1e-6, atol=1e-3)


def test_first_anchor_by_hand():
    """Height 16 and width 4 around the centre (4, 4) of the first cell of 8 pixels."""
    anchors = anchors_of_level(2, 2, 8, 8, [4, 1])
    np.testing.assert_array_equal(anchors[0], [4 - 8, 4 - 2, 4 + 8, 4 + 2])
    np.testing.assert_array_equal(anchors[1], [0, 0, 8, 8])
    # Then the cell to its right, then those of the next row.
    np.testing.assert_array_equal(anchors[3], [0, 8, 8, 16])
    np.testing.assert_array_equal(anchors[5], [8, 0, 16, 8])


@given(st.integers(1, 300), st.integers(1, 300), RATIOS)
def test_levels_cover_the_image(height, width, ratios):
    strides, sizes = (4, 8, 16, 32, 64), (16, 32, 64, 128, 256)
    levels = pyramid_anchors(height, width, strides, sizes, ratios)
    assert len(levels) == 5
    for level, stride, size in zip(levels, strides, sizes, strict=True):
        rows, columns = -(-height // stride), -(-width // stride)
        # The last cell begins in the image.
        assert (rows - 1) * stride < height <= rows * stride
        assert len(level) == rows * columns * len(ratios)
        last = anchor_boxes(rows, columns, stride, size, ratios)[-1]
        np.testing.assert_allclose(level[-1], last, rtol=1e-5, atol=1e-3)
        sides = (level[:, 2:] - level[:, :2]).astype(np.float64)
        np.testing.assert_allclose(sides.prod(axis=1), size**2, rtol=1e-3)
        expected = np.tile(ratios, rows * columns)
        np.testing.assert_allclose(sides[:, 0] / sides[:, 1], expected, rtol=1e-3)
