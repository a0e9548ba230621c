"""Patches: where they lie, what is done to them, and that all of it follows from the draw."""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from gigatile.records import RecordError, write_records
from gigatile.records.shuffle import random64
from gigatile.records.volume import VolumeRecord
from gigatile.records.volume_form import encode_volume
from gigatile.settings.patches import PatchSettings
from gigatile.training import patches
from gigatile.training.patches import choose_patch, fill_patch

PLAIN = {"flips": False, "turned": 0, "intensity": 0}
DRAWS = random64(7, np.arange(4000)).tolist()
# What a draw gave when this was written.
FIRST_NOISE = [0.4353618621826172, 0.4975563883781433, 1.880189061164856, 0.7176294326782227]
DRAWN = ((30, 14, 26), 2, (False, False, False))
DRAWN_FIGURES = [-0.07925643904653434, 1.0068887138110283, 0.9591048552299003, 0.0889643409281502]
DRAWN_TURN = [
    [1.13331906280196, -0.0173946752644993, 0.0489568145923354],
    [0.0264953226660848, 1.11307859162161, -0.217865759777361],
    [-0.0446916356761055, 0.218780521708376, 1.11231703374285],
]


def recorded(
    path: Path, image: np.ndarray, labels: np.ndarray | None, grid: dict | None = None
) -> VolumeRecord:
    names = [f"m{number}" for number in range(image.shape[3])]
    write_records(path, [encode_volume("C1", image, labels, names, grid or {})])
    handle = path.open("rb", buffering=0)
    record = VolumeRecord(handle.fileno(), 0, path.stat().st_size, path)
    record.handle = handle  # open as long as the record is
    return record


def filled(record: VolumeRecord, draw: int, how: PatchSettings) -> tuple[np.ndarray, np.ndarray]:
    image = np.full((*how.size, len(record.head.channels)), 7, np.float16)
    labels = np.full(how.size, 7, np.uint8)
    seconds = fill_patch(record, draw, how, image, labels)
    assert min(seconds) >= 0
    return image, labels


def a_head(shape: tuple[int, int, int], channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an ellipsoid of noise with labels in it; outside all is 0."""
    random = np.random.default_rng([*shape, channels])
    places = np.stack(np.meshgrid(*[np.linspace(-1, 1, side) for side in shape], indexing="ij"))
    inside = (places**2).sum(axis=0) < 0.9
    image = random.standard_normal((*shape, channels)) * inside[..., None]
    labels = random.integers(0, 4, shape) * inside * (places[0] > 0.2)
    return image.astype(np.float16), labels.astype(np.uint8)


@pytest.fixture(scope="module")
def head(tmp_path_factory) -> tuple[np.ndarray, np.ndarray, VolumeRecord]:
    image, labels = a_head((60, 50, 70), 4)
    return image, labels, recorded(tmp_path_factory.mktemp("head") / "v", image, labels)


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, VolumeRecord]:
    """Records whose voxels tell where they are: the image on every axis, labels on one of them."""
    folder = tmp_path_factory.mktemp("places")
    shape = (90, 100, 80)
    found = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    image = (found - 50).astype(np.float16)
    return {
        axis: recorded(folder / axis, image, found[..., number].astype(np.uint8))
        for number, axis in enumerate("xyz")
    }


# --- Where a patch lies


def test_a_plain_patch_is_what_stands_there(head):
    image, labels, record = head
    how = PatchSettings(size=(32, 24, 40), **PLAIN)
    for draw in DRAWS[:30]:
        x, y, z = choose_patch(record.head, draw, how).start
        found, of_labels = filled(record, draw, how)
        np.testing.assert_array_equal(found, image[x : x + 32, y : y + 24, z : z + 40])
        np.testing.assert_array_equal(of_labels, labels[x : x + 32, y : y + 24, z : z + 40])


def test_a_share_of_patches_is_centred_on_each_label_alike(head):
    _, labels, record = head
    how = PatchSettings(size=(16, 16, 16), foreground=0.4)
    found = [choose_patch(record.head, draw, how) for draw in DRAWS]
    counts = np.bincount([patch.centred for patch in found], minlength=4)
    # Five standard deviations of a share.
    np.testing.assert_allclose(
        counts[1:] / len(DRAWS), 0.4 / 3, atol=5 * (0.13 * 0.87 / 4000) ** 0.5
    )
    free = 0
    for patch in found:
        middle = tuple(first + 8 for first in patch.start)
        within = all(0 < a < b - 16 for a, b in zip(patch.start, labels.shape, strict=True))
        if patch.centred and within:  # else it was moved to lie inside
            assert labels[middle] == patch.centred
            free += 1
    assert free > 1000
    voxels = {patch.start for patch in found if patch.centred}
    assert len(voxels) > 0.8 * counts[1:].sum(), "any of the voxels"


def test_the_other_patches_lie_anywhere_inside(head):
    record = head[2]
    how = PatchSettings(size=(16, 40, 64), foreground=0)
    starts = np.array([choose_patch(record.head, draw, how).start for draw in DRAWS])
    for axis, room in enumerate((44, 10, 6)):
        counts = np.bincount(starts[:, axis], minlength=room + 1)
        assert len(counts) == room + 1
        expected = len(DRAWS) / (room + 1)
        np.testing.assert_allclose(counts, expected, atol=5 * expected**0.5)
    assert abs(np.corrcoef(starts.T) - np.eye(3)).max() < 0.08
    with_all = PatchSettings(size=(16, 40, 64), foreground=1)
    assert all(choose_patch(record.head, draw, with_all).centred for draw in DRAWS[:500])


def test_a_volume_that_is_too_small_lies_in_the_middle_of_zeros(tmp_path):
    image, labels = a_head((20, 40, 9), 2)
    record = recorded(tmp_path / "v", image + np.float16(1), labels)
    for foreground in (0, 1):
        how = PatchSettings(size=(32, 32, 16), foreground=foreground, **PLAIN)
        for draw in DRAWS[:20]:
            x, y, z = choose_patch(record.head, draw, how).start
            assert (x, z) == (-6, -4) and 0 <= y <= 8
            found, of_labels = filled(record, draw, how)
            np.testing.assert_array_equal(
                found[6:26, :, 4:13], image[:, y : y + 32] + np.float16(1)
            )
            np.testing.assert_array_equal(of_labels[6:26, :, 4:13], labels[:, y : y + 32])
            found[6:26, :, 4:13], of_labels[6:26, :, 4:13] = 0, 0
            assert not found.any() and not of_labels.any()


def test_without_labels_patches_lie_anywhere(tmp_path):
    image, labels = a_head((40, 40, 40), 1)
    for given_labels in (None, np.zeros_like(labels)):
        record = recorded(tmp_path / "v", image, given_labels)
        how = PatchSettings(size=(16, 16, 16), foreground=1)
        for draw in DRAWS[:10]:
            assert choose_patch(record.head, draw, how).centred == 0
            found, of_labels = filled(record, draw, how)
            assert found.any() and not of_labels.any()


# --- Flips


def test_flips_are_of_image_and_labels_alike(head):
    image, labels, record = head
    how = PatchSettings(size=(32, 24, 40), **PLAIN | {"flips": True})
    seen = set()
    for draw in DRAWS[:60]:
        patch = choose_patch(record.head, draw, how)
        box = tuple(slice(a, a + b) for a, b in zip(patch.start, how.size, strict=True))
        axes = np.flatnonzero(patch.flipped)
        found, of_labels = filled(record, draw, how)
        np.testing.assert_array_equal(found, np.flip(image[box], axes))
        np.testing.assert_array_equal(of_labels, np.flip(labels[box], axes))
        seen.add(patch.flipped)
    assert seen == set(itertools.product((False, True), repeat=3))


def test_half_of_the_patches_are_flipped_along_each_axis_and_a_share_is_turned(head):
    how = PatchSettings(size=(16, 16, 16), turned=0.3)
    found = [choose_patch(head[2].head, draw, how) for draw in DRAWS]
    flipped = np.array([patch.flipped for patch in found])
    np.testing.assert_allclose(flipped.mean(axis=0), 0.5, atol=5 * (0.25 / 4000) ** 0.5)
    assert abs(np.corrcoef(flipped.T) - np.eye(3)).max() < 0.08
    turned = np.array([patch.turned is not None for patch in found])
    np.testing.assert_allclose(turned.mean(), 0.3, atol=5 * (0.21 / 4000) ** 0.5)


# --- Turning


def test_turned_voxels_come_from_where_the_matrix_says(places):
    """Linear interpolation is exact where the image is linear: it tells the place itself."""
    size = (32, 40, 24)
    how = PatchSettings(size=size, turned=1, intensity=0, foreground=0, rotation=40, scaling=0.3)
    middle = (np.array(size) - 1) / 2
    grid = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), axis=-1) - middle
    shape = np.array(places["x"].head.shape)
    checked = 0
    for draw in DRAWS[:25]:
        patch = choose_patch(places["x"].head, draw, how)
        source = grid @ patch.turned.T + middle + patch.start
        inside = ((source > 1) & (source < shape - 2)).all(axis=-1)
        checked += inside.sum()
        for axis, record in enumerate(places.values()):
            image, labels = filled(record, draw, how)
            # A float16 near 50 is right to 0.016.
            np.testing.assert_allclose(image[inside].astype(float) + 50, source[inside], atol=0.02)
            # The nearest along the row's line: at most half a voxel from it, and half its slope.
            away = np.abs(labels[inside] - source[inside][:, axis])
            assert away.max() < 1.01
            assert (away > 0.5).mean() < 0.3
    assert checked > 200_000


def test_what_lies_beside_the_volume_is_0_when_turned_too(places):
    size = (32, 40, 24)
    how = PatchSettings(size=size, **PLAIN | {"turned": 1}, rotation=45, foreground=0, scaling=0.5)
    middle = (np.array(size) - 1) / 2
    grid = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), axis=-1) - middle
    record = places["x"]
    beside = 0
    for draw in DRAWS[:25]:
        patch = choose_patch(record.head, draw, how)
        source = grid @ patch.turned.T + middle + patch.start
        outside = ((source < -2) | (source > np.array(record.head.shape) + 1)).any(axis=-1)
        image, labels = filled(record, draw, how)
        assert not image[outside].any() and not labels[outside].any()
        beside += outside.sum()
    assert beside > 10_000


def test_turned_patches_are_flipped_as_the_others_are(head):
    image, labels, record = head
    how = PatchSettings(size=(24, 16, 32), turned=1, intensity=0, rotation=0, scaling=0)
    seen = set()
    for draw in DRAWS[:40]:
        patch = choose_patch(record.head, draw, how)
        box = tuple(slice(a, a + b) for a, b in zip(patch.start, how.size, strict=True))
        axes = np.flatnonzero(patch.flipped)
        found, of_labels = filled(record, draw, how)
        np.testing.assert_array_equal(found, np.flip(image[box], axes))
        np.testing.assert_array_equal(of_labels, np.flip(labels[box], axes))
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
        found = np.full_like(image[8:24, 8:24, 8:24], 7)
        of_labels = np.full_like(labels[8:24, 8:24, 8:24], 7)
        patches._turned(record, (8, 8, 8), matrix, found, of_labels)
        places = np.stack(np.meshgrid(*[np.arange(16)] * 3, indexing="ij"), axis=-1) - 7.5
        x, y, z = np.moveaxis((places @ matrix.T + 15.5).astype(int), -1, 0)
        np.testing.assert_array_equal(found, image[x, y, z])
        np.testing.assert_array_equal(of_labels, labels[x, y, z])


@given(draw=st.integers(0, 2**64 - 1), rotation=st.floats(0, 180), scaling=st.floats(0, 0.9))
@settings(max_examples=30)
def test_a_smooth_image_is_as_trilinear_interpolation_has_it(smooth, draw, rotation, scaling):
    image, _, record = smooth
    how = PatchSettings(
        size=(16, 24, 16), **PLAIN | {"turned": 1, "rotation": rotation, "scaling": scaling}
    )
    patch = choose_patch(record.head, draw, how)
    middle = (np.array(how.size) - 1) / 2
    offset = patch.start + middle - patch.turned @ middle
    found, of_labels = filled(record, draw, how)
    for channel in range(2):
        expected = ndimage.affine_transform(
            image[..., channel].astype(np.float32), patch.turned, offset, how.size, order=1
        )
        places = np.stack(np.meshgrid(*map(np.arange, how.size), indexing="ij"), axis=-1)
        source = places @ patch.turned.T + offset
        inside = ((source > 1) & (source < np.array(image.shape[:3]) - 2)).all(axis=-1)
        np.testing.assert_allclose(found[..., channel][inside], expected[inside], atol=0.1)
    # Labels are the image's sign: they follow it but where it is nearly 0.
    clear = inside & (np.abs(found[..., 0]) > 0.5)
    np.testing.assert_array_equal(of_labels[clear], np.where(found[..., 0] > 0, 2, 1)[clear])


@pytest.fixture(scope="module")
def smooth(tmp_path_factory):
    random = np.random.default_rng(4)
    image = ndimage.gaussian_filter(random.standard_normal((50, 60, 40, 2)), (4, 4, 4, 0))
    image = (image / image.std()).astype(np.float16)
    labels = np.where(image[..., 0] > 0, 2, 1).astype(np.uint8)
    return image, labels, recorded(tmp_path_factory.mktemp("smooth") / "v", image, labels)


def test_turning_is_of_millimetres(tmp_path):
    image, labels = a_head((40, 40, 20), 1)
    record = recorded(tmp_path / "v", image, labels, {"spacing": [1.0, 1.0, 3.0]})
    how = PatchSettings(size=(16, 16, 16), turned=1, rotation=30, scaling=0.2)
    scales, angles = [], []
    for draw in DRAWS[:500]:
        matrix = choose_patch(record.head, draw, how).turned
        in_mm = np.diag([1, 1, 3]) @ matrix @ np.diag([1, 1, 1 / 3])
        scale = np.cbrt(abs(np.linalg.det(in_mm)))
        np.testing.assert_allclose(in_mm @ in_mm.T, scale**2 * np.eye(3), atol=1e-12)
        scales.append(1 / scale)
        angles.append(np.degrees(np.arcsin(abs(in_mm[0, 1] / scale))))
    assert 0.8 <= min(scales) < 0.82 and 1.18 < max(scales) <= 1.2
    assert 20 < max(angles) <= 90


def test_no_more_is_read_than_a_turned_patch_needs(places, monkeypatch):
    asked: list[int] = []
    preadv = os.preadv

    def counted(descriptor, buffers, offset):
        asked.append(sum(map(len, buffers)) and preadv(descriptor, buffers, offset))
        return asked[-1]

    monkeypatch.setattr(os, "preadv", counted)
    how = PatchSettings(size=(16, 16, 16), **PLAIN | {"turned": 1}, rotation=15, scaling=0.2)
    for draw in DRAWS[:20]:
        asked.clear()
        filled(places["x"], draw, how)
        # 16 voxels, turned by 15 degrees and made smaller, are within 31: in 2 blocks, 3 or 4.
        assert 16**3 * 7 <= sum(asked) <= 4**3 * 16**3 * 7


# --- Intensity


def test_intensities_change_and_what_is_0_does_not(head):
    image, _, record = head
    how = PatchSettings(size=(32, 32, 32), **PLAIN | {"intensity": 1.0})
    for draw in DRAWS[:20]:
        x, y, z = choose_patch(record.head, draw, how).start
        before = image[x : x + 32, y : y + 32, z : z + 32]
        after, _ = filled(record, draw, how)
        assert np.isfinite(after).all()
        outside = (before == 0).all(axis=-1)
        assert not after[outside].any()
        assert (after != before)[~outside].mean() > 0.9


def test_a_filled_channel_stays_0(tmp_path):
    image, labels = a_head((32, 32, 32), 3)
    image[..., 1] = 0
    record = recorded(tmp_path / "v", image, labels)
    how = PatchSettings(size=(16, 16, 16), intensity=1.0)
    for draw in DRAWS[:40]:
        after, _ = filled(record, draw, how)
        assert not after[..., 1].any()
        assert after[..., 0].any() and after[..., 2].any()


@pytest.mark.parametrize("channels", range(1, 8))
def test_a_voxel_is_outside_where_all_channels_are_0(channels):
    bits = np.random.default_rng(3).integers(0, 2, (30, 20, channels), np.uint16) << 9
    np.testing.assert_array_equal(patches._not_zero(bits), bits.any(axis=-1))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
def test_each_channel_is_changed_as_was_drawn(tmp_path, channels):
    """What is left after the change that was drawn is noise of the size that was drawn."""
    random = np.random.default_rng(6)
    image = random.uniform(-2, 3, (32, 32, 32, channels)).astype(np.float16)
    record = recorded(tmp_path / "v", image, None)
    how = PatchSettings(size=(32, 32, 32), **PLAIN | {"intensity": 0.4})
    noises = []
    for draw in DRAWS[:20]:
        patch = choose_patch(record.head, draw, how)
        after, _ = filled(record, draw, how)
        left = []
        for channel in range(channels):
            values = image[..., channel].astype(float)
            low, high = values.min(), values.max()
            share = ((values - low) / (high - low)) ** patch.gamma[channel]
            expected = (low + (high - low) * share) * patch.contrast[channel]
            noise = after[..., channel] - expected - patch.brightness[channel]
            # In a plane along the columns too, where the noise's rows follow each other.
            assert abs(noise.mean()) < 0.02
            np.testing.assert_allclose(noise.std(), patch.noise[channel], atol=0.01)
            left.append(noise.ravel())
            noises.append(patch.noise[channel])
        if channels > 1:
            assert abs(np.corrcoef(left) - np.eye(channels)).max() < 0.1
    assert 0 < min(noises) < 0.1 and 0.3 < max(noises) < 0.4


def test_changes_are_within_what_the_settings_allow(head):
    how = PatchSettings(size=(16, 16, 16), intensity=0.25)
    found = [choose_patch(head[2].head, draw, how) for draw in DRAWS]
    for name, low, high in (
        ("brightness", -0.25, 0.25),
        ("contrast", 0.75, 1.25),
        ("gamma", 0.75, 1.25),
        ("noise", 0, 0.25),
    ):
        values = np.array([getattr(patch, name) for patch in found])
        assert values.shape == (4000, 4)
        assert low <= values.min() < low + 0.01 and high - 0.01 < values.max() <= high
        np.testing.assert_allclose(values.mean(axis=0), (low + high) / 2, atol=5 * 0.15 / 4000**0.5)


def test_the_noise_is_nearly_normal_and_the_same_everywhere():
    noise = patches._normal(2**14, 4)
    assert noise.shape == (2**14, 4) and noise.dtype == np.float32
    np.testing.assert_allclose(noise.mean(), 0, atol=0.02)
    np.testing.assert_allclose(noise.std(), 1, atol=0.01)
    assert 3 < np.abs(noise).max() < 5
    for lag in (1, 2, 17):
        flat = noise.ravel()
        assert abs(np.corrcoef(flat[lag:], flat[:-lag])[0, 1]) < 0.02
    assert noise[0].tolist() == FIRST_NOISE


# --- All of it follows from the draw


def test_the_draw_decides_and_nothing_else(head):
    record = head[2]
    how = PatchSettings(size=(32, 24, 40), turned=0.5)
    expected = [filled(record, draw, how) for draw in DRAWS[:24]]
    threads = cv2.getNumThreads()
    try:
        for count in (1, 4):
            cv2.setNumThreads(count)
            with ThreadPoolExecutor(count) as pool:
                found = list(pool.map(lambda draw: filled(record, draw, how), DRAWS[:24]))
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one[0], other[0])
                np.testing.assert_array_equal(one[1], other[1])
    finally:
        cv2.setNumThreads(threads)
    whole = [image.tobytes() for image, _ in expected]
    assert len(set(whole)) == 24


def test_a_draw_is_the_same_on_every_machine(head):
    patch = choose_patch(head[2].head, 123456789, PatchSettings(size=(16, 16, 16), turned=1))
    assert (patch.start, patch.centred, patch.flipped) == DRAWN
    figures = [patch.brightness[0], patch.contrast[1], patch.gamma[2], patch.noise[3]]
    assert figures == DRAWN_FIGURES
    np.testing.assert_allclose(patch.turned, DRAWN_TURN, rtol=1e-12)


def test_what_one_thing_draws_does_not_move_another(head):
    """Settings that are turned off leave the rest as it was."""
    record = head[2]
    for draw in DRAWS[:50]:
        all_on = choose_patch(record.head, draw, PatchSettings(size=(16, 16, 16)))
        some = choose_patch(
            record.head, draw, PatchSettings(size=(16, 16, 16), turned=0, intensity=0.5)
        )
        assert (all_on.start, all_on.flipped) == (some.start, some.flipped)
        np.testing.assert_allclose(all_on.brightness * 5, some.brightness, rtol=1e-12)


# --- Faults


def test_damage_ends_a_patch(tmp_path):
    image, labels = a_head((32, 32, 32), 1)
    record = recorded(tmp_path / "v", image, labels)
    content = bytearray((tmp_path / "v").read_bytes())
    content[-5] ^= 1  # the last block's last label
    (tmp_path / "v").write_bytes(content)
    for turned in (0, 1):
        with pytest.raises(RecordError, match="the checksum of a block"):
            filled(record, 1, PatchSettings(size=(32, 32, 32), turned=turned, foreground=0))


def test_arrays_of_another_size_are_refused(head):
    how = PatchSettings(size=(32, 32, 32))
    with pytest.raises(ValueError, match="must be"):
        fill_patch(
            head[2], 1, how, np.zeros((32, 32, 16, 4), np.float16), np.zeros(how.size, np.uint8)
        )
    with pytest.raises(ValueError, match="must be"):
        fill_patch(
            head[2], 1, how, np.zeros((32, 32, 32, 4), np.float16), np.zeros((32, 32, 16), np.uint8)
        )
