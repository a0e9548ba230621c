"""Elastic deformation, blur, low resolution and inverted contrast of patches, by definition."""

import numpy as np
import pytest
from scipy import ndimage
from volume_patches import DRAWS, PLAIN, a_head, filled, recorded

from gigatile.settings.patches import PatchSettings
from gigatile.tasks.volume_segmentation.elastic import deform, displacements
from gigatile.tasks.volume_segmentation.patch_sampling import choose_patch
from gigatile.tasks.volume_segmentation.resolution import blurred, low_resolution

SIZES = [(32, 32, 32), (48, 24, 64), (16, 80, 40)]


def noise(shape, seed=1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("sigma", [0.5, 0.77, 1.0])
def test_blur_is_that_of_scipy(shape, sigma):
    values = noise(shape)
    expected = ndimage.gaussian_filter(values, sigma)
    np.testing.assert_allclose(blurred(values, sigma), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [*SIZES, (5, 1, 7)])
@pytest.mark.parametrize("zoom", [0.5, 0.61, 0.97])
def test_low_resolution_is_nearest_voxels_and_linear_interpolation(shape, zoom):
    values = noise(shape)
    small = values
    for axis, side in enumerate(shape):
        count = max(1, round(side * zoom))
        centres = [(2 * number + 1) * side // (2 * count) for number in range(count)]
        small = small.take(centres, axis)
    expected = small
    for axis, side in enumerate(shape):
        factors = np.ones(3)
        factors[axis] = side / small.shape[axis]
        expected = ndimage.zoom(expected, factors, order=1, mode="nearest", grid_mode=True)
    np.testing.assert_allclose(low_resolution(values, zoom), expected, atol=1e-5)


@pytest.mark.parametrize("shape", SIZES)
def test_field_is_smooth_and_never_folds(shape):
    for seed in range(12):
        field = displacements(shape, seed, 1.0)
        assert field.shape == (3, *shape)
        for axis, side in enumerate(shape):
            # Nothing comes from outside.
            for edge in (0, -1):
                assert not field[axis].take(edge, axis).any()
            assert np.abs(field[axis]).max() <= 0.4 * side / 8 + 1e-6
        # Positions keep their order along each axis: dx moves along x only.
        assert (np.diff(np.arange(shape[0])[:, None, None] + field[0], axis=0) > 0).all()
        rows, columns = (np.gradient(field[number], axis=(1, 2)) for number in (1, 2))
        jacobian = (1 + rows[0]) * (1 + columns[1]) - rows[1] * columns[0]
        assert (jacobian > 0).all()
        half = displacements(shape, seed, 0.5)
        np.testing.assert_allclose(half, field / 2, atol=1e-5)
    assert np.abs(field).max() > 0.1 * max(shape) / 8


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("channels", [1, 2, 4, 5])
def test_deformation_is_that_of_scipy(shape, channels):
    # Smooth, so that 1/32 voxel makes little difference.
    image = np.stack(
        [ndimage.gaussian_filter(noise(shape, n), 2) * 10 for n in range(channels)], axis=-1
    ).astype(np.float16)
    labels = (ndimage.gaussian_filter(noise(shape, 9), 3) > 0).astype(np.uint8)
    dx, dy, dz = displacements(shape, 5, 1.0)
    x, y, z = np.meshgrid(*[np.arange(side) for side in shape], indexing="ij")

    def moved(values, order):
        for grid in ((x, y + dy, z + dz), (x + dx, y, z)):
            values = ndimage.map_coordinates(values, grid, order=order, mode="nearest")
        return values

    expected = np.stack([moved(image[..., n].astype(float), 1) for n in range(channels)], axis=-1)
    before = image.copy()
    expected_labels = moved(labels, 0)
    deform(image, labels, 5, 1.0)
    assert np.abs(image - expected).max() < 0.1 * np.abs(expected).max()
    assert np.abs(image - expected).mean() < 0.01 * np.abs(before - expected).mean() + 0.003
    assert (labels != expected_labels).mean() < 0.01


def test_labels_move_with_the_image(tmp_path):
    """An image with the values of the labels still has them after the deformation."""
    shape = (64, 64, 64)
    labels = (ndimage.gaussian_filter(noise(shape, 4), 4) > 0).astype(np.uint8)
    image = labels[..., None].astype(np.float16)
    record = recorded(tmp_path / "v", image, labels)
    how = PatchSettings(size=shape, **PLAIN | {"elastic": 1.0})
    changed = 0
    for draw in DRAWS[:6]:
        seen, of_seen = filled(record, draw, how)
        moved = (of_seen != labels).mean()
        differ = ((seen[..., 0] > 0.5) != (of_seen > 0)).mean()
        assert differ < max(0.25 * moved, 0.01)
        changed += moved > 0.02
    assert changed >= 2


def test_shares_are_as_set(head):
    _, _, record = head
    how = PatchSettings(
        size=(32, 32, 32), elastic=0.2, inverted_gamma=0.1, blur=0.3, low_resolution=0.25
    )
    patches = [choose_patch(record.head, draw, how) for draw in DRAWS]
    for name, expected, seen in (
        ("elastic", 0.2, [patch.elastic_extent > 0 for patch in patches]),
        ("inverted", 0.1, [patch.inverted for patch in patches]),
        ("blur", 0.3, [patch.blur > 0 for patch in patches]),
        ("low_resolution", 0.25, [patch.zoom < 1 for patch in patches]),
    ):
        values = np.array(seen, float)
        deviation = (expected * (1 - expected) / values.size) ** 0.5
        assert abs(values.mean() - expected) < 4 * deviation, name
    sigmas = np.concatenate([patch.blur[patch.blur > 0] for patch in patches])
    zooms = np.concatenate([patch.zoom[patch.zoom < 1] for patch in patches])
    for values, low, high in ((sigmas, 0.5, 1.0), (zooms, 0.5, 1.0)):
        assert values.min() >= low and values.max() <= high
        assert values.min() < low + 0.02 and values.max() > high - 0.02
    # One does not come with another.
    pairs = np.corrcoef(
        [np.concatenate([getattr(patch, name) for patch in patches]) for name in ("blur", "zoom")]
    )
    assert abs(pairs[0, 1]) < 0.05


def test_what_is_outside_the_head_stays_0(head):
    image, labels, record = head
    how = PatchSettings(size=(32, 32, 32), **PLAIN | {"blur": 1.0, "low_resolution": 1.0})
    for draw in DRAWS[:5]:
        x, y, z = choose_patch(record.head, draw, how).start
        box = np.s_[x : x + 32, y : y + 32, z : z + 32]
        seen, of_seen = filled(record, draw, how)
        outside = (image[box] == 0).all(axis=-1)
        assert outside.any() and not seen[outside].any()
        np.testing.assert_array_equal(of_seen, labels[box])
        spread = [values.astype(float).std() for values in (seen, image[box])]
        assert spread[0] < 0.7 * spread[1], "noise is smoothed"


def test_inverted_gamma_acts_from_the_other_end(tmp_path):
    values = np.linspace(-2, 3, 32**3).reshape(32, 32, 32, 1).astype(np.float16)
    record = recorded(tmp_path / "v", values, None)
    how = PatchSettings(size=(32, 32, 32), **PLAIN | {"intensity": 0.5, "inverted_gamma": 1.0})
    low, high = float(values.min()), float(values.max())
    for draw in DRAWS[:10]:
        patch = choose_patch(record.head, draw, how)
        assert patch.inverted.all()
        seen, _ = filled(record, draw, how)
        share = (values.astype(float) - low) / (high - low)
        inverted = low + (high - low) * (1 - (1 - share) ** patch.gamma[0])
        expected = inverted * patch.contrast[0] + patch.brightness[0]
        residual = (seen - expected)[values != 0]
        assert abs(residual.mean()) < 0.02
        assert residual.std() == pytest.approx(patch.noise[0], rel=0.1, abs=0.01)


def test_without_augmentation_nothing_is_changed(tmp_path):
    """Also by keys that are added later: each is sorted here."""
    strong = PatchSettings(size=(32, 32, 32)).model_copy(
        update=dict.fromkeys(PatchSettings.AUGMENTATION, 1)
    )
    record = recorded(tmp_path / "C1.tfrecord", *a_head((40, 44, 36), 2))
    plain = PatchSettings(size=(32, 32, 32), **PLAIN)
    for draw in DRAWS[:4]:
        image, labels = filled(record, draw, strong.without_augmentation())
        expected, expected_labels = filled(record, draw, plain)
        np.testing.assert_array_equal(image, expected)
        np.testing.assert_array_equal(labels, expected_labels)
        assert (filled(record, draw, strong)[0] != expected).any()
    others = {"size", "per_case", "foreground", "rotation", "scaling", "targets"}
    assert set(PatchSettings.model_fields) == {*PatchSettings.AUGMENTATION, *others}
