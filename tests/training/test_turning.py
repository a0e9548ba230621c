"""Rotated patches: each voxel is interpolated at the right position."""

import itertools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from volume_patches import DRAWS, PLAIN, a_head, filled, recorded

from gigatile.records.volume import VolumeRecord
from gigatile.settings.patches import PatchSettings
from gigatile.tasks.volume_segmentation.patch_sampling import choose_patch
from gigatile.tasks.volume_segmentation.rotation import fill_rotated


@pytest.fixture(scope="module")
def coordinate_records(tmp_path_factory) -> dict[str, VolumeRecord]:
    """Records with the coordinates as intensities (channels x, y, z), and one of them as labels."""
    folder = tmp_path_factory.mktemp("coordinates")
    shape = (90, 100, 80)
    coordinates = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    image = (coordinates - 50).astype(np.float16)
    return {
        axis: recorded(folder / axis, image, coordinates[..., number].astype(np.uint8))
        for number, axis in enumerate("xyz")
    }


def test_rotated_voxels_come_from_the_right_position(coordinate_records):
    """Linear interpolation of a linear image is exact, so intensities are coordinates."""
    size = (32, 40, 24)
    how = PatchSettings(size=size, rotated=1, intensity=0, foreground=0, rotation=40, scaling=0.3)
    middle = (np.array(size) - 1) / 2
    grid = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), axis=-1) - middle
    shape = np.array(coordinate_records["x"].head.shape)
    checked = 0
    for draw in DRAWS[:25]:
        patch = choose_patch(coordinate_records["x"].head, draw, how)
        source = grid @ patch.rotation.T + middle + patch.start
        inside = ((source > 1) & (source < shape - 2)).all(axis=-1)
        checked += inside.sum()
        for axis, record in enumerate(coordinate_records.values()):
            image, labels = filled(record, draw, how)
            # A float16 near 50 is exact to 0.016.
            np.testing.assert_allclose(image[inside].astype(float) + 50, source[inside], atol=0.02)
            # The nearest voxel along the row: at most half a voxel away, plus half the slope.
            away = np.abs(labels[inside] - source[inside][:, axis])
            assert away.max() < 1.01
            assert (away > 0.5).mean() < 0.3
    assert checked > 200_000


def test_rotated_patch_is_0_outside_the_volume(coordinate_records):
    size = (32, 40, 24)
    how = PatchSettings(size=size, **PLAIN | {"rotated": 1}, rotation=45, foreground=0, scaling=0.5)
    middle = (np.array(size) - 1) / 2
    grid = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), axis=-1) - middle
    record = coordinate_records["x"]
    outside_count = 0
    for draw in DRAWS[:25]:
        patch = choose_patch(record.head, draw, how)
        source = grid @ patch.rotation.T + middle + patch.start
        outside = ((source < -2) | (source > np.array(record.head.shape) + 1)).any(axis=-1)
        image, labels = filled(record, draw, how)
        assert not image[outside].any() and not labels[outside].any()
        outside_count += outside.sum()
    assert outside_count > 10_000


def test_rotated_patches_are_flipped_like_others(head):
    image, labels, record = head
    how = PatchSettings(size=(24, 16, 32), rotated=1, intensity=0, rotation=0, scaling=0)
    seen = set()
    for draw in DRAWS[:40]:
        patch = choose_patch(record.head, draw, how)
        box = tuple(slice(a, a + b) for a, b in zip(patch.start, how.size, strict=True))
        axes = np.flatnonzero(patch.flipped)
        patch_image, patch_labels = filled(record, draw, how)
        np.testing.assert_array_equal(patch_image, np.flip(image[box], axes))
        np.testing.assert_array_equal(patch_labels, np.flip(labels[box], axes))
        seen.add(patch.flipped)
    assert len(seen) == 8


RIGHT_ANGLES = [
    np.eye(3)[list(order)] * signs
    for order in itertools.permutations(range(3))
    for signs in itertools.product((1, -1), repeat=3)
]


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7])
def test_right_angles_are_exact(tmp_path, channels):
    image, labels = a_head((32, 32, 32), channels)
    record = recorded(tmp_path / "v", image, labels)
    for matrix in RIGHT_ANGLES if channels in (2, 4) else RIGHT_ANGLES[::7]:
        patch_image = np.full_like(image[8:24, 8:24, 8:24], 7)
        patch_labels = np.full_like(labels[8:24, 8:24, 8:24], 7)
        fill_rotated(record, (8, 8, 8), matrix, patch_image, patch_labels)
        positions = np.stack(np.meshgrid(*[np.arange(16)] * 3, indexing="ij"), axis=-1) - 7.5
        x, y, z = np.moveaxis((positions @ matrix.T + 15.5).astype(int), -1, 0)
        np.testing.assert_array_equal(patch_image, image[x, y, z])
        np.testing.assert_array_equal(patch_labels, labels[x, y, z])


@given(draw=st.integers(0, 2**64 - 1), rotation=st.floats(0, 180), scaling=st.floats(0, 0.9))
@settings(max_examples=30)
def test_smooth_image_agrees_with_trilinear_interpolation(smooth, draw, rotation, scaling):
    image, _, record = smooth
    how = PatchSettings(
        size=(16, 24, 16), **PLAIN | {"rotated": 1, "rotation": rotation, "scaling": scaling}
    )
    patch = choose_patch(record.head, draw, how)
    middle = (np.array(how.size) - 1) / 2
    offset = patch.start + middle - patch.rotation @ middle
    patch_image, patch_labels = filled(record, draw, how)
    for channel in range(2):
        expected = ndimage.affine_transform(
            image[..., channel].astype(np.float32), patch.rotation, offset, how.size, order=1
        )
        positions = np.stack(np.meshgrid(*map(np.arange, how.size), indexing="ij"), axis=-1)
        source = positions @ patch.rotation.T + offset
        inside = ((source > 1) & (source < np.array(image.shape[:3]) - 2)).all(axis=-1)
        np.testing.assert_allclose(patch_image[..., channel][inside], expected[inside], atol=0.1)
    # Labels are the sign of the image, so they agree where it is not near 0.
    clear = inside & (np.abs(patch_image[..., 0]) > 0.5)
    np.testing.assert_array_equal(
        patch_labels[clear], np.where(patch_image[..., 0] > 0, 2, 1)[clear]
    )


@pytest.fixture(scope="module")
def smooth(tmp_path_factory):
    random = np.random.default_rng(4)
    image = ndimage.gaussian_filter(random.standard_normal((50, 60, 40, 2)), (4, 4, 4, 0))
    image = (image / image.std()).astype(np.float16)
    labels = np.where(image[..., 0] > 0, 2, 1).astype(np.uint8)
    return image, labels, recorded(tmp_path_factory.mktemp("smooth") / "v", image, labels)


def test_rotated_patch_reads_only_needed_blocks(coordinate_records, monkeypatch):
    read: list[int] = []
    preadv = os.preadv

    def count(descriptor, buffers, offset):
        read.append(sum(map(len, buffers)) and preadv(descriptor, buffers, offset))
        return read[-1]

    monkeypatch.setattr(os, "preadv", count)
    how = PatchSettings(size=(16, 16, 16), **PLAIN | {"rotated": 1}, rotation=15, scaling=0.2)
    for draw in DRAWS[:20]:
        read.clear()
        filled(coordinate_records["x"], draw, how)
        # 16 voxels, rotated by 15 degrees and scaled, span at most 31 voxels: 2, 3 or 4 blocks.
        assert 16**3 * 7 <= sum(read) <= 4**3 * 16**3 * 7
