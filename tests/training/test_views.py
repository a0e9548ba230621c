"""The eight views of a tile, written into the memory of a batch."""

import numpy as np
import pytest

from gigatile.settings.view_names import VIEWS
from gigatile.training.view_writer import write_view
from gigatile.views import apply_view

IMAGE = np.random.default_rng(0).integers(0, 255, (7, 7, 3), np.uint8)


@pytest.mark.parametrize("side", [1, 7, 224])
@pytest.mark.parametrize("view", range(len(VIEWS)))
def test_view_is_written_in_place(view, side):
    image = np.random.default_rng(side).integers(0, 255, (side, side, 3), np.uint8)
    batch = np.zeros((3, side, side, 3), np.uint8)
    write_view(image, view, batch[1], np.zeros_like(image))
    np.testing.assert_array_equal(batch[1], apply_view(image, view))
    assert not batch[[0, 2]].any()


def test_views_are_those_of_their_names():
    """Turns are anticlockwise; a flip exchanges left and right, after the turn."""
    corner = np.array([[1, 2], [3, 4]], np.uint8)
    shown = [apply_view(corner[..., None], view)[..., 0].tolist() for view in range(len(VIEWS))]
    turned = [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]
    assert shown == [*turned, *([row[::-1] for row in image] for image in turned)]
    assert VIEWS[1] == "rotate90" and VIEWS[5] == "rotate90_flip"


def test_unknown_view_is_an_error():
    with pytest.raises(ValueError, match="no view 8"):
        write_view(IMAGE, 8, np.zeros_like(IMAGE), np.zeros_like(IMAGE))
