"""From a file's voxels to the prepared ones, and where those lie."""

import json

import numpy as np
import pytest
from known_volumes import (
    affine_of,
    all_orientations,
    dice,
    ellipsoid,
    head,
    tumour,
    write_as,
)
from scipy import ndimage

from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.geometry import geometry_of
from gigatile.volumes.grid import Grid, forward_image, forward_labels, forward_part, plan_grid
from gigatile.volumes.reader import open_volume

SPACING = (1.0, 1.2, 2.0)


@pytest.fixture
def geometry(tmp_path):
    """Return the geometry and the array of a file whose axes point as `code` says."""

    def made(array, code="RAS", spacing=SPACING, turned=0.0):
        path = write_as(tmp_path / "a.nii", array, affine_of(spacing, turned=turned), code)
        volume = open_volume(path)
        (stored,) = volume.read_channels()
        return geometry_of(volume), stored

    return made


@pytest.mark.parametrize("code", all_orientations())
def test_voxels_are_unchanged_without_resampling(geometry, code):
    image = head()
    where, stored = geometry(image, code, turned=10)
    for spacing in (None, SPACING, (1.001, 1.2, 2.0)):
        grid = plan_grid(where, spacing)
        assert not grid.resampled
        np.testing.assert_array_equal(forward_image(stored, grid), image)
        np.testing.assert_array_equal(forward_labels(stored.astype(np.uint8), grid), image // 1)
        np.testing.assert_allclose(grid.affine, affine_of(SPACING, turned=10), atol=1e-4)
        cut = grid.crop_to((3, 4, 5), (20, 19, 17))
        np.testing.assert_array_equal(forward_image(stored, cut), image[3:20, 4:19, 5:17])
        expected = affine_of(SPACING, turned=10) @ (3, 4, 5, 1)
        np.testing.assert_allclose(cut.affine[:3, 3], expected[:3], atol=1e-4)


@pytest.mark.parametrize("spacing", [(0.7, 0.9, 1.1), (1.0, 0.5, 2.0)])
def test_upsampling_equals_scipys_zoom(geometry, spacing):
    image = head()
    where, stored = geometry(image)
    grid = plan_grid(where, spacing)
    zoom = np.array(grid.resampled_shape) / image.shape
    expected = ndimage.zoom(image, zoom, order=1, grid_mode=True, mode="nearest")
    found = forward_image(stored, grid, 1)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-3)
    # scipy has no zoom by which a cubic spline is mirrored and what lies beyond is constant.
    places = np.meshgrid(
        *(
            ((np.arange(new) + 0.5) * old / new - 0.5).clip(0, old - 1)
            for new, old in zip(grid.resampled_shape, image.shape, strict=True)
        ),
        indexing="ij",
    )
    expected = ndimage.map_coordinates(image, places, order=3, mode="mirror")
    np.testing.assert_allclose(forward_image(stored, grid, 3), expected, atol=1e-3)


@pytest.mark.parametrize("spacing", [(0.7, 0.9, 1.1), (2.0, 1.2, 3.0), (3, 3, 3)])
@pytest.mark.parametrize("order", [1, 3])
def test_box_equals_the_whole_there(geometry, spacing, order):
    where, stored = geometry(head())
    whole = plan_grid(where, spacing)
    cut = whole.crop_to((5, 6, 4), (21, 16, 14))
    assert cut.shape != whole.shape
    expected = forward_image(stored, whole, order)[cut.cropped]
    np.testing.assert_allclose(forward_image(stored, cut, order), expected, atol=2e-4)


@pytest.mark.parametrize("spacing", [(0.7, 0.9, 1.1), (2.0, 1.2, 3.0), (1.0, 1.2, 5.0)])
def test_box_equals_the_whole_if_the_rest_is_0(geometry, spacing):
    image = np.zeros((26, 22, 18), np.float32)
    image[5:21, 6:16, 4:14] = head()[5:21, 6:16, 4:14]
    where, stored = geometry(image)
    grid = plan_grid(where, spacing).crop_to((5, 6, 4), (21, 16, 14))
    found = forward_part(stored[5:21, 6:16, 4:14], (5, 6, 4), grid)
    np.testing.assert_allclose(found, forward_image(stored, grid), atol=1e-4)


def test_crop_covers_the_requested_box(geometry):
    where, _ = geometry(head())
    for spacing in ((0.7, 0.9, 1.1), (3, 3, 3), (1, 1.2, 2)):
        whole = plan_grid(where, spacing)
        for start, stop in (((0, 0, 0), whole.canonical_shape), ((5, 6, 4), (6, 7, 5))):
            cut = whole.crop_to(start, stop)
            scale = np.array(whole.canonical_shape) / whole.resampled_shape
            assert (np.array(cut.crop_start) * scale <= np.array(start) + 1e-9).all()
            ends = np.add(cut.crop_start, cut.shape)
            assert (ends * scale >= np.array(stop) - 1e-9).all()
            assert (ends <= whole.resampled_shape).all()


@pytest.mark.parametrize("code", ["RAS", "LPS", "SLA"])
@pytest.mark.parametrize("turned", [0, 25])
@pytest.mark.parametrize("spacing", [(0.8, 0.8, 0.8), (1.5, 1.5, 2.5)])
def test_resampling_keeps_positions(geometry, code, turned, spacing):
    """The image is each voxel's own place in millimetres: it must fit the prepared affine."""
    shape = (26, 22, 18)
    affine = affine_of(SPACING, turned=turned)
    indices = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1)
    places = indices @ affine[:3, :3].T + affine[:3, 3]
    for axis in range(3):
        where, stored = geometry(places[..., axis].astype(np.float32), code, turned=turned)
        grid = plan_grid(where, spacing).crop_to((6, 6, 6), (18, 16, 13))
        found = forward_image(stored, grid, order=1)
        new = np.stack(np.meshgrid(*map(np.arange, grid.shape), indexing="ij"), -1)
        expected = (new @ grid.affine[:3, :3].T + grid.affine[:3, 3])[..., axis]
        np.testing.assert_allclose(found, expected, atol=2e-3)
        assert np.linalg.norm(grid.affine[:3, :3], axis=0) == pytest.approx(grid.spacing)


def test_resampling_keeps_the_extent(geometry):
    where, _ = geometry(head(), "LPS")
    grid = plan_grid(where, (0.7, 0.7, 0.7))
    assert grid.canonical_shape == (26, 22, 18)
    assert grid.resampled_shape == (37, 38, 51)
    np.testing.assert_allclose(
        np.array(grid.spacing) * grid.resampled_shape, np.array((26, 22, 18)) * SPACING, rtol=1e-6
    )
    assert plan_grid(where, (100, 100, 100)).shape == (1, 1, 1)


def test_downsampling_does_not_alias(geometry):
    """Stripes of two voxels, sampled at every third one, would give stripes of six."""
    x = np.arange(60)
    stripes = np.broadcast_to(((x % 4) < 2)[:, None, None], (60, 8, 8)).astype(np.float32)
    where, stored = geometry(stripes, spacing=(1, 1, 1))
    found = forward_image(stored, plan_grid(where, (3, 1, 1)))[3:-3]
    assert found.std() < 0.15
    assert found.mean() == pytest.approx(0.5, abs=0.05)


def test_resampled_labels_have_the_largest_share(geometry):
    labels = np.zeros((8, 4, 4), np.uint8)
    labels[2:5] = 1
    labels[5:] = 3
    where, stored = geometry(labels, spacing=(1, 1, 1))
    stored = stored.astype(np.uint8)
    fine = forward_labels(stored, plan_grid(where, (0.25, 1, 1)))
    np.testing.assert_array_equal(fine[:, 0, 0], np.repeat(labels[:, 0, 0], 4))
    assert set(np.unique(forward_labels(stored, plan_grid(where, (0.7, 1, 2))))) == {0, 1, 3}
    # Where three meet, a half is the most.
    corner = np.repeat(np.array([[[1], [2]], [[1], [3]]], np.uint8), 2, axis=2)
    where, stored = geometry(corner, spacing=(1, 1, 1))
    met = forward_labels(stored.astype(np.uint8), plan_grid(where, (2, 2, 1)))
    np.testing.assert_array_equal(met, [[[1, 1]]])
    whole = ellipsoid((40, 40, 40), 0.3)
    where, stored = geometry(whole.astype(np.uint8), spacing=(1, 1, 1))
    coarse = forward_labels(stored.astype(np.uint8), plan_grid(where, (2, 2, 2))) > 0
    assert dice(coarse, ellipsoid((20, 20, 20), 0.3)) > 0.97


@pytest.mark.parametrize("code", ["RAS", "IPL"])
def test_grid_survives_json(geometry, code):
    where, _ = geometry(head(), code, turned=12)
    grid = plan_grid(where, (0.7, 0.9, 1.1)).crop_to((5, 6, 4), (21, 16, 14))
    again = Grid.from_json(json.loads(json.dumps(grid.to_json(), allow_nan=False)))
    assert again == grid
    np.testing.assert_array_equal(again.affine, grid.affine)


def test_spacing_with_too_many_voxels_is_refused(geometry):
    where, _ = geometry(head((100, 100, 100)), spacing=(10, 10, 10))
    with pytest.raises(VolumeError, match="it would have 100000×100000×100000 voxels"):
        plan_grid(where, (0.01, 0.01, 0.01))
    with pytest.raises(VolumeError, match="it would have 1000×1000×1000 voxels"):
        plan_grid(where, (1, 1, 1))


def test_array_of_another_shape_is_refused(geometry):
    where, _ = geometry(head())
    with pytest.raises(ValueError, match="voxels, the file"):
        forward_labels(tumour()[:-1], plan_grid(where, None))
