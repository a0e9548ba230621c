"""Resample a file's voxels to the prepared grid."""

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
from gigatile.volumes.grid import Grid, forward_labels, forward_part, plan_grid
from gigatile.volumes.reader import open_volume

SPACING = (1.0, 1.2, 2.0)


@pytest.fixture
def geometry(tmp_path):
    """Return a function that writes a file and returns its geometry and array."""

    def write(array, code="RAS", spacing=SPACING, rotated=0.0):
        path = write_as(tmp_path / "a.nii", array, affine_of(spacing, rotated=rotated), code)
        volume = open_volume(path)
        (stored,) = volume.read_channels()
        return geometry_of(volume), stored

    return write


def forward_image(stored: np.ndarray, grid: Grid, order: int = 3) -> np.ndarray:
    """Return the file's image on the prepared grid."""
    return forward_part(grid.canonical(stored), (0, 0, 0), grid, order)


@pytest.mark.parametrize("code", all_orientations())
def test_voxels_are_unchanged_without_resampling(geometry, code):
    image = head()
    file_geometry, stored = geometry(image, code, rotated=10)
    for spacing in (None, SPACING, (1.001, 1.2, 2.0)):
        grid = plan_grid(file_geometry, spacing)
        assert not grid.resampled
        np.testing.assert_array_equal(forward_image(stored, grid), image)
        np.testing.assert_array_equal(forward_labels(stored.astype(np.uint8), grid), image // 1)
        np.testing.assert_allclose(grid.affine, affine_of(SPACING, rotated=10), atol=1e-4)
        cropped = grid.crop_to((3, 4, 5), (20, 19, 17))
        np.testing.assert_array_equal(forward_image(stored, cropped), image[3:20, 4:19, 5:17])
        expected = affine_of(SPACING, rotated=10) @ (3, 4, 5, 1)
        np.testing.assert_allclose(cropped.affine[:3, 3], expected[:3], atol=1e-4)


@pytest.mark.parametrize("spacing", [(0.7, 0.9, 1.1), (1.0, 0.5, 2.0)])
def test_upsampling_equals_scipys_zoom(geometry, spacing):
    image = head()
    file_geometry, stored = geometry(image)
    grid = plan_grid(file_geometry, spacing)
    zoom = np.array(grid.resampled_shape) / image.shape
    expected = ndimage.zoom(image, zoom, order=1, grid_mode=True, mode="nearest")
    result = forward_image(stored, grid, 1)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, atol=1e-3)
    # scipy's zoom cannot mirror a cubic spline and be constant outside, so positions are clipped.
    positions = np.meshgrid(
        *(
            ((np.arange(new) + 0.5) * old / new - 0.5).clip(0, old - 1)
            for new, old in zip(grid.resampled_shape, image.shape, strict=True)
        ),
        indexing="ij",
    )
    expected = ndimage.map_coordinates(image, positions, order=3, mode="mirror")
    np.testing.assert_allclose(forward_image(stored, grid, 3), expected, atol=1e-3)


@pytest.mark.parametrize("spacing", [(0.7, 0.9, 1.1), (2.0, 1.2, 3.0), (3, 3, 3)])
@pytest.mark.parametrize("order", [1, 3])
def test_cropping_before_resampling_changes_nothing(geometry, spacing, order):
    file_geometry, stored = geometry(head())
    whole = plan_grid(file_geometry, spacing)
    cropped = whole.crop_to((5, 6, 4), (21, 16, 14))
    assert cropped.shape != whole.shape
    expected = forward_image(stored, whole, order)[cropped.cropped]
    np.testing.assert_allclose(forward_image(stored, cropped, order), expected, atol=2e-4)


@pytest.mark.parametrize("spacing", [(0.7, 0.9, 1.1), (2.0, 1.2, 3.0), (1.0, 1.2, 5.0)])
def test_box_suffices_if_the_rest_is_0(geometry, spacing):
    image = np.zeros((26, 22, 18), np.float32)
    image[5:21, 6:16, 4:14] = head()[5:21, 6:16, 4:14]
    file_geometry, stored = geometry(image)
    grid = plan_grid(file_geometry, spacing).crop_to((5, 6, 4), (21, 16, 14))
    result = forward_part(stored[5:21, 6:16, 4:14], (5, 6, 4), grid)
    np.testing.assert_allclose(result, forward_image(stored, grid), atol=1e-4)


def test_crop_covers_the_requested_box(geometry):
    file_geometry, _ = geometry(head())
    for spacing in ((0.7, 0.9, 1.1), (3, 3, 3), (1, 1.2, 2)):
        whole = plan_grid(file_geometry, spacing)
        for start, stop in (((0, 0, 0), whole.canonical_shape), ((5, 6, 4), (6, 7, 5))):
            cropped = whole.crop_to(start, stop)
            scale = np.array(whole.canonical_shape) / whole.resampled_shape
            assert (np.array(cropped.crop_start) * scale <= np.array(start) + 1e-9).all()
            ends = np.add(cropped.crop_start, cropped.shape)
            assert (ends * scale >= np.array(stop) - 1e-9).all()
            assert (ends <= whole.resampled_shape).all()


@pytest.mark.parametrize("code", ["RAS", "LPS", "SLA"])
@pytest.mark.parametrize("rotated", [0, 25])
@pytest.mark.parametrize("spacing", [(0.8, 0.8, 0.8), (1.5, 1.5, 2.5)])
def test_resampling_keeps_positions(geometry, code, rotated, spacing):
    """The values are positions in millimetres, so they must fit the prepared affine."""
    shape = (26, 22, 18)
    affine = affine_of(SPACING, rotated=rotated)
    indices = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1)
    positions = indices @ affine[:3, :3].T + affine[:3, 3]
    for axis in range(3):
        file_geometry, stored = geometry(
            positions[..., axis].astype(np.float32), code, rotated=rotated
        )
        grid = plan_grid(file_geometry, spacing).crop_to((6, 6, 6), (18, 16, 13))
        result = forward_image(stored, grid, order=1)
        new = np.stack(np.meshgrid(*map(np.arange, grid.shape), indexing="ij"), -1)
        expected = (new @ grid.affine[:3, :3].T + grid.affine[:3, 3])[..., axis]
        np.testing.assert_allclose(result, expected, atol=2e-3)
        assert np.linalg.norm(grid.affine[:3, :3], axis=0) == pytest.approx(grid.spacing)


def test_resampling_keeps_the_extent(geometry):
    file_geometry, _ = geometry(head(), "LPS")
    grid = plan_grid(file_geometry, (0.7, 0.7, 0.7))
    assert grid.canonical_shape == (26, 22, 18)
    assert grid.resampled_shape == (37, 38, 51)
    np.testing.assert_allclose(
        np.array(grid.spacing) * grid.resampled_shape, np.array((26, 22, 18)) * SPACING, rtol=1e-6
    )
    assert plan_grid(file_geometry, (100, 100, 100)).shape == (1, 1, 1)


def test_downsampling_does_not_alias(geometry):
    """Stripes of two voxels, sampled at every third voxel, would give stripes of six."""
    x = np.arange(60)
    stripes = np.broadcast_to(((x % 4) < 2)[:, None, None], (60, 8, 8)).astype(np.float32)
    file_geometry, stored = geometry(stripes, spacing=(1, 1, 1))
    result = forward_image(stored, plan_grid(file_geometry, (3, 1, 1)))[3:-3]
    assert result.std() < 0.15
    assert result.mean() == pytest.approx(0.5, abs=0.05)


def test_resampled_labels_have_the_largest_share(geometry):
    labels = np.zeros((8, 4, 4), np.uint8)
    labels[2:5] = 1
    labels[5:] = 3
    file_geometry, stored = geometry(labels, spacing=(1, 1, 1))
    stored = stored.astype(np.uint8)
    fine = forward_labels(stored, plan_grid(file_geometry, (0.25, 1, 1)))
    np.testing.assert_array_equal(fine[:, 0, 0], np.repeat(labels[:, 0, 0], 4))
    assert set(np.unique(forward_labels(stored, plan_grid(file_geometry, (0.7, 1, 2))))) == {
        0,
        1,
        3,
    }
    # Where three labels meet, the label with half of the volume is chosen.
    corner = np.repeat(np.array([[[1], [2]], [[1], [3]]], np.uint8), 2, axis=2)
    file_geometry, stored = geometry(corner, spacing=(1, 1, 1))
    meeting = forward_labels(stored.astype(np.uint8), plan_grid(file_geometry, (2, 2, 1)))
    np.testing.assert_array_equal(meeting, [[[1, 1]]])
    whole = ellipsoid((40, 40, 40), 0.3)
    file_geometry, stored = geometry(whole.astype(np.uint8), spacing=(1, 1, 1))
    coarse = forward_labels(stored.astype(np.uint8), plan_grid(file_geometry, (2, 2, 2))) > 0
    assert dice(coarse, ellipsoid((20, 20, 20), 0.3)) > 0.97


@pytest.mark.parametrize("code", ["RAS", "IPL"])
def test_grid_survives_json(geometry, code):
    file_geometry, _ = geometry(head(), code, rotated=12)
    grid = plan_grid(file_geometry, (0.7, 0.9, 1.1)).crop_to((5, 6, 4), (21, 16, 14))
    reread = Grid.from_json(json.loads(json.dumps(grid.to_json(), allow_nan=False)))
    assert reread == grid
    np.testing.assert_array_equal(reread.affine, grid.affine)


def test_spacing_with_too_many_voxels_is_refused(geometry):
    file_geometry, _ = geometry(head((100, 100, 100)), spacing=(10, 10, 10))
    with pytest.raises(VolumeError, match="it would have 100000×100000×100000 voxels"):
        plan_grid(file_geometry, (0.01, 0.01, 0.01))
    with pytest.raises(VolumeError, match="it would have 1000×1000×1000 voxels"):
        plan_grid(file_geometry, (1, 1, 1))


def test_array_of_another_shape_is_refused(geometry):
    file_geometry, _ = geometry(head())
    with pytest.raises(ValueError, match="voxels, the file"):
        forward_labels(tumour()[:-1], plan_grid(file_geometry, None))
