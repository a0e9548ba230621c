"""Find the head in a volume."""

import nibabel
import numpy as np
import pytest
from known_volumes import ellipsoid, head
from scipy import ndimage

from gigatile.volumes.head_mask import HeadMask, box_of, find_head, reorient_box, slices_of

SHAPE = (40, 44, 36)
BRAIN = ellipsoid(SHAPE, 0.42)


def whole_mask(inside: HeadMask, image: np.ndarray) -> np.ndarray:
    """Return the mask of the whole volume; checks that `inside.box` is the bounding box."""
    mask = np.zeros(image.shape, bool)
    mask[slices_of(inside.box)] = inside.mask
    np.testing.assert_array_equal(box_of(mask), inside.box)
    return mask


@pytest.mark.parametrize("background", [0.0, -3.624, 57.5])
def test_stripped_head_includes_its_cavities(background):
    image = head(SHAPE, background)
    cavity = ellipsoid(SHAPE, 0.1)
    image[cavity] = background
    head_mask = find_head(image)
    assert head_mask.background == np.float32(background)
    np.testing.assert_array_equal(whole_mask(head_mask, image), BRAIN)


def test_head_that_touches_the_faces_is_found():
    image = head(SHAPE, -2.0)
    box = box_of(BRAIN)
    x, y, z = (slice(a, b) for a, b in box.T)
    head_mask = find_head(image[x, y, z])
    assert head_mask.background == -2
    np.testing.assert_array_equal(whole_mask(head_mask, image[x, y, z]), BRAIN[x, y, z])


def test_head_in_air_is_found_and_filled():
    rng = np.random.default_rng(2)
    image = rng.rayleigh(8, SHAPE)
    skull, brain = ellipsoid(SHAPE, 0.48), ellipsoid(SHAPE, 0.38)
    image[skull] = 400 + rng.normal(0, 20, np.count_nonzero(skull))
    image[ellipsoid(SHAPE, 0.41)] = 12  # bone is as dark as air
    image[brain] = 300 + rng.normal(0, 20, np.count_nonzero(brain))
    image[ellipsoid(SHAPE, 0.15)] = 15  # and the ventricles too
    image[2:4, 2:4, 2:4] = 500  # an object next to the head
    image = image[:, :, 8:-8]  # cropped at top and bottom, as most scans
    head_mask = find_head(image.astype(np.float32))
    assert head_mask.background is None
    wrong = np.count_nonzero(whole_mask(head_mask, image) != skull[:, :, 8:-8])
    assert wrong < 0.002 * skull.sum()


def test_volume_without_air_is_all_head():
    texture = ndimage.gaussian_filter(np.random.default_rng(4).normal(size=SHAPE), 2)
    image = (1000 + 2000 * texture / texture.std()).astype(np.float32)
    head_mask = find_head(image)
    assert head_mask.background is None
    assert whole_mask(head_mask, image).all()


def test_box_is_the_bounding_box():
    mask = np.zeros((5, 6, 7), bool)
    assert box_of(mask) is None
    mask[1, 2, 3] = mask[3, 2, 6] = True
    np.testing.assert_array_equal(box_of(mask), [(1, 2, 3), (4, 3, 7)])


def test_box_is_reoriented_with_its_volume():
    mask = np.zeros((5, 6, 7), bool)
    mask[1:3, 2:6, 3] = True
    for code in ("RAS", "LPS", "SLA", "PIR"):
        orientation = nibabel.orientations.axcodes2ornt(code)
        reoriented = nibabel.orientations.apply_orientation(mask, orientation)
        reoriented_box = reorient_box(box_of(mask), mask.shape, orientation)
        np.testing.assert_array_equal(reoriented_box, box_of(reoriented))
